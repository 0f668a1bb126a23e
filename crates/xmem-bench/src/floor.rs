// SPDX-License-Identifier: MPL-2.0

//! The least that a hand-over can cost: one process wakes another with an eventfd.
//!
//! The eventfd carries the time itself, since what is written to it is added up and a read takes it all.

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
        let (wakes, latency) = take_apart(u64::from_ne_bytes(sum), now);
        meter.arrived(now, latency);
        meter.count();
        left = left.saturating_sub(wakes);
    }
    println!("{}", serde_json::to_string(&meter.figures_since(&start)?)?);
    Ok(())
}

/// How many wakes are in the sum of their times, and how long ago they were on average. There may be several when this
/// process did not get to run in between; they are alike enough to be counted.
fn take_apart(sum: u64, now: u64) -> (u64, u64) {
    let wakes = ((sum + now / 2) / now).max(1);
    (wakes, now.saturating_sub(sum / wakes))
}

#[cfg(test)]
mod tests {
    use super::take_apart;

    #[test]
    fn several_wakes_in_one_counter_are_separated() {
        let now = 5_000_000_000_000;
        assert_eq!(take_apart(now - 20_000, now), (1, 20_000));
        assert_eq!(take_apart(2 * now - 16_000_000, now), (2, 8_000_000));
    }
}
