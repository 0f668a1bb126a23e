// SPDX-License-Identifier: MPL-2.0

//! The demo's screen as a picture that moves: an SVG for the manual.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use crate::Result;

const COLUMNS: usize = 96;
/// Two characters are as wide as one is high, about.
const CHARACTER: (f32, f32) = (7.8, 17.0);
const MARGIN: f32 = 12.0;
/// How long the last screen stays.
const END: Duration = Duration::from_secs(4);

/// The screen at each time that it changed.
#[derive(Debug, Default)]
pub(super) struct Recording {
    screens: Vec<(Duration, String)>,
}

impl Recording {
    pub(super) fn add(&mut self, time: Duration, screen: String) {
        if self.screens.last().is_none_or(|(_, last)| *last != screen) {
            self.screens.push((time, screen));
        }
    }

    pub(super) fn write(&self, file: &Path) -> Result {
        let svg = self.svg();
        std::fs::write(file, svg)
            .map_err(|error| format!("cannot write {}: {error}", file.display()).into())
    }

    /// A group for each screen, which is visible until the next one comes. Programs without animation show the last one.
    fn svg(&self) -> String {
        let lines = self.screens.iter().map(|(_, text)| text.lines().count());
        let width = COLUMNS as f32 * CHARACTER.0 + 2.0 * MARGIN;
        let height = lines.max().unwrap_or(0) as f32 * CHARACTER.1 + 2.0 * MARGIN;
        let end = self.screens.last().map_or(END, |(time, _)| *time + END);
        let end = end.as_secs_f32();
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1b1f24\">\
             <animate id=\"play\" attributeName=\"x\" from=\"0\" to=\"0\" begin=\"0s;play.end\" dur=\"{end:.1}s\"/></rect>\n"
        );
        // Writing to a String cannot fail.
        for (number, (time, text)) in self.screens.iter().enumerate() {
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
            for (row, line) in text.lines().enumerate() {
                let y = MARGIN + (row as f32 + 0.8) * CHARACTER.1;
                let color = if line.contains("SIGKILL") {
                    "#ff9d76"
                } else {
                    "#dfe3e8"
                };
                let line = line.replace('&', "&amp;").replace('<', "&lt;");
                let _ = write!(
                    svg,
                    "<text x=\"{MARGIN}\" y=\"{y:.0}\" fill=\"{color}\" xml:space=\"preserve\">{line}</text>"
                );
            }
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}
