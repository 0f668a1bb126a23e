// SPDX-License-Identifier: MPL-2.0

//! Forwarded frames in chains of three processes. Each process is killed at each fault point of forwarding.
//!
//! `cargo nextest run -p xmem-core --test fault_chains`
//!
//! After each kill, no held frame has changed, every slot returns to its pool, and the other processes continue.
#![cfg(any(feature = "fault-points", debug_assertions))]

mod support;

use std::collections::VecDeque;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread::sleep;
use std::time::Duration;

use support::child::{self, Child, reply};
use support::victim::*;
use support::*;
use xmem_core::discovery::query;
use xmem_core::fault::{Action, Point, Side, arm};
use xmem_core::{
    Consumer, FrameMeta, FrameParts, NotReadable, Producer, PublishError, ReadLease, ReceiveError,
    SlotSpec, Wait,
};

const SIZE: usize = 40_000;
const HISTORY: u32 = 2;
/// The number of frames after which a process recreates its objects.
const LIFE: u64 = 60;
const TURN: Duration = Duration::from_millis(20);

#[test]
fn child() {
    let Some((role, pools)) = child::role() else {
        return;
    };
    let (a, b) = pools.split_once(',').unwrap();
    let commands = commands();
    match role.as_str() {
        "origin" => origin(a, &commands),
        "middle" => middle(a, b, u64::MAX, &commands),
        "new middle" => middle(a, b, LIFE, &commands),
        "end" => end(b, &commands),
        other => panic!("no role {other:?}"),
    }
}

fn first_pool(pool: &str) -> Producer {
    Producer::builder(pool).history(HISTORY).build().unwrap()
}

/// A pool that is recreated repeatedly.
fn origin(pool: &str, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let mut seed = xmem_core::monotonic_ns().cast_unsigned();
    loop {
        let producer = first_pool(pool);
        for _ in 0..LIFE {
            if next_command(commands).is_some() {
                return reply("ended");
            }
            seed += 1;
            publish(&producer, seed, SIZE);
            sleep(Duration::from_micros(300));
        }
    }
}

/// Forwards frames, with consumers and pools that are recreated after `life` frames.
fn middle(from: &str, to: &str, life: u64, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let (mut forwarded, mut copied) = (0, 0);
    loop {
        let producer = Producer::builder(to).history(HISTORY).build().unwrap();
        let mut consumer: Option<Consumer> = None;
        let mut number = 0;
        while number < life {
            if next_command(commands).is_some() {
                reply(format!("forwarded {forwarded} copied {copied}"));
                return;
            }
            let Some(taking) = &mut consumer else {
                consumer = Consumer::builder(from).connect_wait(Some(TURN)).ok();
                continue;
            };
            match taking.receive(Some(TURN)) {
                Ok(frame) => {
                    match pass_on(&producer, &frame) {
                        true => forwarded += 1,
                        false => copied += 1,
                    }
                    number += 1;
                }
                Err(ReceiveError::Timeout | ReceiveError::OverBudget { .. }) => {}
                Err(ReceiveError::ProducerLost) => consumer = None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Returns whether the frame was forwarded without a copy.
fn pass_on(producer: &Producer, frame: &ReadLease) -> bool {
    let mut meta = FrameMeta::default();
    meta.pts = frame.meta().pts;
    if let Ok(parts) = producer.forward_wait(frame, FrameParts::All, Wait::FOREVER) {
        let mut lease = producer
            .acquire(SlotSpec::new(1).attachments(parts.room()))
            .unwrap();
        lease.set_parts(parts);
        match lease.publish(meta.clone()) {
            Ok(_) => return true,
            Err(failure) => assert!(matches!(failure.error, PublishError::NotReached)),
        }
    }
    let mut lease = producer.acquire(SIZE).unwrap();
    lease.as_mut_slice().copy_from_slice(frame.bytes().unwrap());
    let size = SIZE as u64;
    meta.size = size;
    lease.publish(meta).unwrap();
    false
}

#[track_caller]
fn is_whole(frame: &ReadLease) {
    assert_eq!(frame.bytes().unwrap().len(), SIZE);
    assert_whole(frame);
}

/// Joins, takes and holds frames, and leaves, repeatedly.
fn end(pool: &str, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let mut taken = 0;
    loop {
        match next_command(commands).as_deref() {
            Some("end") => return reply("ended"),
            Some(_) => reply(taken),
            None => {}
        }
        let Ok(mut consumer) = Consumer::builder(pool).max_held(4).connect_wait(Some(TURN)) else {
            continue;
        };
        let mut held = VecDeque::new();
        for _ in 0..40 {
            match consumer.receive(Some(TURN)) {
                Ok(frame) => {
                    is_whole(&frame);
                    held.push_back(frame);
                    taken += 1;
                    // Otherwise its slot would be reused several times.
                    if held.len() > 3 {
                        held.pop_front().iter().for_each(is_whole);
                    }
                }
                Err(ReceiveError::Timeout | ReceiveError::OverBudget { .. }) => {}
                Err(ReceiveError::ProducerLost) => break,
                Err(error) => panic!("{error}"),
            }
        }
        drop(consumer);
        held.iter().for_each(is_whole);
    }
}

// ---- Tests

/// Two pools, and the processes of a chain.
struct Chain {
    a: Place,
    b: Place,
}

impl Chain {
    fn new() -> Self {
        Self {
            a: Place::new(),
            b: Place::new(),
        }
    }

    fn start(&self, role: &str) -> Child {
        let mut child = self.start_later(role);
        child.send("go");
        child
    }

    fn start_later(&self, role: &str) -> Child {
        let command = Command::new(std::env::current_exe().unwrap());
        let pools = format!("{},{}", self.a.pool(), self.b.pool());
        Child::from(command, role, &pools)
    }

    /// Starts a process that is killed when it reaches a point for the n-th time.
    fn kill(&self, role: &str, point: Point, arrival: u32) {
        let mut victim = self.start_later(role);
        arm_child(&mut victim, point, arrival..arrival + 1, "kill");
        victim.send("go");
        assert_eq!(
            victim.dies_of(),
            SIGKILL,
            "no {role} came to {point:?} {arrival}"
        );
        println!("a process {role:?} died at {point:?} {arrival}");
    }
}

/// Asserts that the end of the chain takes newly published frames.
#[track_caller]
fn takes_more(end: &mut Child) {
    let mut taken = || {
        end.send("how many?");
        end.reply().parse::<u64>().unwrap()
    };
    let before = taken();
    eventually("frames arrive", || taken() > before + 50);
}

/// Publishes in the first pool during the test. Afterwards asserts that all slots are free.
fn with_first_pool(chain: &Chain, test: impl FnOnce(&Producer)) {
    let first = first_pool(&chain.a.pool());
    let over = AtomicBool::new(false);
    // Set also if the test fails. Otherwise the scope would wait forever.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            for seed in 0.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                publish(&first, seed, SIZE);
                sleep(Duration::from_micros(300));
            }
        });
        test(&first);
    });
    eventually("all comes back", || {
        let stats = first.stats();
        stats.consumers.is_empty() && stats.slots_held <= HISTORY && stats.cut_off == 0
    });
}

/// The points of a consumer that takes frames of another pool than its own.
const OF_ENDS: [Point; 13] = [
    Point::OriginMet,
    Point::OriginJoined,
    Point::OriginSaid,
    Point::Arrived,
    Point::OriginHeld,
    Point::BeginRead,
    Point::EntryRead,
    Point::HoldAnnounced,
    Point::HoldGained,
    Point::TakenStored,
    Point::ReleaseCleared,
    Point::RegionMapped,
    Point::LeaveMarked,
];

#[test]
fn every_fault_point_is_covered() {
    let tried = |point: &Point| OF_ENDS.contains(point) || OF_MIDDLES.contains(point);
    assert!(IN_CHAINS.iter().all(tried));
}

/// A failure to map a part is not stored: the next call tries again.
#[test]
fn a_refused_read_on_a_device_is_repeated() {
    let chain = Chain::new();
    let first = first_pool(&chain.a.pool());
    let mut middle = Consumer::builder(chain.a.pool()).connect().unwrap();
    let producer = Producer::builder(chain.b.pool()).build().unwrap();
    let mut end = Consumer::builder(chain.b.pool())
        .parts(true)
        .connect()
        .unwrap();
    publish(&first, 7, SIZE);
    assert!(pass_on(&producer, &receive(&mut middle)));
    let frame = receive(&mut end);
    let part = &frame.parts()[0];
    let errno = rustix::io::Errno::IO.raw_os_error();
    arm(Point::BeginRead, 1..3, Action::Fail(errno));
    for _ in 0..2 {
        assert_eq!(part.map().unwrap_err().raw_os_error(), Some(errno));
        assert_eq!(frame.bytes(), Err(NotReadable::NotMapped));
    }
    assert_eq!(difference(7, part.map().unwrap()), None);
    is_whole(&frame);
}

#[test]
fn the_end_dies() {
    let chain = Chain::new();
    with_first_pool(&chain, |first| {
        let mut middle = chain.start("middle");
        let mut watcher = chain.start("end");
        takes_more(&mut watcher);
        for point in OF_ENDS {
            for arrival in [1, 2, 5] {
                chain.kill("end", point, arrival);
            }
        }
        takes_more(&mut watcher);
        ask(&mut watcher, "end", "ended");
        assert!(watcher.ends());
        eventually("only the middle is left", || {
            let left = first.stats().consumers;
            left.len() == 1 && left[0].pid == middle.pid()
        });
        middle.send("end");
        let reply = middle.reply();
        assert!(
            reply.ends_with(" copied 0"),
            "no copy was necessary: {reply}"
        );
        assert!(middle.ends());
    });
    chain.b.assert_clean();
}

/// The points of a forwarding process, in order.
const OF_MIDDLES: [Point; 18] = [
    Point::EntryRead,
    Point::HoldGained,
    Point::MemoryImported,
    Point::OriginNoted,
    Point::PartsImported,
    Point::ClaimGained,
    Point::SlotPublished,
    Point::EntryFilled,
    Point::EntryWritten,
    Point::HeadMoved,
    Point::WakeSent,
    Point::ConsumerListed,
    Point::ConsumerArrived,
    Point::Sent,
    Point::FrameFinalized,
    Point::ReleaseCleared,
    Point::ImportForgotten,
    Point::ClosedMarked,
];

/// Ends these processes of a chain, after each end has taken more frames.
#[track_caller]
fn end_well(mut middle: Child, mut ends: [Child; 2]) {
    ends.iter_mut().for_each(takes_more);
    for end in &mut ends {
        ask(end, "end", "ended");
        assert!(end.ends());
    }
    middle.send("end");
    let reply = middle.reply();
    assert!(!reply.starts_with("forwarded 0 "), "{reply}");
    assert!(middle.ends());
}

#[test]
fn the_middle_dies() {
    let chain = Chain::new();
    with_first_pool(&chain, |_| {
        let ends = [(); 2].map(|()| chain.start("end"));
        for point in OF_MIDDLES {
            for arrival in [1, 3] {
                chain.kill("new middle", point, arrival);
            }
        }
        end_well(chain.start("middle"), ends);
    });
    chain.b.assert_clean();
}

#[test]
fn the_origin_dies() {
    let chain = Chain::new();
    let middle = chain.start("middle");
    let ends = [(); 2].map(|()| chain.start("end"));
    let rare = [
        Point::StaleSocketRemoved,
        Point::SegmentSwept,
        Point::ShmCreate,
        Point::ShmCreated,
        Point::HoldWithdrawn,
        Point::ClaimPutBack,
        Point::TimedOutMarked,
        Point::RingAsked,
        Point::WaitCounted,
        Point::EosMarked,
        Point::SlotRetired,
        Point::SlotAbandoned,
        Point::FrameFinalized,
    ];
    let mut points = 0;
    for &point in Point::ALL {
        let is_its = matches!(point.side(), Side::Producer | Side::Both);
        // `tests/cuda` tests the points on devices.
        let is_elsewhere = point.is_cuda() || IN_CHAINS.contains(&point);
        if is_its && !rare.contains(&point) && !is_elsewhere {
            chain.kill("origin", point, 2);
            points += 1;
        }
    }
    assert!(points > 30);
    let mut origin = chain.start("origin");
    end_well(middle, ends);
    eventually("all comes back", || {
        query(chain.a.pool()).is_ok_and(|stats| stats.consumers.is_empty())
    });
    ask(&mut origin, "end", "ended");
    assert!(origin.ends());
    chain.b.assert_clean();
}
