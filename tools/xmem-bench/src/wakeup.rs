// SPDX-License-Identifier: MPL-2.0

//! The lower bound of the latency: one process wakes another process with an eventfd.
//!
//! The waker writes the current time to the eventfd. The kernel adds up the values that are written, and a read returns the sum.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io;
use rustix::time::ClockId;

use crate::Error;
use crate::figures::{Meter, now};

pub(crate) fn waker(count: u32, fps: u32) -> Result<(), Error> {
    let eventfd = std::io::stdin();
    let start = Instant::now();
    for number in 1..=count {
        let due = Duration::from_secs(1) / fps * number;
        thread::sleep(due.saturating_sub(start.elapsed()));
        io::write(&eventfd, &now(ClockId::Monotonic).to_ne_bytes())?;
    }
    Ok(())
}

pub(crate) fn sleeper(count: u32) -> Result<(), Error> {
    let eventfd = std::io::stdin();
    let meter = Meter::new()?;
    let start = meter.start()?;
    let mut left = u64::from(count);
    while left > 0 {
        let mut sum = [0; 8];
        io::read(&eventfd, &mut sum)?;
        let now = now(ClockId::Monotonic);
        let (wakes, latency) = split_sum(u64::from_ne_bytes(sum), now);
        meter.arrived(now, latency);
        meter.count();
        left = left.saturating_sub(wakes);
    }
    println!("{}", serde_json::to_string(&meter.figures_since(&start)?)?);
    Ok(())
}

/// The number of wake-ups in a sum of times, and their average age. A sum has several wake-ups if this process did not run in
/// between. The times differ by little, so dividing by the current time gives their number.
fn split_sum(sum: u64, now: u64) -> (u64, u64) {
    let wakes = ((sum + now / 2) / now).max(1);
    (wakes, now.saturating_sub(sum / wakes))
}

#[cfg(test)]
mod tests {
    use super::split_sum;

    #[test]
    fn several_wakes_in_one_counter_are_separated() {
        let now = 5_000_000_000_000;
        assert_eq!(split_sum(now - 20_000, now), (1, 20_000));
        assert_eq!(split_sum(2 * now - 16_000_000, now), (2, 8_000_000));
    }
}
