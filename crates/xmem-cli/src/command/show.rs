// SPDX-License-Identifier: MPL-2.0

//! `xmem show POOL`

use std::ffi::OsStr;
use std::io::Write;

use xmem_core::discovery::printable;
use xmem_core::{BudgetLimit, PoolStats};

use super::buffers;
use crate::Error;
use crate::cli::Format;
use crate::format::{Table, json, milliseconds, process, size};
use crate::pools::{headline, stats_json, unquoted};

pub(crate) fn run(
    pool: &OsStr,
    verbose: bool,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Error> {
    match xmem_core::discovery::query(pool) {
        Ok(stats) => match format {
            Format::Json => json(out, &stats_json(&stats)?),
            Format::Table => print(&stats, verbose, out),
        },
        Err(error) => match pool.to_str().map(|pool| (pool, buffers::writers(pool))) {
            Some((pool, writers)) if !writers.is_empty() => {
                buffers::show(pool, &writers, format, out)
            }
            _ => Err(error.into()),
        },
    }
}

fn print(stats: &PoolStats, verbose: bool, out: &mut impl Write) -> Result<(), Error> {
    writeln!(out, "{}", headline(stats))?;
    writeln!(out, "  producer {}", process(stats.pid))?;
    writeln!(
        out,
        "  frames   {} published ({} without a copy, {} copied), {} dropped",
        stats.published, stats.zero_copy, stats.copied, stats.dropped
    )?;
    if stats.scarce > 0 {
        writeln!(
            out,
            "  scarce   {} frames were copied or dropped, because upstream had few buffers left",
            stats.scarce
        )?;
    }
    writeln!(
        out,
        "  slots    {} of at most {}, {} held",
        stats.slots, stats.max_slots, stats.slots_held
    )?;
    writeln!(
        out,
        "  memory   {} in {} regions",
        size(stats.bytes),
        stats.regions
    )?;
    if !stats.devices.is_empty() {
        writeln!(
            out,
            "  devices  {} on {}",
            size(stats.device_bytes),
            printable(&stats.devices.join(", "))
        )?;
    }
    if stats.budget_limit != BudgetLimit::Asked {
        writeln!(
            out,
            "  budgets  smaller than asked for: raise {}",
            stats.budget_limit
        )?;
    }
    for consumer in stats.consumers.iter().filter(|it| it.waited_for_ns > 0) {
        writeln!(
            out,
            "  waits    for {} (process {}), {} ms so far",
            printable(&consumer.name),
            process(consumer.pid),
            milliseconds(consumer.waited_for_ns)
        )?;
    }
    if stats.cut_off + stats.timed_out > 0 {
        writeln!(
            out,
            "  removed  {} for an invalid lease page, {} by lossless-timeout",
            stats.cut_off, stats.timed_out
        )?;
    }
    for (key, value) in stats.sticky.iter().filter(|_| verbose) {
        writeln!(
            out,
            "  {:<8} {}",
            printable(key),
            printable(&unquoted(value))
        )?;
    }
    writeln!(out)?;
    consumers(stats, out)
}

/// Prints the table of a pool's consumers.
fn consumers(stats: &PoolStats, out: &mut impl Write) -> Result<(), Error> {
    if stats.consumers.is_empty() {
        writeln!(out, "no consumers")?;
        return Ok(());
    }
    let titles = "CONSUMER  PID  UID  HELD  BUDGET  RECEIVED  MISSED  COPIED  DROPPED  LATENCY ms  OLDEST HELD ms  DEVICE";
    let mut table = Table::new(titles, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for consumer in &stats.consumers {
        let name = match (consumer.via.as_str(), consumer.leaving) {
            ("", false) => consumer.name.clone(),
            ("", true) => format!("{} (leaving)", consumer.name),
            (via, _) => format!("{} via {via}", consumer.name),
        };
        table.row([
            name,
            process(consumer.pid),
            consumer.uid.to_string(),
            consumer.held.to_string(),
            consumer.budget.to_string(),
            consumer.received.to_string(),
            consumer.missed.to_string(),
            consumer.copied.to_string(),
            consumer.dropped.to_string(),
            milliseconds(consumer.latency_ns),
            milliseconds(consumer.oldest_held_age_ns),
            if consumer.device.is_empty() {
                "-".to_owned()
            } else {
                consumer.device.clone()
            },
        ]);
    }
    table.print(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_from_a_producer_are_escaped() {
        let mut stats = PoolStats::default();
        stats.pool = "\x1b1".into();
        stats.devices = vec!["\x1b2".into()];
        stats.sticky = vec![("\x1b3".into(), "\x1b4".into())];
        let mut out = Vec::new();
        print(&stats, true, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for n in 1..=4 {
            assert!(text.contains(&format!("\u{fffd}{n}")), "{text:?}");
        }
    }
}
