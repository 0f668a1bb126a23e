// SPDX-License-Identifier: MPL-2.0

//! `xmem list`

use std::io::Write;

use serde::Serialize;
use xmem_core::{BufferPool, Delivery};

use crate::Error;
use crate::cli::Format;
use crate::format::{Table, duration, json, process};
use crate::pools::{self, Pool, State, buffers_of, caps_summary, no_pools};

/// A row of the list. Figures are absent if there is no producer or it does not answer.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// Converted to text with replacement characters, because JSON has only text.
    path: String,
    state: State,
    #[serde(flatten)]
    stats: Option<Answer>,
}

#[derive(Debug, Serialize)]
struct Answer {
    format: Option<String>,
    up_ns: u64,
    fps: f64,
    pid: u32,
    delivery: Delivery,
    published: u64,
    consumers: usize,
    devices: Vec<String>,
}

pub(crate) fn run(format: Format, out: &mut impl Write) -> Result<(), Error> {
    let rows: Vec<Row> = pools::all()?.into_iter().map(Row::from).collect();
    if format == Format::Json {
        return json(out, &rows);
    }
    if rows.is_empty() {
        writeln!(out, "{}", no_pools())?;
        return Ok(());
    }
    let titles = "POOL  STATE  FORMAT  UP  FPS  PUBLISHED  CONSUMERS  DELIVERY  PID  SOCKET";
    let mut table = Table::new(titles, &[3, 4, 5, 6, 8]);
    for row in grouped(rows) {
        let none = || "-".to_owned();
        let cells = row.stats.map(|it| {
            let on_device = if it.devices.is_empty() { "" } else { " (CUDA)" };
            [
                it.format.unwrap_or_else(none) + on_device,
                duration(it.up_ns),
                format!("{:.1}", it.fps),
                it.published.to_string(),
                it.consumers.to_string(),
                it.delivery.to_string(),
                process(it.pid),
            ]
        });
        let [format, up, fps, published, consumers, delivery, pid] =
            cells.unwrap_or_else(|| std::array::from_fn(|_| none()));
        let state = row.state.words().to_owned();
        table.row([
            row.name, state, format, up, fps, published, consumers, delivery, pid, row.path,
        ]);
    }
    table.print(out)
}

/// Merges the pools of all processes that write buffers of one pool into one row.
fn grouped(rows: Vec<Row>) -> Vec<Row> {
    // Each row with the number of processes, or 0 for other pools.
    let mut groups: Vec<(Row, usize)> = Vec::new();
    for mut row in rows {
        let Some(name) = BufferPool::name_of_writer(&row.name).map(str::to_owned) else {
            groups.push((row, 0));
            continue;
        };
        row.name = name;
        let group = groups
            .iter_mut()
            .find(|(group, writers)| *writers > 0 && group.name == row.name);
        match group {
            Some((group, writers)) => {
                group.add(row);
                *writers += 1;
            }
            None => groups.push((row, 1)),
        }
    }
    let with_format = |(mut row, writers): (Row, usize)| {
        if let Some(stats) = row.stats.as_mut().filter(|_| writers > 0) {
            stats.format = Some(buffers_of(writers));
        }
        row
    };
    groups.into_iter().map(with_format).collect()
}

impl Row {
    /// Adds the figures of another process that writes buffers of the same pool.
    fn add(&mut self, other: Self) {
        if other.state == State::Live {
            self.state = State::Live;
        }
        self.stats = match (self.stats.take(), other.stats) {
            (Some(one), Some(other)) => Some(Answer {
                up_ns: one.up_ns.max(other.up_ns),
                fps: one.fps + other.fps,
                pid: 0,
                published: one.published + other.published,
                consumers: one.consumers + other.consumers,
                devices: [one.devices, other.devices].concat(),
                ..one
            }),
            (one, other) => one.or(other),
        };
    }
}

impl From<Pool> for Row {
    fn from(pool: Pool) -> Self {
        Self {
            name: pool.name,
            path: pool.path.to_string_lossy().into_owned(),
            state: pool.state,
            stats: pool.stats.map(|stats| Answer {
                format: caps_summary(&stats),
                up_ns: stats.up_ns,
                fps: stats.fps,
                pid: stats.pid,
                delivery: stats.delivery,
                published: stats.published,
                consumers: stats.consumers.len(),
                devices: stats.devices,
            }),
        }
    }
}
