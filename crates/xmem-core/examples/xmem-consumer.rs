// SPDX-License-Identifier: MPL-2.0

//! Receives frames of a pool and keeps the newest few, until the stream ends or Ctrl-C. Continues after restarts of the
//! producer.
//!
//! ```text
//! cargo run --example xmem-consumer -- cam0 6
//! ```

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::hash::Hasher;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use xmem_core::follow::{FollowError, Step};
use xmem_core::{Canceller, Consumer, NotReadable, ReadLease};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: xmem-consumer POOL [HOW MANY FRAMES TO KEEP]";
    let pool = args.next().filter(|arg| !arg.starts_with('-'));
    let pool = pool.ok_or(usage)?;
    let keep: u32 = args
        .next()
        .map_or(Ok(1), |n| n.parse())
        .map_err(|_| usage)?;

    // A signal handler must not call `cancel` itself.
    let canceller = Canceller::new();
    let on_signal = canceller.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            on_signal.cancel();
        }
    });

    println!("waiting for a producer of {pool}");
    // The producer may start later. One slot more than are kept: the frame that is being received.
    let consumer = Consumer::builder(&pool).name("xmem-consumer");
    let consumer = consumer.max_held(keep + 1).canceller(&canceller);
    let mut follower = consumer.follow();
    // A frame does not change while its lease lives.
    let mut kept: VecDeque<(ReadLease, u64)> = VecDeque::new();
    let mut report = Instant::now();
    loop {
        match follower.step(Some(Duration::from_secs(1)), |taken| taken.kept()) {
            Ok(Step::Took(Some(frame))) => {
                let hash = hash(&frame)?;
                kept.push_back((frame, hash));
                if kept.len() > keep as usize {
                    kept.pop_front();
                }
            }
            Ok(Step::Joined { .. }) => {
                let pid = follower.consumer().map_or(0, Consumer::producer_pid);
                println!("connected to process {pid}");
            }
            Ok(Step::Lost(_)) => {
                let unchanged = kept.iter().filter(|(f, h)| hash(f) == Ok(*h)).count();
                println!(
                    "producer lost, {unchanged} of {} frames held are unchanged",
                    kept.len()
                );
                kept.clear();
            }
            Ok(_) => {}
            Err(FollowError::End) => return Ok(()),
            Err(FollowError::Cancelled) => {
                println!("ended");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        if follower.consumer().is_some() && report.elapsed() >= Duration::from_secs(1) {
            report = Instant::now();
            let stats = follower.handle().stats().receive;
            println!(
                "received {}, missed {}, held {}, {:.2} ms from publish to receive",
                stats.received,
                stats.missed,
                stats.held,
                stats.latency_ns as f64 / 1e6
            );
        }
    }
}

/// In place of real work: reads every byte of the frame in its slot.
fn hash(frame: &ReadLease) -> Result<u64, NotReadable> {
    let mut hasher = DefaultHasher::new();
    hasher.write(frame.bytes()?);
    Ok(hasher.finish())
}
