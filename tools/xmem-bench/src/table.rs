// SPDX-License-Identifier: MPL-2.0

//! A Markdown table.

use std::fmt::Write;

use crate::statistics::{interval, median};

/// The value of a cell.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    /// An empty cell.
    Empty,
    /// A value that was measured once.
    Once(f64),
    /// A value for each round. `None`: the round has no value.
    Rounds(Vec<Option<f64>>),
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Empty, Self::Once)
    }
}

impl Cell {
    fn value(&self) -> Option<f64> {
        match self {
            Self::Empty => None,
            Self::Once(value) => Some(*value),
            Self::Rounds(rounds) => median(rounds.iter().flatten().copied()),
        }
    }

    /// The ratio of two cells. Values of rounds are divided round by round, because other load on the machine affects both values
    /// of a round alike.
    fn ratio(&self, other: &Self) -> Self {
        let divide = |one: Option<f64>, other: Option<f64>| {
            let other = other.filter(|other| *other >= MIN_DIVISOR)?;
            Some(one? / other)
        };
        match (self, other) {
            (Self::Rounds(one), Self::Rounds(other)) => {
                let pairs = one.iter().zip(other);
                Self::Rounds(pairs.map(|(one, other)| divide(*one, *other)).collect())
            }
            _ => divide(self.value(), other.value()).into(),
        }
    }

    fn text(&self, digits: usize) -> String {
        self.value()
            .map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
    }

    /// The value with its 95 % interval.
    fn text_with_interval(&self, digits: usize) -> String {
        let mut text = self.text(digits);
        if let Self::Rounds(rounds) = self
            && let Some((from, to)) = interval(rounds.iter().flatten().copied())
        {
            // Writing to a String cannot fail.
            let _ = write!(text, " ({from:.digits$}–{to:.digits$})");
        }
        text
    }
}

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

/// Smaller values are noise. No ratio is computed with such a divisor.
const MIN_DIVISOR: f64 = 0.05;

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

    /// Adds a row. A missing value is shown as a dash.
    pub(crate) fn row(&mut self, name: &str, cells: &[Cell]) {
        let cells = cells.iter().zip(self.columns);
        let cells = cells.map(|(cell, column)| cell.text(column.digits));
        let cells = cells.collect();
        self.line(name, cells);
    }

    /// Adds a row with ratios.
    pub(crate) fn ratio(&mut self, name: &str, one: &[Cell], other: &[Cell]) {
        let pairs = one.iter().zip(other);
        let cells = pairs.map(|(one, other)| one.ratio(other).text_with_interval(2));
        let cells = cells.collect();
        self.line(&format!("**{name}**"), cells);
    }

    fn line(&mut self, name: &str, mut cells: Vec<String>) {
        cells.resize(self.columns.len(), Cell::Empty.text(0));
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
    fn a_missing_figure_is_a_dash() {
        const COLUMNS: &[Column] = &[Column::new("time µs", 1), Column::new("calls", 2)];
        let mut table = Table::new(COLUMNS);
        let one = [Cell::Once(30.0), Cell::Once(1.0)];
        table.row("one", &one);
        table.row("other", &[Cell::Once(20.0)]);
        table.ratio("one / other", &one, &[Cell::Once(20.0), Cell::Empty]);
        let little = [Cell::Once(0.01), Cell::Once(0.5)];
        table.ratio("one / nearly nothing", &one, &little);
        let expected = "\
            | | time µs | calls |\n\
            |---|--:|--:|\n\
            | one | 30.0 | 1.00 |\n\
            | other | 20.0 | – |\n\
            | **one / other** | 1.50 | – |\n\
            | **one / nearly nothing** | – | 2.00 |\n";
        assert_eq!(table.markdown(), expected);
    }

    #[test]
    fn rounds_are_compared_in_pairs() {
        let rounds = |values: &[f64]| Cell::Rounds(values.iter().copied().map(Some).collect());
        // The machine was slower in the second round.
        let (one, other) = (rounds(&[10.0, 90.0, 11.0]), rounds(&[20.0, 100.0, 10.0]));
        assert_eq!(one.text_with_interval(1), "11.0 (10.0–90.0)");
        assert_eq!(one.ratio(&other).text_with_interval(2), "0.90 (0.50–1.10)");
        let nothing_came = Cell::Rounds(vec![None, Some(100.0), None]);
        assert_eq!(one.ratio(&nothing_came).text_with_interval(2), "0.90");
    }
}
