// SPDX-License-Identifier: MPL-2.0

//! `xmem list`

use std::io::Write;

use serde::Serialize;
use xmem_core::{ConnectError, PoolEntry, PoolStats, QueryError};

use super::name_of;
use super::show::caps_summary;
use crate::Error;
use crate::cli::Format;
use crate::format::{Table, duration, json, process};

/// A pool in the list. The producer's figures are absent when there is no producer, or it does not answer.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// As text, whatever it is: JSON has no other.
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
    delivery: String,
    published: u64,
    consumers: usize,
    devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Live,
    /// There is a producer, but it does not answer this user.
    Silent,
    /// This user may not ask.
    NoAccess,
    /// The producer is gone. Its files do no harm: the pool's next producer replaces them, and `xmem clean` removes them.
    Stale,
}

impl State {
    /// That of a pool that was asked.
    pub(super) fn of(answer: &Result<PoolStats, QueryError>) -> Self {
        match answer {
            Ok(_) => Self::Live,
            Err(ConnectError::Denied { .. } | ConnectError::Refused { .. }) => Self::NoAccess,
            Err(ConnectError::NotFound { .. }) => Self::Stale,
            Err(_) => Self::Silent,
        }
    }
}

pub(crate) fn run(format: Format, out: &mut impl Write) -> Result<(), Error> {
    let mut pools = xmem_core::read_pools()?;
    pools.retain(|pool| name_of(&pool.path).is_some());
    let live = pools.iter().filter(|pool| pool.live);
    let live: Vec<_> = live.map(|pool| &pool.name).collect();
    let mut answers = xmem_core::query_all(&live).into_iter();
    let rows: Vec<Row> = pools
        .into_iter()
        .map(|pool| {
            let answer = if pool.live { answers.next() } else { None };
            Row::new(pool, answer)
        })
        .collect();
    if format == Format::Json {
        return json(out, &rows);
    }
    if rows.is_empty() {
        let dir = xmem_core::runtime_dir();
        // Its first producer makes it.
        let none = if dir.exists() {
            ""
        } else {
            ", which does not exist yet"
        };
        writeln!(out, "no pools in {}{none}", dir.display())?;
        return Ok(());
    }
    let mut table = Table::new([
        "POOL",
        "STATE",
        "FORMAT",
        "UP",
        "FPS",
        "PUBLISHED",
        "CONSUMERS",
        "DELIVERY",
        "PID",
        "SOCKET",
    ]);
    table.numbers(&[3, 4, 5, 6, 8]);
    for row in rows {
        let state = match row.state {
            State::Live => "live",
            State::Silent => "silent",
            State::NoAccess => "no access",
            State::Stale => "stale",
        };
        let none = || "-".to_owned();
        let cells = row.stats.map(|it| {
            let on_device = if it.devices.is_empty() { "" } else { " (CUDA)" };
            [
                it.format.unwrap_or_else(none) + on_device,
                duration(it.up_ns),
                format!("{:.1}", it.fps),
                it.published.to_string(),
                it.consumers.to_string(),
                it.delivery,
                process(it.pid),
            ]
        });
        let [format, up, fps, published, consumers, delivery, pid] =
            cells.unwrap_or_else(|| std::array::from_fn(|_| none()));
        let state = state.to_owned();
        table.row([
            row.name, state, format, up, fps, published, consumers, delivery, pid, row.path,
        ]);
    }
    table.print(out)
}

impl Row {
    fn new(entry: PoolEntry, answer: Option<Result<PoolStats, QueryError>>) -> Self {
        let state = answer.as_ref().map_or(State::Stale, State::of);
        let stats = answer.and_then(Result::ok);
        Self {
            state,
            stats: stats.map(Answer::from),
            name: entry.name,
            path: entry.path.to_string_lossy().into_owned(),
        }
    }
}

impl From<PoolStats> for Answer {
    fn from(stats: PoolStats) -> Self {
        Self {
            format: caps_summary(&stats),
            up_ns: stats.up_ns,
            fps: stats.fps,
            pid: stats.pid,
            delivery: stats.delivery,
            published: stats.published,
            consumers: stats.consumers.len(),
            devices: stats.devices,
        }
    }
}
