// SPDX-License-Identifier: MPL-2.0

//! A table in Markdown.

use std::fmt::Write;

#[derive(Debug)]
pub(crate) struct Column {
    title: &'static str,
    digits: usize,
}

impl Column {
    pub(crate) const fn new(title: &'static str, digits: usize) -> Self {
        Self { title, digits }
    }
}

/// What is less is noise, and nothing is divided by it.
const LEAST: f64 = 0.05;

#[derive(Debug)]
pub(crate) struct Table {
    columns: &'static [Column],
    lines: String,
}

impl Table {
    pub(crate) fn new(columns: &'static [Column]) -> Self {
        Self {
            columns,
            lines: String::new(),
        }
    }

    /// What is not there is shown as a dash.
    pub(crate) fn row(&mut self, name: &str, cells: Vec<Option<f64>>) {
        let digits = self.columns.iter().map(|column| column.digits);
        self.line(name, cells, digits);
    }

    /// The one divided by the other.
    pub(crate) fn ratio(&mut self, name: &str, one: &[Option<f64>], other: &[Option<f64>]) {
        let ratios = one.iter().zip(other).map(|ratio| match ratio {
            (Some(one), Some(other)) if *other >= LEAST => Some(one / other),
            _ => None,
        });
        let digits = self.columns.iter().map(|_| 2);
        self.line(&format!("**{name}**"), ratios.collect(), digits);
    }

    fn line(&mut self, name: &str, cells: Vec<Option<f64>>, digits: impl Iterator<Item = usize>) {
        let cells = cells.into_iter().zip(digits).map(|(cell, digits)| {
            cell.map_or_else(|| "–".to_owned(), |cell| format!("{cell:.digits$}"))
        });
        let cells: Vec<String> = cells.collect();
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines, "| {name} | {} |", cells.join(" | "));
    }

    pub(crate) fn markdown(&self) -> String {
        let titles = self.columns.iter().map(|column| column.title);
        let titles: Vec<&str> = titles.collect();
        let rule = "--:|".repeat(titles.len());
        format!("| | {} |\n|---|{rule}\n{}", titles.join(" | "), self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_a_dash() {
        const COLUMNS: &[Column] = &[Column::new("time µs", 1), Column::new("calls", 2)];
        let mut table = Table::new(COLUMNS);
        let (one, other) = ([Some(30.0), Some(1.0)], [Some(20.0), None]);
        table.row("one", one.to_vec());
        table.row("other", other.to_vec());
        table.ratio("one / other", &one, &other);
        table.ratio("one / nearly nothing", &one, &[Some(0.01), Some(0.5)]);
        let expected = "\
            | | time µs | calls |\n\
            |---|--:|--:|\n\
            | one | 30.0 | 1.00 |\n\
            | other | 20.0 | – |\n\
            | **one / other** | 1.50 | – |\n\
            | **one / nearly nothing** | – | 2.00 |\n";
        assert_eq!(table.markdown(), expected);
    }
}
