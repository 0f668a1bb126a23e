// SPDX-License-Identifier: MPL-2.0

//! The figures as Markdown.

use std::fmt::Write;

use crate::figures::Figures;
use crate::rounds::{Counts, Pair, Results};
use crate::scenario::{Scenario, Transport};

/// Where it was measured.
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
pub(crate) fn section(scenario: Scenario, results: &Results) -> String {
    let shm = Row::of_pair(&results.shm, &results.shm_counts);
    let xmem = Row::of_pair(&results.xmem, &results.xmem_counts);
    let ratio = xmem.divided_by(&shm);
    let floor = Row {
        p50: Some(median(&results.floor, |f| f.p50_ns as f64)),
        p99: Some(median(&results.floor, |f| f.p99_ns as f64)),
        ..Row::default()
    };
    let alone = Row {
        p50: Some(median(&results.alone, |f| f.p50_ns as f64)),
        p99: Some(median(&results.alone, |f| f.p99_ns as f64)),
        cpu: [Some(median(&results.alone, cpu)), None],
        ..Row::default()
    };

    // Writing to a String cannot fail.
    let mut text = format!("### {}\n\n", scenario.title());
    text += "| | p50 µs | p99 µs | CPU producer µs | CPU consumer µs | calls producer | calls consumer | faults producer | faults consumer | arrived |\n";
    text += "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
    let _ = writeln!(text, "| a bare eventfd wake | {} |", floor.cells(1e3));
    let _ = writeln!(text, "| one process, no transport | {} |", alone.cells(1e3));
    let _ = writeln!(text, "| {} | {} |", Transport::Shm.name(), shm.cells(1e3));
    let _ = writeln!(text, "| {} | {} |", Transport::Xmem.name(), xmem.cells(1e3));
    let _ = writeln!(text, "| **xmem / shm** | {} |", ratio.cells(1.0));
    text += "\nSystem calls per frame:\n\n";
    for (transport, counts) in [
        (Transport::Shm, &results.shm_counts),
        (Transport::Xmem, &results.xmem_counts),
    ] {
        let name = transport.name();
        let _ = writeln!(
            text,
            "- {name}: producer {}; consumer {}",
            list(&counts.calls[0]),
            list(&counts.calls[1])
        );
    }
    text
}

/// Per frame; times in nanoseconds, producer before consumer.
#[derive(Debug, Default, Clone, Copy)]
struct Row {
    p50: Option<f64>,
    p99: Option<f64>,
    cpu: [Option<f64>; 2],
    calls: [Option<f64>; 2],
    faults: [Option<f64>; 2],
    arrived: Option<f64>,
}

impl Row {
    fn of_pair(pairs: &[Pair], counts: &Counts) -> Self {
        let producers: Vec<Figures> = pairs.iter().map(|pair| pair.producer).collect();
        let consumers: Vec<Figures> = pairs.iter().map(|pair| pair.consumer).collect();
        let sum = |calls: &[(String, f64)]| Some(calls.iter().map(|(_, count)| count).sum());
        let sent: u64 = producers.iter().map(|f| f.frames).sum();
        let arrived: u64 = consumers.iter().map(|f| f.frames).sum();
        Self {
            p50: Some(median(&consumers, |f| f.p50_ns as f64)),
            p99: Some(median(&consumers, |f| f.p99_ns as f64)),
            cpu: [Some(median(&producers, cpu)), Some(median(&consumers, cpu))],
            calls: [sum(&counts.calls[0]), sum(&counts.calls[1])],
            faults: counts.page_faults.map(Some),
            arrived: Some(arrived as f64 / sent.max(1) as f64),
        }
    }

    fn divided_by(&self, other: &Self) -> Self {
        let divide = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) if b > 0.0 => Some(a / b),
            _ => None,
        };
        let both =
            |a: [Option<f64>; 2], b: [Option<f64>; 2]| [divide(a[0], b[0]), divide(a[1], b[1])];
        Self {
            p50: divide(self.p50, other.p50),
            p99: divide(self.p99, other.p99),
            cpu: both(self.cpu, other.cpu),
            calls: both(self.calls, other.calls),
            faults: both(self.faults, other.faults),
            arrived: divide(self.arrived, other.arrived),
        }
    }

    fn cells(&self, time_unit: f64) -> String {
        let cell = |value: Option<f64>| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
        };
        let time = |value: Option<f64>| {
            let digits = if time_unit > 1.0 { 1 } else { 2 };
            value.map_or_else(
                || "–".to_owned(),
                |value| format!("{:.digits$}", value / time_unit),
            )
        };
        [
            time(self.p50),
            time(self.p99),
            time(self.cpu[0]),
            time(self.cpu[1]),
            cell(self.calls[0]),
            cell(self.calls[1]),
            cell(self.faults[0]),
            cell(self.faults[1]),
            cell(self.arrived),
        ]
        .join(" | ")
    }
}

fn cpu(figures: &Figures) -> f64 {
    figures.cpu_ns as f64 / figures.frames.max(1) as f64
}

fn median(figures: &[Figures], value: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = figures.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let of = |times: &[u64]| {
            let figures: Vec<Figures> = times
                .iter()
                .map(|time| Figures {
                    frames: 1,
                    cpu_ns: *time,
                    ..Figures::default()
                })
                .collect();
            median(&figures, cpu)
        };
        assert_eq!(of(&[9, 1, 5]), 5.0);
        assert_eq!(of(&[4, 1, 9, 2]), 3.0);
        assert!(of(&[]).is_nan());
    }
}
