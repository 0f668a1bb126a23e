// SPDX-License-Identifier: MPL-2.0

//! A consumer of the soak test: checks each frame when it arrives and before it is released. It may leave and join repeatedly.

use std::collections::VecDeque;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use xmem_core::{ConnectError, Consumer, ReadLease, ReceiveError};

use crate::own::{self, print_line};
use crate::tally::Tally;
use crate::{Error, frame};

const REPORT: Duration = Duration::from_secs(1);
/// The time for which a consumer with `--rejoin` stays, in milliseconds.
const STAY: std::ops::Range<u64> = 50..2000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    pool: String,
    /// Leave and join repeatedly
    #[arg(long)]
    rejoin: bool,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

type Kept = (ReadLease, (u64, u64));

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let commands = own::commands();
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut tally = Tally::default();
    let mut report = Instant::now();
    let mut first = true;
    // The rig sent "end", or has ended.
    let ended = || !matches!(commands.try_recv(), Err(TryRecvError::Empty));
    while !ended() {
        let builder = Consumer::builder(&args.pool).max_held(4).name("soak");
        let mut consumer = match builder.connect_wait(Some(Duration::from_millis(200))) {
            Ok(consumer) => consumer,
            Err(ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        own::choose_wait(&mut consumer, &mut random);
        tally.add("joins", 1);
        if std::mem::take(&mut first) {
            print_line("joined");
        }
        let keep = random.usize(..4);
        let stay = Duration::from_millis(random.u64(STAY));
        let until = args.rejoin.then(|| Instant::now() + stay);
        let mut kept: VecDeque<Kept> = VecDeque::new();
        let mut end = false;
        while !end && until.is_none_or(|until| Instant::now() < until) {
            end = ended();
            if report.elapsed() >= REPORT {
                report = Instant::now();
                tally.take_line().iter().for_each(|line| print_line(line));
            }
            let lease = match consumer.receive(Some(Duration::from_millis(50))) {
                Ok(lease) => lease,
                Err(ReceiveError::Timeout) => continue,
                // The consumer was late in a lossless pool, or there is no producer.
                Err(ReceiveError::TimedOut | ReceiveError::ProducerLost) => break,
                Err(error) => return Err(error.into()),
            };
            tally.add("received", 1);
            match lease.bytes().ok().and_then(frame::read) {
                Some(was) => kept.push_back((lease, was)),
                None => tally.add("torn", 1),
            }
            while kept.len() > keep {
                check(kept.pop_front(), &mut tally);
            }
        }
        tally.add("missed", consumer.stats().missed);
        // Frames stay valid after the consumer that received them is dropped.
        drop(consumer);
        while !kept.is_empty() {
            check(kept.pop_front(), &mut tally);
        }
        if end {
            break;
        }
    }
    tally.take_line().iter().for_each(|line| print_line(line));
    print_line("ended");
    Ok(())
}

/// Checks a frame before it is released.
fn check(kept: Option<Kept>, tally: &mut Tally) {
    if kept.is_some_and(|(lease, was)| lease.bytes().ok().and_then(frame::read) != Some(was)) {
        tally.add("torn", 1);
    }
}
