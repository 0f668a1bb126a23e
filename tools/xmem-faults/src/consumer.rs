// SPDX-License-Identifier: MPL-2.0

//! A consumer that checks every byte of each frame when it arrives, and again before it releases the frame.

use std::collections::VecDeque;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use xmem_core::{ConnectError, Consumer, Delivery, ReadLease, ReceiveError, monotonic_ns};

use crate::own::{self, Stopwatch, print_line};
use crate::tally::Tally;
use crate::{Error, frame};

const REPORT: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    pool: String,
    #[arg(long, default_value_t = 4)]
    max_held: u32,
    /// Number of frames to hold
    #[arg(long, default_value_t = 2)]
    keep: usize,
    /// Time to process each frame, in milliseconds
    #[arg(long, default_value_t = 0)]
    slow: u64,
    /// Inject no faults into this consumer, and measure its waits
    #[arg(long)]
    watcher: bool,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// A held frame, and its content when it arrived.
struct Kept {
    lease: ReadLease,
    was: (u64, u64),
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let commands = own::commands();
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut tally = Tally::default();
    let mut kept: VecDeque<Kept> = VecDeque::new();
    let mut report = Instant::now();
    let mut first = true;
    let mut fault = own::TemporaryFault::default();
    'connections: loop {
        let builder = Consumer::builder(&args.pool)
            .max_held(args.max_held)
            .name("faults");
        let mut consumer = match builder.connect_wait(Some(Duration::from_millis(200))) {
            Ok(consumer) => consumer,
            Err(error @ (ConnectError::Name(_) | ConnectError::Denied { .. })) => {
                return Err(error.into());
            }
            // There are no descriptors on one side, or there is no producer. Both are temporary.
            Err(_) => {
                tally.add("no-producer", 1);
                if ended(&commands, &mut fault, &mut tally)? {
                    break;
                }
                continue;
            }
        };
        if !std::mem::take(&mut first) {
            tally.add("reconnects", 1);
        }
        own::choose_wait(&mut consumer, &mut random);
        let lossless = consumer.delivery() == Delivery::Lossless;
        let mut last: Option<(u64, u64)> = None;
        loop {
            if ended(&commands, &mut fault, &mut tally)? {
                break 'connections;
            }
            if report.elapsed() >= REPORT {
                report = Instant::now();
                tally.take_line().iter().for_each(|line| print_line(line));
            }
            let watch = Stopwatch::start();
            let lease = match consumer.receive(Some(Duration::from_millis(50))) {
                Ok(lease) => lease,
                Err(ReceiveError::Timeout) => continue,
                Err(ReceiveError::OverBudget { .. }) => {
                    let kept = kept.pop_front();
                    check(kept, &mut tally);
                    continue;
                }
                Err(ReceiveError::TimedOut) => {
                    tally.add("given-up-on", 1);
                    break;
                }
                Err(ReceiveError::ProducerLost | ReceiveError::Eos) => break,
                Err(ReceiveError::CutOff) => {
                    tally.add("cut-off", 1);
                    break;
                }
                // There is no memory to map the frame's region. The frame arrives when there is.
                Err(ReceiveError::Region(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            if args.watcher {
                // `None` if the clock of the producer is ahead.
                let age = monotonic_ns().checked_sub(lease.info().published_at);
                let age = age.and_then(|age| age.try_into().ok());
                // Frames that were published before this receive call are not measured: the check of the frame before delayed them.
                if let Some(age) = age.map(Duration::from_nanos)
                    && last.is_some()
                    && age < watch.waited() + watch.delayed()
                {
                    tally.max("max-wait", age.saturating_sub(watch.delayed()));
                }
            }
            tally.add("received", 1);
            let Some(was) = lease.bytes().ok().and_then(frame::read) else {
                tally.add("torn", 1);
                continue;
            };
            if lossless && let Some(last) = last {
                // Within one connection, no frame may be missing.
                if was.0 != last.0 || was.1 != last.1 + 1 {
                    tally.add("lost", was.1.abs_diff(last.1 + 1).max(1));
                }
            }
            last = Some(was);
            if args.slow > 0 {
                std::thread::sleep(Duration::from_millis(random.u64(..args.slow)));
            }
            kept.push_back(Kept { lease, was });
            while kept.len() > args.keep {
                let kept = kept.pop_front();
                check(kept, &mut tally);
            }
        }
        // Held frames of a dead producer must not change. Some of them are checked later.
        if random.bool() {
            kept.drain(..)
                .for_each(|kept| check(Some(kept), &mut tally));
        }
    }
    kept.drain(..)
        .for_each(|kept| check(Some(kept), &mut tally));
    tally.take_line().iter().for_each(|line| print_line(line));
    print_line("ended");
    Ok(())
}

/// Checks a frame before it is released.
fn check(kept: Option<Kept>, tally: &mut Tally) {
    if let Some(kept) = kept {
        tally.add("checked", 1);
        if kept.lease.bytes().ok().and_then(frame::read) != Some(kept.was) {
            tally.add("torn", 1);
        }
    }
}

fn ended(
    commands: &std::sync::mpsc::Receiver<String>,
    fault: &mut own::TemporaryFault,
    tally: &mut Tally,
) -> Result<bool, Error> {
    fault.update();
    match commands.try_recv() {
        Ok(command) => match command.split_once(' ').unwrap_or((&command, "")) {
            ("end", _) => return Ok(true),
            ("fork", millis) => own::fork(Duration::from_millis(millis.parse()?)),
            ("starve", _) => own::limit_descriptors(Some(own::descriptors() as u64)),
            ("refuse", words) => {
                let (millis, call) = words.split_once(' ').unwrap_or((words, ""));
                fault.begin(call, millis.parse()?);
            }
            ("jump", words) => {
                let (millis, seconds) = words.split_once(' ').unwrap_or((words, "0"));
                fault.jump(seconds.parse()?, millis.parse()?);
            }
            _ => return Err(format!("an unknown command: {command}").into()),
        },
        Err(TryRecvError::Empty) => {}
        // The rig has ended.
        Err(TryRecvError::Disconnected) => return Ok(true),
    }
    tally.max(
        "max-descriptors",
        Duration::from_micros(own::descriptors() as u64),
    );
    Ok(false)
}
