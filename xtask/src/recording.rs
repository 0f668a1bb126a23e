// SPDX-License-Identifier: MPL-2.0

//! The screen of a program as a picture that moves: an SVG for the manual.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::Result;

/// Two characters are as wide as one is high, about.
const CHARACTER: (f32, f32) = (7.8, 17.0);
const MARGIN: f32 = 12.0;
/// How long the last screen stays.
const END: Duration = Duration::from_secs(4);

/// What CSS calls each look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Plain,
    Bold,
    Dim,
    Alarm,
    Reversed,
}

/// Characters of one look in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) column: usize,
    pub(crate) text: String,
    pub(crate) look: Look,
}

pub(crate) type Line = Vec<Run>;

/// The screen at each time that it changed.
#[derive(Debug)]
pub(crate) struct Recording {
    columns: usize,
    screens: Vec<(Duration, Vec<Line>)>,
}

impl Recording {
    pub(crate) fn new(columns: usize) -> Self {
        Self {
            columns,
            screens: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, time: Duration, screen: Vec<Line>) {
        if self.screens.last().is_none_or(|(_, last)| *last != screen) {
            self.screens.push((time, screen));
        }
    }

    pub(crate) fn write(&self, file: &Path) -> Result {
        let svg = self.svg();
        std::fs::write(file, svg)
            .map_err(|error| format!("cannot write {}: {error}", file.display()).into())
    }

    /// A group for each screen, which is visible until the next one comes. Programs without animation show the last one.
    fn svg(&self) -> String {
        let lines = self.screens.iter().map(|(_, lines)| lines.len());
        let width = self.columns as f32 * CHARACTER.0 + 2.0 * MARGIN;
        let height = lines.max().unwrap_or(0) as f32 * CHARACTER.1 + 2.0 * MARGIN;
        let end = self.screens.last().map_or(END, |(time, _)| *time + END);
        let end = end.as_secs_f32();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"13\">\n\
             <style>text{{fill:#dfe3e8;white-space:pre}}.bold{{font-weight:bold}}.dim{{fill:#8b949e}}.alarm{{fill:#ff9d76}}\
             text.reversed{{fill:#1b1f24}}rect.reversed{{fill:#dfe3e8}}</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1b1f24\">\
             <animate id=\"play\" attributeName=\"x\" from=\"0\" to=\"0\" begin=\"0s;play.end\" dur=\"{end:.1}s\"/></rect>\n"
        );
        // Writing to a String cannot fail.
        for (number, (time, lines)) in self.screens.iter().enumerate() {
            let next = self.screens.get(number + 1);
            let (until, visibility) = match next {
                Some((next, _)) => (next.as_secs_f32(), "hidden"),
                None => (end, "visible"),
            };
            let begin = time.as_secs_f32();
            let _ = write!(svg, "<g visibility=\"{visibility}\">");
            if next.is_none() {
                let _ = write!(
                    svg,
                    "<set attributeName=\"visibility\" to=\"hidden\" begin=\"play.begin\" dur=\"{begin:.1}s\"/>"
                );
            } else {
                let _ = write!(
                    svg,
                    "<set attributeName=\"visibility\" to=\"visible\" begin=\"play.begin+{begin:.1}s\" dur=\"{:.1}s\"/>",
                    until - begin
                );
            }
            for (row, line) in lines.iter().enumerate() {
                for run in line {
                    write_run(&mut svg, row, run);
                }
            }
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn write_run(svg: &mut String, row: usize, run: &Run) {
    let x = MARGIN + run.column as f32 * CHARACTER.0;
    let top = MARGIN + row as f32 * CHARACTER.1;
    let class = match run.look {
        Look::Plain => "",
        Look::Bold => " class=\"bold\"",
        Look::Dim => " class=\"dim\"",
        Look::Alarm => " class=\"alarm\"",
        Look::Reversed => " class=\"reversed\"",
    };
    // Writing to a String cannot fail.
    if run.look == Look::Reversed {
        let width = run.text.chars().count() as f32 * CHARACTER.0;
        let height = CHARACTER.1;
        let _ = write!(
            svg,
            "<rect{class} x=\"{x:.1}\" y=\"{top:.0}\" width=\"{width:.1}\" height=\"{height}\"/>"
        );
    }
    let y = top + 0.8 * CHARACTER.1;
    let text = run.text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(
        svg,
        "<text{class} x=\"{x:.1}\" y=\"{y:.0}\" xml:space=\"preserve\">{text}</text>"
    );
}
