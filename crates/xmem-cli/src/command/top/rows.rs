// SPDX-License-Identifier: MPL-2.0

//! The figures of pools and consumers as table cells.

use unicode_width::UnicodeWidthStr;
use xmem_core::discovery::printable;
use xmem_core::{ConsumerStats, Delivery, PoolStats};

use crate::format::{milliseconds, process};
use crate::pools::{Pool, caps_summary};

/// The columns of a table.
pub(super) struct Columns {
    /// With two spaces between them.
    pub(super) titles: &'static str,
    /// The columns with numbers.
    pub(super) numbers: &'static [usize],
    /// The columns in the order in which they are omitted on a narrow screen.
    less: &'static [usize],
}

pub(super) const POOLS: Columns = Columns {
    titles: "POOL  STATE  FORMAT  FPS  SLOTS  CONSUMERS  COPIED  MISSED  LATENCY ms  HELD s  WAITS FOR",
    numbers: &[3, 4, 5, 6, 7, 8, 9],
    less: &[2, 6, 9, 8, 7, 10, 5, 4, 3, 1],
};

const CONSUMERS: Columns = Columns {
    titles: "CONSUMER  PID  HELD  HELD s  RECEIVED  MISSED  COPIED  DROPPED  LATENCY ms",
    numbers: &[1, 2, 3, 4, 5, 6, 7, 8],
    less: &[7, 6, 4, 1, 8, 3, 5, 2],
};

/// The rows, with the columns that fit on the screen.
#[derive(Debug)]
pub(super) struct Rows {
    /// Title, width, and whether the column has numbers.
    pub(super) columns: Vec<(&'static str, u16, bool)>,
    pub(super) cells: Vec<Vec<String>>,
}

impl Rows {
    pub(super) fn of_pools<'a>(pools: impl Iterator<Item = &'a Pool>, width: u16) -> Self {
        Self::new(&POOLS, pools.map(of_pool), width)
    }

    pub(super) fn of_consumers(stats: &PoolStats, width: u16) -> Self {
        Self::new(&CONSUMERS, stats.consumers.iter().map(of_consumer), width)
    }

    fn new<const N: usize>(
        all: &Columns,
        rows: impl Iterator<Item = [String; N]>,
        width: u16,
    ) -> Self {
        let rows: Vec<_> = rows.collect();
        let titles: Vec<_> = all.titles.split("  ").collect();
        let widths: [usize; N] = std::array::from_fn(|at| {
            let cells = rows.iter().map(|row| row[at].width());
            cells.max().unwrap_or(0).max(titles[at].width())
        });
        let mut shown: Vec<usize> = (0..N).collect();
        // One more for the space between columns.
        let needed = |shown: &[usize]| shown.iter().map(|at| widths[*at] + 1).sum::<usize>();
        for at in all.less {
            if needed(&shown) <= usize::from(width) + 1 {
                break;
            }
            shown.retain(|other| other != at);
        }
        let column = |at: &usize| {
            let width = u16::try_from(widths[*at]).unwrap_or(u16::MAX);
            (titles[*at], width, all.numbers.contains(at))
        };
        Self {
            columns: shown.iter().map(column).collect(),
            cells: rows
                .iter()
                .map(|row| shown.iter().map(|at| row[*at].clone()).collect())
                .collect(),
        }
    }
}

/// The cells of a pool, in the order of [`POOLS`].
pub(super) fn of_pool(pool: &Pool) -> [String; 11] {
    let none = || "-".to_owned();
    let name = printable(&pool.name);
    let state = pool.state.words().to_owned();
    let Some(stats) = &pool.stats else {
        let mut row = std::array::from_fn(|_| none());
        (row[0], row[1]) = (name, state);
        return row;
    };
    let consumers = || stats.consumers.iter();
    let waits_for = consumers().find(|it| it.waited_for_ns > 0);
    let format = caps_summary(stats).map_or_else(none, |format| printable(&format));
    let copied = stats.copied + consumers().map(|it| it.copied).sum::<u64>();
    [
        name,
        if stats.delivery == Delivery::Lossless {
            "lossless".to_owned()
        } else {
            state
        },
        format,
        format!("{:.1}", stats.fps),
        format!("{}/{}", stats.slots_held, stats.slots),
        stats.consumers.len().to_string(),
        copied.to_string(),
        missed(stats).to_string(),
        milliseconds(latency_ns(stats)),
        seconds(
            consumers()
                .map(|it| it.oldest_held_age_ns)
                .max()
                .unwrap_or(0),
        ),
        waits_for.map_or_else(none, |it| printable(&it.name)),
    ]
}

/// The cells of a consumer, in the order of [`CONSUMERS`].
fn of_consumer(consumer: &ConsumerStats) -> [String; 9] {
    let name = printable(&consumer.name);
    [
        match (consumer.waited_for_ns, consumer.via.as_str()) {
            (0, "") => name,
            (0, via) => format!("{name} via {}", printable(via)),
            (ns, _) => format!("{name}, waited for {} s", seconds(ns)),
        },
        process(consumer.pid),
        format!("{}/{}", consumer.held, consumer.budget),
        seconds(consumer.oldest_held_age_ns),
        consumer.received.to_string(),
        consumer.missed.to_string(),
        consumer.copied.to_string(),
        consumer.dropped.to_string(),
        milliseconds(consumer.latency_ns),
    ]
}

/// The frames that consumers missed, in total.
pub(super) fn missed(stats: &PoolStats) -> u64 {
    stats.consumers.iter().map(|it| it.missed).sum()
}

/// The largest latency of a consumer.
pub(super) fn latency_ns(stats: &PoolStats) -> u64 {
    let latencies = stats.consumers.iter().map(|it| it.latency_ns);
    latencies.max().unwrap_or(0)
}

fn seconds(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e9)
}
