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
use crate::scenario::FPS;

pub(crate) fn waker(count: u32) -> Result<(), Error> {
    let eventfd = std::io::stdin();
    let start = Instant::now();
    for number in 1..=count {
        let due = Duration::from_secs(1) / FPS * number;
        thread::sleep(due.saturating_sub(start.elapsed()));
        io::write(&eventfd, &now(ClockId::Monotonic).to_ne_bytes())?;
    }
    Ok(())
}

pub(crate) fn sleeper(count: u32) -> Result<(), Error> {
    let eventfd = std::io::stdin();
    let meter = Meter::new()?;
    let start = meter.start()?;
    for _ in 0..count {
        let mut stamp = [0; 8];
        io::read(&eventfd, &mut stamp)?;
        meter.latency(now(ClockId::Monotonic).saturating_sub(u64::from_ne_bytes(stamp)));
        meter.count();
    }
    println!("{}", serde_json::to_string(&meter.figures_since(&start)?)?);
    Ok(())
}
