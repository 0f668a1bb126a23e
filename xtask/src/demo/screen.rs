// SPDX-License-Identifier: MPL-2.0

//! The live table of the demo, and its event lines.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, Instant};

use super::pool::Pool;
use crate::recording::{Line, Look, Recording, Run};

/// The width of the recording. An event may be longer than the table is wide.
const COLUMNS: usize = 96;
/// The interval over which the frame rate is measured.
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Screen {
    start: Instant,
    on_terminal: bool,
    /// The number of table lines above the cursor.
    drawn: usize,
    last_drawn: Option<Instant>,
    counts: HashMap<(u32, u32), Vec<(Instant, u64)>>,
    /// All lines above the table, and the screen at each time.
    events: String,
    recording: Recording,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            events: String::new(),
            recording: Recording::new(COLUMNS),
            start: Instant::now(),
            on_terminal: io::stdout().is_terminal(),
            drawn: 0,
            last_drawn: None,
            counts: HashMap::new(),
        }
    }

    /// Prints an event. The table is drawn below it.
    pub(super) fn say(&mut self, text: &str) {
        let line = format!("{:5.1} s  {text}\n", self.start.elapsed().as_secs_f32());
        self.print(&line, 0);
        self.events += &line;
    }

    /// Draws the table: in place on a terminal, otherwise once per second.
    pub(super) fn draw(&mut self, pool: Option<&Pool>) {
        let fps = pool.map(|pool| self.rates(pool)).unwrap_or_default();
        let pause = if self.on_terminal { WINDOW / 5 } else { WINDOW };
        if self.last_drawn.is_some_and(|last| last.elapsed() < pause) {
            return;
        }
        self.last_drawn = Some(Instant::now());
        let table = table(pool, &fps, self.start.elapsed());
        self.print(&table, table.lines().count());
        let screen = format!("{}\n{table}", self.events);
        let screen = screen.lines().map(recorded).collect();
        self.recording.add(self.start.elapsed(), screen);
    }

    pub(super) fn recording(self) -> Recording {
        self.recording
    }

    fn print(&mut self, text: &str, drawn: usize) {
        let mut out = io::stdout().lock();
        let back = match self.drawn {
            lines if self.on_terminal && lines > 0 => format!("\x1b[{lines}A\x1b[J"),
            _ => String::new(),
        };
        // The write fails if the output is closed. The exit status still gives the result.
        let _ = write!(out, "{back}{text}").and_then(|()| out.flush());
        self.drawn = drawn;
    }

    /// Frames per second of the producer and of each consumer, over the last second.
    fn rates(&mut self, pool: &Pool) -> Vec<f64> {
        let now = Instant::now();
        let consumers = pool.consumers.iter().map(|c| (c.pid, c.received));
        [(0, pool.published)]
            .into_iter()
            .chain(consumers)
            .map(|(process, count)| {
                // The counters of a new producer start at 0.
                let counts = self.counts.entry((pool.pid, process)).or_default();
                counts.push((now, count));
                let old = counts.partition_point(|(then, _)| now - *then > WINDOW);
                counts.drain(..old.saturating_sub(1));
                let (then, before) = counts[0];
                let seconds = (now - then).as_secs_f64();
                if seconds > 0.0 {
                    count.saturating_sub(before) as f64 / seconds
                } else {
                    0.0
                }
            })
            .collect()
    }
}

fn recorded(line: &str) -> Line {
    let look = if line.contains("SIGKILL") {
        Look::Alarm
    } else {
        Look::Plain
    };
    vec![Run {
        column: 0,
        text: line.to_owned(),
        look,
    }]
}

/// At most 80 columns wide: a wrapped line could not be overwritten.
fn table(pool: Option<&Pool>, fps: &[f64], time: Duration) -> String {
    let mut text = format!("{:5.1} s  ", time.as_secs_f32());
    let Some(pool) = pool else {
        return text + "no producer; the consumers wait\n";
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<16} {:>8} {:>6} {:>7} {:>7} {:>9} {:>7}",
        "PROCESS", "PID", "FPS", "COPIED", "HELD", "LATENCY", "MISSED"
    );
    let _ = writeln!(
        text,
        "         {:<16} {:>8} {:>6.1} {:>7} {:>7}",
        "producer",
        pool.pid,
        fps[0],
        pool.copied,
        format!("{}/{}", pool.slots_held, pool.slots),
    );
    for (consumer, fps) in pool.consumers.iter().zip(&fps[1..]) {
        let name: String = consumer.name.chars().take(16).collect();
        let _ = writeln!(
            text,
            "         {name:<16} {:>8} {fps:>6.1} {:>7} {:>7} {:>6.2} ms {:>7}",
            consumer.pid,
            consumer.copied,
            consumer.held,
            consumer.latency_ns as f64 / 1e6,
            consumer.missed,
        );
    }
    text
}
