// SPDX-License-Identifier: MPL-2.0

//! `xmem show POOL`

use std::io::Write;

use xmem_core::PoolStats;

use crate::Error;
use crate::cli::Format;
use crate::format::{Table, json, milliseconds, printable, size};

pub(crate) fn run(pool: &str, format: Format, out: &mut impl Write) -> Result<(), Error> {
    let stats = xmem_core::query(pool)?;
    match format {
        Format::Json => json(out, &stats),
        Format::Table => print(&stats, out),
    }
}

fn print(stats: &PoolStats, out: &mut impl Write) -> Result<(), Error> {
    let state = if stats.eos { ", at its end" } else { "" };
    writeln!(
        out,
        "pool {}: producer {}, {}{state}",
        printable(&stats.pool),
        stats.pid,
        printable(&stats.delivery)
    )?;
    writeln!(
        out,
        "  frames   {} published ({} without a copy, {} copied), {} dropped",
        stats.published, stats.zero_copy, stats.copied, stats.dropped
    )?;
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
    if stats.cut_off + stats.timed_out > 0 {
        writeln!(
            out,
            "  sent off {} for a broken lease page, {} for holding all up",
            stats.cut_off, stats.timed_out
        )?;
    }
    for (key, value) in &stats.sticky {
        writeln!(out, "  {key:<8} {}", printable(value))?;
    }
    writeln!(out)?;
    consumers(stats, out)
}

/// The table of a pool's consumers.
fn consumers(stats: &PoolStats, out: &mut impl Write) -> Result<(), Error> {
    if stats.consumers.is_empty() {
        writeln!(out, "no consumers")?;
        return Ok(());
    }
    let mut table = Table::new([
        "CONSUMER",
        "PID",
        "UID",
        "HELD",
        "BUDGET",
        "RECEIVED",
        "MISSED",
        "COPIED",
        "LATENCY ms",
        "OLDEST HELD ms",
        "DEVICE",
    ]);
    table.numbers(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for consumer in &stats.consumers {
        let name = match (consumer.via.as_str(), consumer.leaving) {
            ("", false) => consumer.name.clone(),
            ("", true) => format!("{} (leaving)", consumer.name),
            (via, _) => format!("{} via {via}", consumer.name),
        };
        table.row([
            name,
            consumer.pid.to_string(),
            consumer.uid.to_string(),
            consumer.held.to_string(),
            consumer.budget.to_string(),
            consumer.received.to_string(),
            consumer.missed.to_string(),
            consumer.copied.to_string(),
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
