// SPDX-License-Identifier: MPL-2.0

//! The distribution of latencies.

use xmem_core::PoolStats;

/// Upper bounds in microseconds, with their names. Larger values are in one more class.
const BOUNDS: [(u64, &str); 7] = [
    (100, "0.1"),
    (300, "0.3"),
    (1_000, "1"),
    (3_000, "3"),
    (10_000, "10"),
    (30_000, "30"),
    (100_000, "100"),
];

/// The latencies of a pool's consumers at each update. The statistics have only smoothed latencies, which a single late frame
/// changes by an eighth.
#[derive(Debug, Default)]
pub(super) struct Histogram([u64; BOUNDS.len() + 1]);

impl Histogram {
    pub(super) fn add(&mut self, stats: &PoolStats) {
        // A consumer has no latency before its first frame.
        for consumer in stats.consumers.iter().filter(|it| it.latency_ns > 0) {
            let micros = consumer.latency_ns / 1000;
            let at = BOUNDS.iter().take_while(|(bound, _)| micros >= *bound);
            self.0[at.count()] += 1;
        }
    }

    /// A line for each class, at most `width` wide. Empty if nothing was recorded.
    pub(super) fn lines(&self, width: u16) -> Vec<String> {
        let all: u64 = self.0.iter().sum();
        if all == 0 {
            return Vec::new();
        }
        let most = self.0.iter().max().copied().unwrap_or(1);
        let room = u64::from(width.saturating_sub(20));
        let bounds = BOUNDS.iter().map(|(_, bound)| format!("< {bound}"));
        let names = bounds.chain([">= 100".to_owned()]);
        let line = |(count, name): (&u64, String)| {
            // Round up, so that each class with a value has a visible bar.
            let len = (count * room).div_ceil(most) as usize;
            format!(
                "{name:>7} ms  {:>3}%  {}",
                count * 100 / all,
                "█".repeat(len)
            )
        };
        self.0.iter().zip(names).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_sorted_into_classes() {
        let mut histogram = Histogram::default();
        let mut stats = PoolStats::default();
        for ns in [0, 99_999, 100_000, 299_999, 100_000_000] {
            let mut consumer = xmem_core::ConsumerStats::default();
            consumer.latency_ns = ns;
            stats.consumers.push(consumer);
        }
        assert_eq!(histogram.lines(40), Vec::<String>::new());
        histogram.add(&stats);
        assert_eq!(
            histogram.lines(24),
            [
                "  < 0.1 ms   25%  ██",
                "  < 0.3 ms   50%  ████",
                "    < 1 ms    0%  ",
                "    < 3 ms    0%  ",
                "   < 10 ms    0%  ",
                "   < 30 ms    0%  ",
                "  < 100 ms    0%  ",
                " >= 100 ms   25%  ██",
            ]
        );
    }
}
