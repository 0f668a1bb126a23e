// SPDX-License-Identifier: MPL-2.0

//! Formats the figures as Markdown.

use std::fmt::Write;

use crate::Error;
use crate::figures::{Figures, latency_ns};
use crate::group::{Case, Counts, Group, Measured, Results};
use crate::scenario::Scenario;
use crate::statistics::mean;
use crate::table::{Cell, Column, Table};

/// Figures per frame. Those of consumers are averages over all consumers, except for `arrived, worst`.
const COLUMNS: &[Column] = &[
    Column::new("p50 µs", 1),
    Column::new("p99 µs", 1),
    Column::new("p99.9 µs", 1),
    Column::new("CPU producer µs", 1),
    Column::new("CPU consumer µs", 1),
    Column::new("calls producer", 2),
    Column::new("calls consumer", 2),
    Column::new("faults producer", 2),
    Column::new("faults consumer", 2),
    Column::new("arrived", 2),
    Column::new("arrived, worst", 2),
];

/// The system on which the program measured, and its settings.
pub(crate) fn heading(rounds: u32, seconds: u32, fps: u32) -> String {
    let file = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = file("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{model}, {cores} cores used; Linux {}; {}; {fps} frames a second; medians of {rounds} rounds of {seconds} s\n",
        file("/proc/sys/kernel/osrelease").trim(),
        gst::version_string(),
    )
}

/// The table of one scenario.
pub(crate) fn section(scenario: Scenario, results: &Results) -> Result<String, Error> {
    let mut table = Table::new(COLUMNS);
    let wakeup = cells_of_process(&results.wakeup, false)?;
    table.row("eventfd wake-up", &wakeup);
    if scenario.has_alone() {
        let alone = cells_of_process(&results.alone, true)?;
        table.row("one process, no transport", &alone);
    }
    for consumers in scenario.consumers() {
        let name = |name: &str| match (scenario.consumers().len(), consumers) {
            (1, _) => name.to_owned(),
            (_, 1) => format!("{name}, 1 consumer"),
            (_, many) => format!("{name}, {many} consumers"),
        };
        let cases = results.cases.iter();
        let cases = cases.filter(|measured| measured.case.consumers == *consumers);
        let rows = cases
            .map(|measured| Ok((measured.case.transport, cells(measured)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        for (transport, cells) in &rows {
            table.row(&name(transport.name()), cells);
        }
        let xmem = rows.iter().find(|(transport, _)| transport.is_xmem());
        let (_, xmem) = xmem.ok_or("xmem was not measured")?;
        for (other, cells) in rows.iter().filter(|(transport, _)| !transport.is_xmem()) {
            let ratio = format!("xmem / {}", other.short_name());
            table.ratio(&name(&ratio), xmem, cells);
        }
    }
    Ok(table.markdown() + "\n" + &calls(results))
}

/// Times in microseconds.
fn cells(measured: &Measured) -> Result<Vec<Cell>, Error> {
    let rounds = &measured.rounds;
    let latency = |share| {
        let rounds = rounds.iter();
        latency_us(rounds.map(|round| round.consumers.as_slice()), share)
    };
    let producers = rounds
        .iter()
        .map(|round| Some(mean(round.producers.iter().map(cpu_us))));
    let consumers = rounds
        .iter()
        .map(|round| Some(mean(round.consumers.iter().map(cpu_us))));
    let sum = |calls: &[(String, f64)]| calls.iter().map(|(_, count)| count).sum();
    let Counts { calls, page_faults } = &measured.counts;
    // The share of the sent frames that each consumer received, over all rounds.
    let Case {
        consumers: of_pool,
        pools,
        ..
    } = measured.case;
    let arrived = (0..of_pool * pools).map(|consumer| {
        let frames = |of: &dyn Fn(&Group) -> &Figures| -> u64 {
            rounds.iter().map(|round| of(round).frames).sum()
        };
        let sent = frames(&|round| &round.producers[consumer / of_pool]);
        frames(&|round| &round.consumers[consumer]) as f64 / sent.max(1) as f64
    });
    let worst = arrived.clone().min_by(f64::total_cmp);
    Ok(vec![
        latency(0.5)?,
        latency(0.99)?,
        latency(0.999)?,
        Cell::Rounds(producers.collect()),
        Cell::Rounds(consumers.collect()),
        Cell::Once(sum(&calls[0])),
        Cell::Once(sum(&calls[1])),
        Cell::Once(page_faults[0]),
        Cell::Once(page_faults[1]),
        Cell::Once(mean(arrived)),
        worst.into(),
    ])
}

/// The figures of one process.
fn cells_of_process(rounds: &[Figures], has_cpu: bool) -> Result<Vec<Cell>, Error> {
    let latency = |share| latency_us(rounds.iter().map(std::slice::from_ref), share);
    let mut cells = vec![latency(0.5)?, latency(0.99)?, latency(0.999)?];
    if has_cpu {
        cells.push(Cell::Rounds(rounds.iter().map(cpu_us).map(Some).collect()));
    }
    Ok(cells)
}

/// The latency that this share of all frames did not exceed, for each round.
fn latency_us<'a>(rounds: impl Iterator<Item = &'a [Figures]>, share: f64) -> Result<Cell, Error> {
    let of_round = |consumers| Ok(latency_ns(consumers, share)?.map(|ns| ns / 1e3));
    let rounds = rounds.map(of_round).collect::<Result<_, Error>>()?;
    Ok(Cell::Rounds(rounds))
}

/// The system calls of each transport by name.
fn calls(results: &Results) -> String {
    let mut text = "System calls per frame:\n\n".to_owned();
    let several = |measured: &&Measured| measured.case.consumers > 1;
    let has_several = results.cases.iter().any(|measured| several(&measured));
    for measured in &results.cases {
        let name = measured.case.transport.name();
        let consumers = match measured.case.consumers {
            _ if !has_several => String::new(),
            1 => ", 1 consumer".to_owned(),
            many => format!(", {many} consumers"),
        };
        let [producer, consumer] = &measured.counts.calls;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "- {name}{consumers}: producer {}; a consumer {}",
            list(producer),
            list(consumer)
        );
    }
    text
}

/// Processor time per frame.
fn cpu_us(figures: &Figures) -> f64 {
    figures.cpu_ns as f64 / figures.frames.max(1) as f64 / 1e3
}

fn list(calls: &[(String, f64)]) -> String {
    if calls.is_empty() {
        return "none".to_owned();
    }
    let calls: Vec<String> = calls
        .iter()
        .map(|(name, count)| format!("{name} {count:.2}"))
        .collect();
    calls.join(", ")
}
