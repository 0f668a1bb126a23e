// SPDX-License-Identifier: MPL-2.0

//! The resource usage of a process over time, and whether it grows.

use std::{fmt, fs};

use crate::Error;
use crate::tally::Tally;

/// The result of a pool.
pub(super) struct Outcome {
    pub(super) name: &'static str,
    pub(super) tally: Tally,
    /// The lifetime of the pool in seconds.
    pub(super) seconds: f64,
    pub(super) usage: [Series; 3],
    /// The number of segments of the producer that still exist.
    pub(super) segments: usize,
}

/// The figures of a process. Growth from the first third of the run to the last third is allowed up to a part of the first value,
/// plus a number.
const FIGURES: [(&str, f64, f64); 4] = [
    ("heap, KiB", 0.0, 64.0),
    ("shared memory, KiB", 0.25, 4096.0),
    ("descriptors", 0.0, 8.0),
    ("mappings", 0.0, 8.0),
];

/// The resource usage of a process at one time, in the order of `FIGURES`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage([f64; 4]);

impl Usage {
    pub(super) fn of(pid: u32) -> Result<Self, Error> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next());
            value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let mappings = fs::read_to_string(format!("/proc/{pid}/maps"))?
            .lines()
            .count();
        Ok(Self([
            kib("RssAnon:"),
            kib("RssShmem:"),
            descriptors as f64,
            mappings as f64,
        ]))
    }
}

/// The names of the segments that a process has mapped.
pub(super) fn segments_of(pid: u32) -> Result<Vec<String>, Error> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let names = maps
        .lines()
        .filter_map(|line| Some(line.split_once("/dev/shm/xmem-")?.1))
        .filter_map(|name| name.split_whitespace().next());
    Ok(names.map(|name| format!("xmem-{name}")).collect())
}

/// The resource usage of a process over time.
#[derive(Debug, Default)]
pub(super) struct Series {
    usage: Vec<Usage>,
    /// Seconds between two samples.
    every: f64,
}

/// One figure over time.
#[derive(Debug, PartialEq)]
struct Trend {
    first: f64,
    last: f64,
    /// Growth per hour, by linear regression.
    slope: f64,
    flat: bool,
}

impl Series {
    pub(super) fn new(every: u64) -> Self {
        Self {
            usage: Vec::new(),
            every: every as f64,
        }
    }

    pub(super) fn push(&mut self, usage: Usage) {
        self.usage.push(usage);
    }

    fn trend(&self, figure: usize) -> Trend {
        let values: Vec<f64> = self.usage.iter().map(|usage| usage.0[figure]).collect();
        let third = values.len().div_ceil(3);
        let first = median(&values[..third]);
        let last = median(&values[values.len() - third..]);
        let (_, part, number) = FIGURES[figure];
        Trend {
            first,
            last,
            slope: slope(&values) * 3600.0 / self.every,
            flat: last <= first * (1.0 + part) + number,
        }
    }
}

/// The median of the values. A single sample during a join or a leave has no effect on it.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The slope per value, by least squares.
fn slope(values: &[f64]) -> f64 {
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let at = (0..values.len()).map(|at| at as f64 - middle);
    let (over, under) = (at.zip(values)).fold((0.0, 0.0), |(over, under), (at, value)| {
        (over + at * (value - mean), under + at * at)
    });
    if under > 0.0 { over / under } else { 0.0 }
}

/// The processes of each pool that are measured.
const ROLES: [&str; 3] = ["producer", "consumer that stays", "consumer that rejoins"];

/// All samples, one per line.
pub(super) fn csv(outcomes: &[Outcome]) -> String {
    let mut text = "pool,process,seconds,heap KiB,shared KiB,descriptors,mappings\n".to_owned();
    for Outcome { name, usage, .. } in outcomes {
        for (role, series) in ROLES.iter().zip(usage) {
            for (at, Usage(values)) in (1..).zip(&series.usage) {
                let seconds = f64::from(at) * series.every;
                let values = values.map(|value| value.to_string()).join(",");
                text += &format!("{name},{role},{seconds},{values}\n");
            }
        }
    }
    text
}

/// Prints the resource usage of each process: the medians of the first and the last third, and the growth per hour. Returns whether
/// nothing grows.
pub(super) fn report(outcomes: &[Outcome]) -> bool {
    let names = FIGURES.map(|(name, _, _)| name);
    println!(
        "\n| process | {} |\n|---|---|---|---|---|",
        names.join(" | ")
    );
    let mut passed = true;
    for Outcome { name, usage, .. } in outcomes {
        for (role, series) in ROLES.iter().zip(usage) {
            let trends: Vec<Trend> = (0..FIGURES.len()).map(|at| series.trend(at)).collect();
            let cells: Vec<String> = trends.iter().map(ToString::to_string).collect();
            println!("| {name}, {role} | {} |", cells.join(" | "));
            passed &= !series.usage.is_empty() && trends.iter().all(|trend| trend.flat);
        }
    }
    passed
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.flat { "" } else { " **GROWS**" };
        write!(
            f,
            "{} → {} ({:+.0}){verdict}",
            self.first, self.last, self.slope
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(descriptors: impl Iterator<Item = f64>) -> Series {
        Series {
            usage: descriptors.map(|n| Usage([0.0, 0.0, n, 0.0])).collect(),
            every: 10.0,
        }
    }

    #[test]
    fn one_descriptor_a_minute_is_growth() {
        let leak = series((0..120).map(|at| 20.0 + f64::from(at / 6)));
        let trend = leak.trend(2);
        assert!(!trend.flat, "{trend:?}");
        assert_eq!(trend.slope.round(), 60.0);
    }

    #[test]
    fn fluctuation_is_not_growth() {
        let noise = series((0..120).map(|at| 20.0 + f64::from(at * 7 % 13)));
        assert!(noise.trend(2).flat);
        // An outlier in the last sample, and values that grow until the pool is full.
        let edges = (0..120).map(|at| {
            if at == 119 {
                90.0
            } else {
                f64::from(at.min(10))
            }
        });
        assert!(series(edges).trend(2).flat);
    }
}
