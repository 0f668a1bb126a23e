// SPDX-License-Identifier: MPL-2.0

//! `xmem watch POOL`

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use xmem_core::discovery::printable;
use xmem_core::{ConnectError, PoolStats};

use super::buffers;
use crate::Error;
use crate::cli::{Format, Watch};
use crate::format::{Table, json, milliseconds, process, terminal_width, to_stderr};
use crate::pools::stats_json;
use crate::tool::end_as_first_process;

/// The longest interval between attempts to find a missing producer.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Moves the cursor to the upper left corner and clears the screen below it.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(crate) fn run(watch: &Watch, out: &mut impl Write) -> Result<(), Error> {
    let interval = watch.interval;
    end_as_first_process()?;
    let on_terminal = std::io::stdout().is_terminal();
    let mut rates = Rates {
        interval,
        last: HashMap::new(),
        now: Instant::now(),
    };
    let mut shown = 0;
    let mut is_waiting = false;
    loop {
        let start = Instant::now();
        let pause = match xmem_core::discovery::query(&watch.pool) {
            Ok(stats) => {
                if watch.output.format == Format::Json {
                    json(out, &stats_json(&stats)?)?;
                } else {
                    if on_terminal {
                        write!(out, "{CLEAR}")?;
                    }
                    print(&stats, &mut rates, out)?;
                }
                out.flush()?;
                is_waiting = false;
                shown += 1;
                interval
            }
            // Wait: a producer may be started or restarted.
            Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                refuse_buffers(&watch.pool)?;
                if !std::mem::replace(&mut is_waiting, true) {
                    to_stderr(format_args!("{error}; waiting for it"));
                }
                interval.min(POLL_INTERVAL)
            }
            Err(error) => return Err(error.into()),
        };
        if watch.count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
        thread::sleep(pause.saturating_sub(start.elapsed()));
    }
}

/// The error for a pool of buffers by number, which has no producer of its own.
fn refuse_buffers(pool: &OsStr) -> Result<(), Error> {
    let Some(pool) = pool.to_str() else {
        return Ok(());
    };
    let writers: Vec<_> = buffers::writers(pool)
        .into_iter()
        .map(|it| it.name)
        .collect();
    if writers.is_empty() {
        return Ok(());
    }
    let pool = printable(pool);
    Err(format!(
        "{pool} is a pool of buffers by number: use `xmem show {pool}`, or watch the pool of a process that writes: {}",
        printable(&writers.join(", "))
    )
    .into())
}

fn print(stats: &PoolStats, rates: &mut Rates, out: &mut impl Write) -> Result<(), Error> {
    let titles = "NAME  PID  FRAMES  FPS  COPIED  DROPPED  MISSED  HELD  LATENCY ms";
    let mut table = Table::new(titles, &[1, 2, 3, 4, 5, 6, 7, 8]);
    rates.tick();
    table.row([
        stats.pool.clone(),
        process(stats.pid),
        stats.published.to_string(),
        // A restarted producer counts from 0, and the ids of its consumers are new.
        rates.per_second((stats.pid, None), stats.published),
        stats.copied.to_string(),
        stats.dropped.to_string(),
        String::new(),
        format!("{}/{}", stats.slots_held, stats.slots),
        String::new(),
    ]);
    for consumer in &stats.consumers {
        table.row([
            match consumer.waited_for_ns {
                0 => format!("  {}", consumer.name),
                _ => format!("  {} (waited for)", consumer.name),
            },
            process(consumer.pid),
            consumer.received.to_string(),
            rates.per_second((stats.pid, Some(consumer.id)), consumer.received),
            consumer.copied.to_string(),
            consumer.dropped.to_string(),
            consumer.missed.to_string(),
            format!("{}/{}", consumer.held, consumer.budget),
            milliseconds(consumer.latency_ns),
        ]);
    }
    match terminal_width() {
        Some(width) => table.print_cut(width, out),
        None => table.print(out),
    }
}

/// Computes frames per second from counters: the increase since the last update.
#[derive(Debug)]
struct Rates {
    interval: Duration,
    last: HashMap<(u32, Option<u64>), (Instant, u64)>,
    now: Instant,
}

impl Rates {
    /// Begins a new update.
    fn tick(&mut self) {
        let now = Instant::now();
        // Forget a consumer that was not listed for some time.
        let patience = 10 * self.interval.max(POLL_INTERVAL);
        self.last.retain(|_, (seen, _)| now - *seen < patience);
        self.now = now;
    }

    fn per_second(&mut self, key: (u32, Option<u64>), count: u64) -> String {
        let before = self.last.insert(key, (self.now, count));
        let Some((then, before)) = before else {
            return "-".to_owned();
        };
        let seconds = (self.now - then).as_secs_f64();
        format!("{:.1}", count.saturating_sub(before) as f64 / seconds)
    }
}
