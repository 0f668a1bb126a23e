// SPDX-License-Identifier: MPL-2.0

//! Output formats: tables and JSON.

use std::fmt::Display;
use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, presets};
use serde::Serialize;
use unicode_width::UnicodeWidthChar;
use xmem_core::discovery::printable;

use crate::Error;

/// A process ID. 0 is shown as `-`: the process is in a PID namespace that is not visible.
pub(crate) fn process(pid: u32) -> String {
    match pid {
        0 => "-".to_owned(),
        pid => pid.to_string(),
    }
}

/// A table with a heading and two spaces between columns.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// `titles` have two spaces between them. Columns of `numbers` are aligned to the right.
    pub(crate) fn new(titles: &str, numbers: &[usize]) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            // Lines are never wrapped, so that the output does not depend on the terminal.
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(titles.split("  "));
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if numbers.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self(table)
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells.map(|cell| printable(&cell)));
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> Result<(), Error> {
        self.print_cut(usize::MAX, out)
    }

    /// Prints the table with lines cut to `width`. A wrapped line would need two lines, but only one is cleared.
    pub(crate) fn print_cut(&self, width: usize, out: &mut impl Write) -> Result<(), Error> {
        for line in self.0.lines() {
            writeln!(out, "{}", cut(&line, width).trim_end())?;
        }
        Ok(())
    }
}

/// The part of a line that fits into this number of columns. Some characters take two columns.
fn cut(line: &str, width: usize) -> &str {
    let mut columns = 0;
    let end = line.char_indices().find(|(_, c)| {
        columns += c.width().unwrap_or(0);
        columns > width
    });
    end.map_or(line, |(at, _)| &line[..at])
}

/// The width of the terminal on standard output. `None` if it is not a terminal or the width is unknown.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Prints a line on standard error. Errors are ignored, because standard error may be closed.
pub(crate) fn to_stderr(what: impl Display) {
    let _ = writeln!(io::stderr(), "xmem: {what}");
}

/// Prints one line of JSON.
pub(crate) fn json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Error> {
    // One write, so that the line is complete or missing.
    writeln!(out, "{}", escaped(&serde_json::to_string(value)?))?;
    Ok(())
}

/// Escapes the characters of JSON that could mislead the reader of a terminal. All of them are in strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) || printable(c.encode_utf8(&mut [0; 4])).starts_with(c) {
            text.push(c);
        } else {
            text += &format!("\\u{:04x}", u32::from(c));
        }
    }
    text
}

/// Formats nanoseconds as milliseconds.
pub(crate) fn milliseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}

/// Formats nanoseconds as `d.hh:mm:ss`, without leading parts that are 0.
pub(crate) fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (minutes, hours, days) = (seconds / 60 % 60, seconds / 3600 % 24, seconds / 86_400);
    let seconds = seconds % 60;
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}.{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Formats bytes as MiB.
pub(crate) fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_lines_up() {
        let mut table = Table::new("NAME  COUNT", &[1]);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), "1000".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "NAME    COUNT\na           1\nlonger   1000\n");
    }

    #[test]
    fn json_has_no_character_for_the_terminal() {
        let text = "\u{9b}1m \u{202e}\u{7f} größer, 日本";
        let mut out = Vec::new();
        json(&mut out, &text).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "\"\\u009b1m \\u202e\\u007f größer, 日本\"\n");
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
    }

    #[test]
    fn a_line_is_truncated_by_columns() {
        for (width, is) in [(0, ""), (3, "漢"), (4, "漢字"), (5, "漢字a"), (9, "漢字ab")] {
            assert_eq!(cut("漢字ab", width), is);
        }
        // A combining character has no width and stays with its base character.
        assert_eq!(cut("e\u{301}e", 1), "e\u{301}");
    }

    #[test]
    fn figures_have_units() {
        assert_eq!(milliseconds(1_234_567), "1.23");
        assert_eq!(size(3 << 20), "3.0 MiB");
        for (seconds, text) in [(192, "3:12"), (3_725, "1:02:05"), (93_784, "1.02:03:04")] {
            assert_eq!(duration(seconds * 1_000_000_000), text);
        }
    }
}
