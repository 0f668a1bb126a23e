// SPDX-License-Identifier: MPL-2.0

//! A producer that publishes at a fixed frame rate, also during faults.

use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use xmem_core::{
    AcquireError, Backing, Canceller, Delivery, FrameMeta, Producer, Wait, WaitError, WriteLease,
};

use crate::own::{self, Stopwatch, print_line};
use crate::tally::Tally;
use crate::{Error, frame};

pub(crate) const HISTORY: u32 = 4;
const REPORT: Duration = Duration::from_millis(100);
/// The time after which a stopped lossless consumer is disconnected.
const LOSSLESS_TIMEOUT: Duration = Duration::from_millis(300);
/// A slot that is not returned within this time counts as lost. Less than the time for which the rig waits for the end.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    pool: String,
    /// Number that distinguishes the producers of a pool
    epoch: u64,
    /// Frames per second
    #[arg(long, default_value_t = 120)]
    fps: u32,
    #[arg(long)]
    lossless: bool,
    #[arg(long)]
    posix_shm: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let commands = own::commands();
    let delivery = if args.lossless {
        Delivery::Lossless
    } else {
        Delivery::Live
    };
    let backing = if args.posix_shm {
        Backing::PosixShm
    } else {
        Backing::Memfd
    };
    let producer = Producer::builder(&args.pool)
        .delivery(delivery)
        .history(HISTORY)
        .backing(backing)
        .max_slots(128)
        .lossless_timeout(Some(LOSSLESS_TIMEOUT))
        .build()?;
    let before = (own::descriptors(), own::mappings());
    print_line("ready");
    let cancel = Canceller::new();
    let mut tally = Tally::default();
    let mut grabbed: Vec<WriteLease> = Vec::new();
    let mut fault = own::TemporaryFault::default();
    let period = Duration::from_secs(1) / args.fps.max(1);
    let mut size = 64 << 10;
    let mut number = 0;
    let mut next = Instant::now();
    let mut report = Instant::now();
    loop {
        match commands.try_recv() {
            Ok(command) => {
                let mut words = command.split(' ');
                let word = words.next().unwrap_or_default();
                let value: Option<u64> = words.next().and_then(|value| value.parse().ok());
                match (word, value) {
                    ("size", Some(bytes)) => size = bytes as usize,
                    ("grab", Some(slots)) => {
                        grabbed.extend((0..slots).map_while(|_| producer.acquire(size).ok()));
                    }
                    ("drop", _) => grabbed.clear(),
                    ("collect", _) => tally.add("collected", producer.collect() as u64),
                    ("fork", Some(millis)) => own::fork(Duration::from_millis(millis)),
                    ("starve", _) => own::limit_descriptors(Some(own::descriptors() as u64)),
                    ("feed", _) => own::limit_descriptors(None),
                    ("refuse", Some(millis)) => {
                        fault.begin(words.next().unwrap_or_default(), millis);
                    }
                    ("jump", Some(millis)) => {
                        fault.jump(words.next().unwrap_or_default().parse()?, millis);
                    }
                    ("end", _) => break,
                    _ => return Err(format!("an unknown command: {command}").into()),
                }
            }
            Err(TryRecvError::Empty) => {}
            // The rig has ended.
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        fault.update();
        match publish(&producer, size, args, number, &cancel, &mut tally)? {
            true => number += 1,
            false => tally.add("dropped", 1),
        }
        if report.elapsed() >= REPORT {
            report = Instant::now();
            tally.take_line().iter().for_each(|line| print_line(line));
        }
        next += period;
        match next.checked_duration_since(Instant::now()) {
            Some(left) => std::thread::sleep(left),
            // The frame is late. Continue from here, without catching up.
            None => next = Instant::now(),
        }
    }
    grabbed.clear();
    fault.end();
    own::limit_descriptors(None);
    // The consumers have ended. Wait until their slots are returned.
    let start = Instant::now();
    let stats = loop {
        producer.collect();
        let stats = producer.stats();
        let is_back = stats.consumers.is_empty() && stats.slots_held <= HISTORY;
        if is_back || start.elapsed() >= SLOT_TIMEOUT {
            break stats;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    tally.add("cut-off", stats.cut_off);
    tally.add("timed-out", stats.timed_out);
    tally.add("consumers-left", stats.consumers.len() as u64);
    tally.add(
        "slots-not-returned",
        u64::from(stats.slots_held.saturating_sub(HISTORY)),
    );
    let regions = stats.regions as usize;
    // Each region adds one mapping and one descriptor, or two descriptors if its file is locked.
    let fds = if backing == Backing::PosixShm { 2 } else { 1 };
    let descriptors = own::descriptors().saturating_sub(before.0 + fds * regions);
    let mappings = own::mappings().saturating_sub(before.1 + regions);
    tally.add("descriptors-leaked", descriptors as u64);
    tally.add("mappings-leaked", mappings as u64);
    tally.take_line().iter().for_each(|line| print_line(line));
    drop(producer);
    print_line("ended");
    Ok(())
}

/// Returns whether the frame was published.
fn publish(
    producer: &Producer,
    size: usize,
    args: &Args,
    number: u64,
    cancel: &Canceller,
    tally: &mut Tally,
) -> Result<bool, Error> {
    let waiting = Stopwatch::start();
    if args.lossless {
        match producer.wait_for_room(Wait::FOREVER.unless(cancel)) {
            Ok(()) => {}
            Err(WaitError::Cancelled) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        tally.max("max-lossless-wait", waiting.waited());
    }
    let waiting = Stopwatch::start();
    let lease = match producer.acquire(size) {
        Ok(lease) => lease,
        // There is no slot, or no descriptor for a new region. As a live source, drop and count the frame.
        Err(AcquireError::Exhausted { .. } | AcquireError::Region(_)) if !args.lossless => {
            producer.note_dropped();
            return Ok(false);
        }
        Err(AcquireError::Exhausted { .. } | AcquireError::Region(_)) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let acquiring = waiting.waited();
    let mut lease = lease;
    frame::write(lease.as_mut_slice(), args.epoch, number);
    let waiting = Stopwatch::start();
    let meta = FrameMeta::new(size);
    match lease.publish(meta) {
        Ok(_) => {}
        Err(failure) => return Err(failure.error.into()),
    }
    tally.max("max-wait", acquiring + waiting.waited());
    tally.add("published", 1);
    Ok(true)
}
