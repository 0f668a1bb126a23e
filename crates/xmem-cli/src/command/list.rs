// SPDX-License-Identifier: MPL-2.0

//! `xmem list`

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use xmem_core::{BufferPool, ConnectError, PoolStats, QueryError};

use super::name_of;
use super::show::{self, caps_summary};
use crate::Error;
use crate::cli::Format;
use crate::format::{Table, duration, json, process};

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
    delivery: String,
    published: u64,
    consumers: usize,
    devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum State {
    Live,
    /// The producer does not answer this user.
    Silent,
    /// This user has no access to the pool.
    NoAccess,
    /// The producer was killed. Its files are harmless: the pool's next producer replaces them, and `xmem clean` removes them.
    Stale,
}

impl State {
    /// The state of a pool that was queried.
    pub(super) fn of(answer: &Result<PoolStats, QueryError>) -> Self {
        match answer {
            Ok(_) => Self::Live,
            Err(ConnectError::Denied { .. } | ConnectError::Refused { .. }) => Self::NoAccess,
            Err(ConnectError::NotFound { .. }) => Self::Stale,
            Err(_) => Self::Silent,
        }
    }

    /// The text in tables.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Silent => "silent",
            Self::NoAccess => "no access",
            Self::Stale => "stale",
        }
    }
}

/// A pool of the runtime directory.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) state: State,
    /// `None`: there is no producer, or it does not answer.
    pub(super) stats: Option<PoolStats>,
}

impl Pool {
    /// `answer` is `None` if the pool was not queried because it has no producer.
    fn new(name: String, path: PathBuf, answer: Option<Result<PoolStats, QueryError>>) -> Self {
        Self {
            name,
            path,
            state: answer.as_ref().map_or(State::Stale, State::of),
            stats: answer.and_then(Result::ok),
        }
    }
}

/// All pools of the runtime directory.
pub(super) fn pools() -> Result<Vec<Pool>, Error> {
    let mut pools = xmem_core::read_pools()?;
    pools.retain(|pool| name_of(&pool.path).is_some());
    let live = pools.iter().filter(|pool| pool.live);
    let live: Vec<_> = live.map(|pool| &pool.name).collect();
    let mut answers = xmem_core::query_all(&live).into_iter();
    let pools = pools.into_iter().map(|pool| {
        let answer = if pool.live { answers.next() } else { None };
        Pool::new(pool.name, pool.path, answer)
    });
    Ok(pools.collect())
}

/// Queries the pools with these names.
pub(super) fn ask(names: Vec<String>) -> Vec<Pool> {
    let answers = xmem_core::query_all(&names);
    let pools = names.into_iter().zip(answers).map(|(name, answer)| {
        let path = xmem_core::socket_path(&name).unwrap_or_default();
        Pool::new(name, path, Some(answer))
    });
    pools.collect()
}

/// The figures of each pool as `show` prints them, with its state.
pub(super) fn as_json(pools: &[Pool]) -> Result<Vec<Value>, Error> {
    let as_json = |pool: &Pool| {
        let mut value = match &pool.stats {
            Some(stats) => show::as_json(stats)?,
            None => serde_json::json!({ "pool": pool.name }),
        };
        value["state"] = serde_json::to_value(pool.state)?;
        Ok(value)
    };
    pools.iter().map(as_json).collect()
}

/// The text for an empty list. The directory may not exist, because the first producer creates it.
pub(super) fn no_pools() -> String {
    let dir = xmem_core::runtime_dir();
    let none = if dir.exists() {
        ""
    } else {
        ", which does not exist yet"
    };
    format!("no pools in {}{none}", dir.display())
}

pub(crate) fn run(format: Format, out: &mut impl Write) -> Result<(), Error> {
    let rows: Vec<Row> = pools()?.into_iter().map(Row::from).collect();
    if format == Format::Json {
        return json(out, &rows);
    }
    if rows.is_empty() {
        writeln!(out, "{}", no_pools())?;
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
                it.delivery,
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

/// The description of a pool of buffers by number.
pub(super) fn buffers_of(writers: usize) -> String {
    let e = if writers == 1 { "" } else { "es" };
    format!("buffers of {writers} process{e}")
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
            stats: pool.stats.map(Answer::from),
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
