// SPDX-License-Identifier: MPL-2.0

//! `xmem watch POOL`

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use xmem_core::{PoolStats, QueryError};

use crate::Error;
use crate::cli::Format;
use crate::format::{Table, json, milliseconds};

const INTERVAL: Duration = Duration::from_secs(1);
/// Puts the cursor into the upper left corner and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(crate) fn run(
    pool: &str,
    count: Option<u64>,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Error> {
    let on_terminal = std::io::stdout().is_terminal();
    let mut rates = Rates::default();
    let mut round = 0;
    loop {
        let start = Instant::now();
        match xmem_core::query(pool) {
            Ok(stats) if format == Format::Json => json(out, &stats)?,
            Ok(stats) => {
                if on_terminal {
                    write!(out, "{CLEAR}")?;
                }
                print(&stats, &mut rates, out)?;
            }
            // A pool that was there may come back: a producer restarts.
            Err(error @ (QueryError::NotFound { .. } | QueryError::NoAnswer { .. }))
                if round > 0 =>
            {
                eprintln!("xmem: {error}");
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
        round += 1;
        if count.is_some_and(|count| round >= count) {
            return Ok(());
        }
        thread::sleep(INTERVAL.saturating_sub(start.elapsed()));
    }
}

fn print(stats: &PoolStats, rates: &mut Rates, out: &mut impl Write) -> Result<(), Error> {
    let mut table = Table::new([
        "WHO",
        "PID",
        "FRAMES",
        "FPS",
        "COPIED",
        "DROPPED",
        "MISSED",
        "HELD",
        "LATENCY ms",
    ]);
    table.numbers(&[1, 2, 3, 4, 5, 6, 7, 8]);
    rates.tick();
    table.row([
        stats.pool.clone(),
        stats.pid.to_string(),
        stats.published.to_string(),
        // A restarted producer counts from 0 again, and its consumers are numbered anew.
        rates.per_second((stats.pid, None), stats.published),
        stats.copied.to_string(),
        stats.dropped.to_string(),
        String::new(),
        format!("{}/{}", stats.slots_held, stats.slots),
        String::new(),
    ]);
    for consumer in &stats.consumers {
        table.row([
            format!("  {}", consumer.name),
            consumer.pid.to_string(),
            consumer.received.to_string(),
            rates.per_second((stats.pid, Some(consumer.id)), consumer.received),
            consumer.copied.to_string(),
            String::new(),
            consumer.missed.to_string(),
            format!("{}/{}", consumer.held, consumer.budget),
            milliseconds(consumer.latency_ns),
        ]);
    }
    table.print(out)
}

/// Turns counters into frames per second: what was counted since the last round.
#[derive(Debug, Default)]
struct Rates {
    last: HashMap<(u32, Option<u64>), (Instant, u64)>,
    now: Option<Instant>,
}

impl Rates {
    /// A new round begins.
    fn tick(&mut self) {
        let now = Instant::now();
        // Who did not appear for a while is gone.
        self.last.retain(|_, (seen, _)| now - *seen < 10 * INTERVAL);
        self.now = Some(now);
    }

    fn per_second(&mut self, who: (u32, Option<u64>), count: u64) -> String {
        let now = self.now.unwrap_or_else(Instant::now);
        let before = self.last.insert(who, (now, count));
        let Some((then, before)) = before else {
            return "-".to_owned();
        };
        let seconds = (now - then).as_secs_f64();
        format!("{:.1}", count.saturating_sub(before) as f64 / seconds)
    }
}
