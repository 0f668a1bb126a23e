// SPDX-License-Identifier: MPL-2.0

//! Processes that are killed, stopped or refused memory at each single point of the protocol, on both sides.
//!
//! `cargo nextest run -p xmem-core --features fault-points --test fault_points`
//!
//! The points come from the code (`Point::ALL`). A victim that does not reach its point fails the test, so each point
//! has killed a process at least once.

mod support;

use std::collections::VecDeque;
use std::ops::Range;
use std::process::Command;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use support::child::{self, Child, say};
use support::victim::*;
use support::*;
use xmem_core::fault::{Point, Side, is_armed};
use xmem_core::{
    AcquireError, Backing, BufferPool, Canceller, ConnectError, Consumer, CreateError, Delivery,
    Producer, ReadLease, ReceiveError, StartFrom, Sticky, WaitError, WriteAccessError, query,
};

const HISTORY: u32 = 4;
/// Small slots, one that shares a region with it, and raw video, whose regions go when the size changes.
const SIZES: [usize; 3] = [6_000, 300_000, 40_000];
/// How many frames a producer publishes before it makes its pool anew.
const LIFE: u64 = 130;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Live,
    Lossless,
    PosixShm,
}

const KINDS: [Kind; 3] = [Kind::Live, Kind::Lossless, Kind::PosixShm];

/// Points that only processes that play a part of their own pass; the tests after these have them.
const RARE: [Point; 6] = [
    Point::HoldWithdrawn,
    Point::ClaimPutBack,
    Point::TimedOutMarked,
    Point::RingAsked,
    Point::SlotGranted,
    Point::GrantReceived,
];

/// Whether processes of such a pool pass a point over and over.
fn is_passed(point: Point, kind: Kind) -> bool {
    match point {
        _ if RARE.contains(&point) || IN_CHAINS.contains(&point) => false,
        // `tests/cuda` has those.
        _ if point.is_cuda() => false,
        // The same code as in a live pool, where it is not about memory.
        Point::ShmCreate | Point::ShmCreated | Point::SegmentSwept => kind == Kind::PosixShm,
        Point::Mmap | Point::Mapped | Point::Unmapped | Point::Fallocate | Point::RegionMapped => {
            true
        }
        Point::MissedCounted => kind == Kind::Live,
        Point::WaitCounted => kind == Kind::Lossless,
        _ => kind != Kind::PosixShm,
    }
}

fn points(side: Side, kind: Kind) -> impl Iterator<Item = Point> {
    Point::ALL.iter().copied().filter(move |point| {
        (point.side() == side || point.side() == Side::Both) && is_passed(*point, kind)
    })
}

/// Which arrivals a victim dies at. Points that many things pass are tried more often.
fn arrivals(point: Point) -> &'static [u32] {
    match point {
        Point::Sent | Point::Received | Point::Mapped => &[1, 2, 3, 4, 5, 9],
        Point::Send | Point::Mmap | Point::Unmapped | Point::Sealed | Point::MemfdCreated => {
            &[1, 2, 3, 4, 11]
        }
        Point::EntryStamped | Point::EntryFilled | Point::EntryWritten => &[1, 2, 17],
        _ => &[1, 4],
    }
}

/// How many arrivals a system call is refused at, one after the other.
const REFUSALS: u32 = 8;

// ---- What the children do.

#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let (role, kind) = role.split_once(' ').unwrap();
    let kind = KINDS.into_iter().find(|k| format!("{k:?}") == kind);
    warm_up();
    let commands = commands();
    match (role, kind) {
        ("watch", _) => watch(&pool, &commands),
        ("churn", _) => churn(&pool, &commands),
        ("produce", Some(kind)) => produce(&pool, kind, &commands),
        ("reproduce", Some(kind)) => reproduce(&pool, kind, &commands),
        ("step", Some(kind)) => step_by_step(&pool, kind, &commands),
        ("take", _) => take(&pool, &commands),
        ("own-buffers", _) => own_buffers(&pool, &commands),
        ("write-buffers", _) => write_buffers(&pool, &commands),
        other => panic!("no role {other:?}"),
    }
}

/// What a process makes once and keeps shall not look like a leak.
fn warm_up() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    publish(&producer, 0, SIZES[0]);
    let consumer = Consumer::builder(&place.pool()).start_from(StartFrom::Oldest);
    receive(&mut consumer.connect().unwrap());
}

/// Looks at every frame, in every connection; nothing may be left of one when it is over.
struct Watch {
    consumer: Option<Consumer>,
    held: VecDeque<ReadLease>,
    last: Option<u64>,
    before: Resources,
}

enum Seen {
    Frame(Option<u64>),
    Nothing,
    Left,
}

impl Watch {
    fn new() -> Self {
        Self {
            consumer: None,
            held: VecDeque::new(),
            last: None,
            before: resources(),
        }
    }

    fn look(&mut self, pool: &str) -> Seen {
        let Some(consumer) = &mut self.consumer else {
            match Consumer::builder(pool)
                .max_held(3)
                .start_from(StartFrom::Oldest)
                .connect_wait(Some(Duration::from_millis(20)))
            {
                Ok(consumer) => self.consumer = Some(consumer),
                Err(ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            return Seen::Nothing;
        };
        match consumer.receive(Some(Duration::from_millis(20))) {
            Ok(frame) => {
                let sequence = frame.meta().sequence;
                if consumer.delivery() == Delivery::Lossless
                    && let Some(last) = self.last
                {
                    assert_eq!(sequence, last + 1, "a frame was lost");
                }
                self.last = Some(sequence);
                let seed = frame.meta().pts;
                assert_whole(&frame);
                self.held.push_back(frame);
                if self.held.len() > 2 {
                    self.let_go_of_one();
                }
                Seen::Frame(seed)
            }
            Err(ReceiveError::OverBudget { .. }) => {
                self.let_go_of_one();
                Seen::Nothing
            }
            Err(ReceiveError::Timeout) => {
                self.let_go_of_one();
                Seen::Nothing
            }
            Err(ReceiveError::Eos) => {
                self.let_go_of_one();
                std::thread::sleep(Duration::from_millis(1));
                Seen::Nothing
            }
            // Stopped for longer than the producer waits, or a slow machine.
            Err(ReceiveError::ProducerLost | ReceiveError::TimedOut) => {
                self.leave();
                Seen::Left
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A frame stays whole, whatever happened to its producer.
    fn let_go_of_one(&mut self) {
        self.held.pop_front().iter().for_each(assert_whole);
    }

    fn leave(&mut self) {
        while !self.held.is_empty() {
            self.let_go_of_one();
        }
        if self.consumer.take().is_none() {
            return;
        }
        self.last = None;
        assert_eq!(resources(), self.before, "something leaked");
    }
}

/// A consumer that nothing is done to.
fn watch(pool: &str, commands: &Receiver<String>) {
    let mut watch = Watch::new();
    let mut wanted: Option<u64> = None;
    let mut seen = 0;
    loop {
        match told(commands).as_deref() {
            Some("end") => break,
            Some(other) => wanted = Some(other.parse().unwrap()),
            None => {}
        }
        let had = watch.consumer.is_some();
        if let Seen::Frame(Some(seed)) = watch.look(pool) {
            seen = seen.max(seed);
        }
        if !had && watch.consumer.is_some() {
            say("joined");
        }
        if wanted.is_some_and(|wanted| seen >= wanted) {
            wanted = None;
            say("seen");
        }
    }
    watch.leave();
    say("left");
}

/// A consumer that does all that consumers do, over and over.
fn churn(pool: &str, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let before = resources();
    for round in 0u64.. {
        // What is refused shows as all kinds of errors; all of them pass.
        let consumer = Consumer::builder(pool)
            .max_held(3)
            .start_from(StartFrom::Oldest)
            .connect_wait(Some(Duration::from_millis(50)))
            .ok();
        if round % 3 == 2 {
            let _ = query(pool);
            let _ = xmem_core::pools();
        }
        let went_on = consumer.is_some_and(|mut consumer| {
            let lossless = consumer.delivery() == Delivery::Lossless;
            let mut last = None;
            let mut held = VecDeque::new();
            let mut number = 0;
            while number < 40 {
                if number % 16 == 15 {
                    // Too slow for a live pool.
                    std::thread::sleep(Duration::from_millis(8));
                }
                match consumer.receive(Some(Duration::from_millis(20))) {
                    Ok(frame) => {
                        let sequence = frame.meta().sequence;
                        if let (true, Some(last)) = (lossless, last) {
                            assert_eq!(sequence, last + 1, "a frame was lost");
                        }
                        last = Some(sequence);
                        assert_whole(&frame);
                        held.push_back(frame);
                    }
                    Err(ReceiveError::OverBudget { .. }) => {
                        held.pop_front().iter().for_each(assert_whole);
                        continue;
                    }
                    Err(ReceiveError::Timeout | ReceiveError::Eos) => {
                        held.clear();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(ReceiveError::ProducerLost | ReceiveError::TimedOut) => return false,
                    // The memory that was refused; the frame comes when it is there.
                    Err(ReceiveError::Region(_)) if lossless => {}
                    Err(error) => panic!("{error}"),
                }
                number += 1;
            }
            // What is held is let go of after the consumer.
            drop(consumer);
            held.iter().for_each(assert_whole);
            true
        });
        assert_eq!(resources(), before, "something leaked");
        match told(commands).as_deref() {
            Some("end") => break,
            Some("went on?") if went_on && !is_armed() => say("went on"),
            Some("went on?") => say("not yet"),
            _ => {}
        }
    }
    say("ended");
}

/// A producer that does all that producers do.
struct Stream {
    producer: Producer,
    kind: Kind,
    seed: u64,
    number: u64,
    cancel: Canceller,
}

impl Stream {
    fn start(pool: &str, kind: Kind, patience: Duration) -> Result<Self, CreateError> {
        let (backing, delivery) = match kind {
            Kind::Live => (Backing::Memfd, Delivery::Live),
            Kind::Lossless => (Backing::Memfd, Delivery::Lossless),
            Kind::PosixShm => (Backing::PosixShm, Delivery::Live),
        };
        let producer = Producer::builder(pool)
            .backing(backing)
            .delivery(delivery)
            .history(HISTORY)
            .min_slots(6)
            .max_slots(64)
            .lossless_timeout(Some(patience))
            .build()?;
        // Seeds of a later producer are larger: CLOCK_MONOTONIC says which is later.
        Ok(Self {
            producer,
            kind,
            seed: xmem_core::monotonic_ns(),
            number: 0,
            cancel: Canceller::new(),
        })
    }

    /// One frame, and what else a producer does. Whatever the system refuses is left out.
    fn step(&mut self) {
        let number = self.number;
        self.number += 1;
        let size = SIZES[(number / 18 % 3) as usize];
        if number % 24 == 1 {
            let mut sticky = Sticky::new();
            sticky.set("caps", format!("a/b, number={number}"));
            let _ = self.producer.set_sticky(&sticky);
        }
        if number % 20 == 5 {
            // Not published after all.
            drop(self.producer.acquire(size));
        }
        let lease = if self.kind == Kind::Lossless {
            match self.producer.wait_for_room(&self.cancel) {
                Ok(()) => {}
                Err(WaitError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
            self.producer.acquire_wait(size, Some(HANG), &self.cancel)
        } else {
            self.producer.acquire(size)
        };
        let mut lease = match lease {
            Ok(lease) => lease,
            Err(AcquireError::Region(_) | AcquireError::Exhausted { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        self.seed += 1;
        fill(self.seed, &mut lease.as_mut_slice()[..size]);
        if number % 10 == 3 {
            lease.set_release_hook(|| {});
        }
        lease.publish(seeded(self.seed, size)).unwrap();
        match number % 40 {
            22 => drop(self.producer.collect()),
            33 => self.producer.set_eos(true),
            _ => {}
        }
        // So that consumers sleep.
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A producer that lives, and says what became of who does not.
fn produce(pool: &str, kind: Kind, commands: &Receiver<String>) {
    let patience: u64 = std::env::var("PATIENCE_MS").map_or(HANG.as_millis() as u64, |ms| {
        ms.parse().expect("milliseconds")
    });
    let mut stream = Stream::start(pool, kind, Duration::from_millis(patience)).unwrap();
    say("ready");
    let mut before = None;
    loop {
        match told(commands).as_deref() {
            Some("end") => break,
            Some("more") => {
                // So much is published whoever stands still.
                for _ in 0..20 {
                    stream.step();
                }
                say("more");
            }
            Some("settle") => {
                // Only the two that watch are left, and they hold nothing.
                let producer = &stream.producer;
                if kind == Kind::Lossless {
                    producer.drain(Some(HANG), &stream.cancel).unwrap();
                }
                eventually("all comes back", || {
                    let stats = producer.stats();
                    stats.consumers.len() == 2
                        && stats.consumers.iter().all(|consumer| consumer.held == 0)
                        && stats.slots_held <= HISTORY
                });
                eventually("retired regions are let go of", || {
                    producer.collect();
                    let stats = producer.stats();
                    let used = stats.regions as usize;
                    let now = resources();
                    let fds = 1;
                    let now = Resources {
                        descriptors: now.descriptors - fds * used,
                        mappings: now.mappings - used,
                    };
                    now == *before.get_or_insert(now)
                });
                let stats = producer.stats();
                assert_eq!(stats.cut_off, 0, "{stats:?}");
                say("settled");
            }
            _ => stream.step(),
        }
    }
    drop(stream);
    say("ended");
}

/// A producer that makes its pool over and over.
fn reproduce(pool: &str, kind: Kind, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let before = resources();
    loop {
        match Stream::start(pool, kind, HANG) {
            Ok(mut stream) => {
                // Without anybody to take them there would be no wake-ups, and no hand-over.
                let _ = stream
                    .producer
                    .wait_for_consumer(Some(Duration::from_secs(5)), &stream.cancel);
                for _ in 0..LIFE {
                    match told(commands).as_deref() {
                        Some("end") => {
                            drop(stream);
                            say("ended");
                            return;
                        }
                        Some("went on?") if is_armed() => {
                            stream.step();
                            say("not yet");
                        }
                        Some("went on?") => {
                            for _ in 0..10 {
                                stream.step();
                            }
                            say("went on");
                        }
                        _ => stream.step(),
                    }
                }
            }
            Err(CreateError::InUse { holder, .. }) => panic!("{holder} has the pool"),
            // What was refused passes.
            Err(_) => match told(commands).as_deref() {
                Some("end") => {
                    say("ended");
                    return;
                }
                Some(_) => say("not yet"),
                None => {}
            },
        }
        assert_eq!(resources(), before, "something leaked");
    }
}

/// A producer that publishes when it is told to.
fn step_by_step(pool: &str, kind: Kind, commands: &Receiver<String>) {
    let patience = Duration::from_millis(100);
    let stream = Stream::start(pool, kind, patience).unwrap();
    say("ready");
    let mut seed = stream.seed;
    while let Ok(command) = commands.recv() {
        if command == "end" {
            break;
        }
        // Each with a state of its own, or all with the same.
        let (count, states) = match command.strip_prefix("sticky ") {
            Some(count) => (count, true),
            None => (command.as_str(), false),
        };
        for _ in 0..count.parse::<u32>().unwrap() {
            stream.producer.wait_for_room(&stream.cancel).unwrap();
            if states {
                let mut sticky = Sticky::new();
                sticky.set("seed", seed.to_string());
                stream.producer.set_sticky(&sticky).unwrap();
            }
            seed += 1;
            publish(&stream.producer, seed, SIZES[0]);
        }
        say("published");
    }
}

/// A consumer that takes a frame when it is told to.
fn take(pool: &str, commands: &Receiver<String>) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect_wait(Some(HANG))
        .unwrap();
    say("joined");
    let mut held = Vec::new();
    while let Ok(command) = commands.recv() {
        match command.as_str() {
            "take" => {
                held.push(receive(&mut consumer));
                say(held[held.len() - 1].meta().sequence);
            }
            "check" => {
                held.iter().for_each(assert_whole);
                say("whole");
            }
            _ => break,
        }
    }
}

/// A pool whose buffers others write too.
fn own_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::options(pool)
        .peers_may_write(true)
        .open()
        .unwrap();
    assert!(buffers.is_owner());
    say("ready");
    loop {
        match told(commands).as_deref() {
            Some("end") => break,
            Some(_) => {
                let mut buffer = buffers.acquire_cpu(5000).unwrap();
                buffer.as_cpu_slice_mut().unwrap().fill(7);
                let index = buffer.forget().unwrap();
                buffers.set_ref_count(index, 2).unwrap();
                // Taken back, so that nothing is left.
                drop(buffers.get_mut(index).unwrap());
                say("written");
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Writes and reads buffers of somebody else's pool.
fn write_buffers(pool: &str, commands: &Receiver<String>) {
    let buffers = BufferPool::new(pool).unwrap();
    assert!(!buffers.is_owner());
    say("joined");
    commands.recv().unwrap();
    for number in (0..=u8::MAX).cycle() {
        if told(commands).is_some() {
            break;
        }
        let mut buffer = match buffers.acquire_cpu(5000) {
            Ok(buffer) => buffer,
            Err(WriteAccessError::Owner(_)) => break,
            Err(error) => panic!("{error}"),
        };
        let bytes = buffer.as_cpu_slice_mut().unwrap();
        bytes.fill(number);
        let index = match buffer.forget() {
            Ok(index) => index,
            Err(_) => break,
        };
        let Ok(buffer) = buffers.get(index) else {
            break;
        };
        assert!(
            buffer
                .as_cpu_slice()
                .unwrap()
                .iter()
                .all(|byte| *byte == number)
        );
        if number % 16 == 15 {
            say("wrote");
        }
    }
    say("over");
}

// ---- The tests.

fn start(role: &str, kind: Kind, place: &Place) -> Child {
    start_with(role, kind, place, &[])
}

fn start_with(role: &str, kind: Kind, place: &Place, env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("XMEM_RUNTIME_DIR", place.path());
    command.envs(env.iter().copied());
    Child::from(command, &format!("{role} {kind:?}"), &place.pool())
}

/// Starts a process to which this happens.
#[track_caller]
fn victim(
    role: &str,
    kind: Kind,
    place: &Place,
    point: Point,
    arrivals: Range<u32>,
    action: &str,
) -> Child {
    let mut victim = start(role, kind, place);
    arm_child(&mut victim, point, arrivals, action);
    victim.tell("go");
    victim
}

/// A producer and two consumers that nothing is done to.
struct Survivors {
    producer: Child,
    watchers: [Child; 2],
}

impl Survivors {
    fn start(kind: Kind, place: &Place, patience: Duration) -> Self {
        let patience = patience.as_millis().to_string();
        let mut producer = start_with("produce", kind, place, &[("PATIENCE_MS", &patience)]);
        hears(&mut producer, "ready");
        let mut survivors = Self {
            producer,
            watchers: watchers(kind, place),
        };
        survivors.settle();
        survivors
    }

    /// Everything of a victim is back, and the others have missed nothing.
    #[track_caller]
    fn settle(&mut self) {
        ask(&mut self.producer, "settle", "settled");
    }

    fn end(mut self, place: &Place) {
        for watcher in &mut self.watchers {
            ask(watcher, "end", "left");
        }
        ask(&mut self.producer, "end", "ended");
        assert!(self.producer.ends());
        place.assert_clean();
    }
}

fn watchers(kind: Kind, place: &Place) -> [Child; 2] {
    [(); 2].map(|()| start("watch", kind, place))
}

fn consumers_die(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, HANG);
    for point in points(Side::Consumer, kind) {
        for &arrival in arrivals(point) {
            let mut victim = victim("churn", kind, &place, point, arrival..arrival + 1, "kill");
            assert_eq!(
                victim.dies_of(),
                SIGKILL,
                "no consumer came to {point:?} {arrival}"
            );
            println!("a consumer died at {point:?} {arrival}");
            survivors.settle();
        }
    }
    survivors.end(&place);
}

fn consumers_stop(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, Duration::from_millis(150));
    for point in points(Side::Consumer, kind) {
        let victim = victim("churn", kind, &place, point, 2..3, "stop");
        assert!(victim.stops(), "no consumer came to {point:?}");
        println!("a consumer stopped at {point:?}");
        ask(&mut survivors.producer, "more", "more");
        victim.go_on();
        went_on(victim);
        survivors.settle();
    }
    survivors.end(&place);
}

/// It does what it did before, and then ends in good order.
#[track_caller]
fn went_on(mut victim: Child) {
    loop {
        victim.tell("went on?");
        match victim.says().as_str() {
            "went on" => break,
            "not yet" => {}
            other => panic!("{other}"),
        }
    }
    ask(&mut victim, "end", "ended");
    assert!(victim.ends());
}

fn consumers_are_refused(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, HANG);
    for (point, errno) in [
        (Point::Mmap, rustix::io::Errno::NOMEM),
        (Point::Send, rustix::io::Errno::NOBUFS),
    ] {
        for arrival in 1..=REFUSALS {
            let errno = errno.raw_os_error().to_string();
            let victim = victim("churn", kind, &place, point, arrival..arrival + 2, &errno);
            println!("a consumer is refused {point:?} {arrival}");
            went_on(victim);
            survivors.settle();
        }
    }
    survivors.end(&place);
}

/// Two consumers that nothing is done to, one that comes and goes, and producers one after the other.
struct Audience {
    kind: Kind,
    watchers: [Child; 2],
    churn: Child,
}

impl Audience {
    fn start(kind: Kind, place: &Place) -> Self {
        let mut churn = start("churn", kind, place);
        churn.tell("go");
        let mut audience = Self {
            kind,
            watchers: watchers(kind, place),
            churn,
        };
        audience.take_over(place);
        audience
    }

    /// A new producer takes the pool over, everybody comes to it, and it leaves nothing behind.
    #[track_caller]
    fn take_over(&mut self, place: &Place) {
        let mut stream = Stream::start(&place.pool(), self.kind, HANG).unwrap();
        let first = stream.seed + 1;
        std::thread::scope(|scope| {
            let (done, over) = channel::<()>();
            scope.spawn(move || {
                while over.try_recv() == Err(TryRecvError::Empty) {
                    stream.step();
                }
            });
            for watcher in &mut self.watchers {
                ask(watcher, &first.to_string(), "seen");
            }
            drop(done);
        });
        place.assert_clean();
    }

    fn end(mut self) {
        for watcher in &mut self.watchers {
            ask(watcher, "end", "left");
        }
        ask(&mut self.churn, "end", "ended");
        assert!(self.churn.ends());
    }
}

/// Leaves what a killed producer leaves: a socket, a lock, segments.
fn leave_a_mess(kind: Kind, place: &Place) {
    let mut victim = victim("reproduce", kind, place, Point::HeadMoved, 40..41, "kill");
    assert_eq!(victim.dies_of(), SIGKILL);
}

fn producers_die(kind: Kind) {
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for point in points(Side::Producer, kind) {
        for &arrival in arrivals(point) {
            if matches!(point, Point::SegmentSwept | Point::StaleSocketRemoved) {
                if arrival > 1 {
                    continue;
                }
                leave_a_mess(kind, &place);
            }
            let mut victim = victim(
                "reproduce",
                kind,
                &place,
                point,
                arrival..arrival + 1,
                "kill",
            );
            assert_eq!(
                victim.dies_of(),
                SIGKILL,
                "no producer came to {point:?} {arrival}"
            );
            println!("a producer died at {point:?} {arrival}");
            audience.take_over(&place);
        }
    }
    audience.end();
}

fn producers_stop(kind: Kind) {
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for point in points(Side::Producer, kind) {
        let rare = matches!(point, Point::SegmentSwept | Point::StaleSocketRemoved);
        let at = if rare { 1 } else { 2 };
        if rare {
            leave_a_mess(kind, &place);
        }
        let victim = victim("reproduce", kind, &place, point, at..at + 1, "stop");
        assert!(victim.stops(), "no producer came to {point:?}");
        println!("a producer stopped at {point:?}");
        // Another one gets the pool or is told that it is taken, and does not wait.
        match Stream::start(&place.pool(), kind, HANG) {
            Ok(mut stream) => stream.step(),
            Err(CreateError::InUse { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        victim.go_on();
        went_on(victim);
        place.assert_clean();
    }
    audience.take_over(&place);
    audience.end();
}

fn producers_are_refused(kind: Kind) {
    use rustix::io::Errno;
    let place = Place::new();
    let mut audience = Audience::start(kind, &place);
    for (point, errno) in [
        (Point::MemfdCreate, Errno::MFILE),
        (Point::Fallocate, Errno::NOSPC),
        (Point::ShmCreate, Errno::NOSPC),
        (Point::Mmap, Errno::NOMEM),
        (Point::Send, Errno::TOOMANYREFS),
    ] {
        if !is_passed(point, kind) {
            continue;
        }
        for arrival in 1..=REFUSALS {
            let errno = errno.raw_os_error().to_string();
            let victim = victim(
                "reproduce",
                kind,
                &place,
                point,
                arrival..arrival + 2,
                &errno,
            );
            println!("a producer is refused {point:?} {arrival}");
            went_on(victim);
            place.assert_clean();
        }
    }
    audience.take_over(&place);
    audience.end();
}

macro_rules! for_each_kind {
    ($($what:ident: $live:ident $lossless:ident $posix_shm:ident,)*) => {$(
        #[test]
        fn $live() {
            $what(Kind::Live);
        }

        #[test]
        fn $lossless() {
            $what(Kind::Lossless);
        }

        #[test]
        fn $posix_shm() {
            $what(Kind::PosixShm);
        }
    )*};
}

for_each_kind! {
    consumers_die: live_consumers_die lossless_consumers_die posix_shm_consumers_die,
    consumers_stop: live_consumers_stop lossless_consumers_stop posix_shm_consumers_stop,
    consumers_are_refused: live_consumers_are_refused lossless_consumers_are_refused
        posix_shm_consumers_are_refused,
    producers_die: live_producers_die lossless_producers_die posix_shm_producers_die,
    producers_stop: live_producers_stop lossless_producers_stop posix_shm_producers_stop,
    producers_are_refused: live_producers_are_refused lossless_producers_are_refused
        posix_shm_producers_are_refused,
}

/// A producer and a consumer that take turns.
fn two(kind: Kind, place: &Place) -> (Child, Child) {
    let mut producer = start("step", kind, place);
    hears(&mut producer, "ready");
    let mut consumer = start("take", kind, place);
    hears(&mut consumer, "joined");
    (producer, consumer)
}

#[test]
fn a_consumer_dies_where_it_finds_its_frame_gone() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Live, &place);
    arm_child(&mut consumer, Point::EntryRead, 1..2, "stop");
    arm_child(&mut consumer, Point::HoldWithdrawn, 1..2, "kill");
    ask(&mut producer, "1", "published");
    consumer.tell("take");
    assert!(consumer.stops());
    // All slots are written anew.
    ask(&mut producer, "50", "published");
    consumer.go_on();
    assert_eq!(consumer.dies_of(), SIGKILL);
    eventually("nothing is left of it", || {
        let stats = query(&place.pool()).unwrap();
        stats.consumers.is_empty() && stats.slots_held == HISTORY
    });
}

#[test]
fn a_producer_dies_where_it_finds_a_slot_held() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Live, &place);
    // With the region at hand it needs nothing of the producer.
    ask(&mut producer, "1", "published");
    ask(&mut consumer, "take", "0");
    arm_child(&mut consumer, Point::EntryRead, 1..2, "stop");
    ask(&mut producer, "1", "published");
    consumer.tell("take");
    assert!(consumer.stops());
    // That frame is the last that left the history, so its slot is the next to be claimed.
    ask(&mut producer, &HISTORY.to_string(), "published");
    arm_child(&mut producer, Point::ClaimLooked, 1..2, "stop");
    arm_child(&mut producer, Point::ClaimPutBack, 1..2, "kill");
    producer.tell("1");
    assert!(producer.stops());
    // It looked free, and now it is held.
    consumer.go_on();
    hears(&mut consumer, "1");
    producer.go_on();
    assert_eq!(producer.dies_of(), SIGKILL);
    ask(&mut consumer, "check", "whole");
    // What was published before can be taken.
    ask(&mut consumer, "take", "2");
    let mut next = start("step", Kind::Live, &place);
    hears(&mut next, "ready");
    ask(&mut consumer, "check", "whole");
}

#[test]
fn a_producer_dies_where_it_gives_up_on_a_consumer() {
    let place = Place::new();
    let (mut producer, mut consumer) = two(Kind::Lossless, &place);
    arm_child(&mut producer, Point::TimedOutMarked, 1..2, "kill");
    // The consumer takes nothing.
    producer.tell("50");
    assert_eq!(producer.dies_of(), SIGKILL);
    let mut next = start("step", Kind::Lossless, &place);
    hears(&mut next, "ready");
    consumer.tell("end");
    assert!(consumer.ends());
}

#[test]
fn a_sticky_state_that_cannot_be_sent_now_costs_no_frame() {
    let place = Place::new();
    let mut producer = start("step", Kind::Lossless, &place);
    hears(&mut producer, "ready");
    ask(&mut producer, "sticky 4", "published");
    // After the lease page: the states of the first frames, which have no descriptors any more.
    let errno = rustix::io::Errno::MFILE.raw_os_error().to_string();
    arm_child(&mut producer, Point::MemfdCreate, 2..4, &errno);
    let mut consumer = start("take", Kind::Lossless, &place);
    hears(&mut consumer, "joined");
    for sequence in 0..4 {
        ask(&mut consumer, "take", &sequence.to_string());
    }
    ask(&mut consumer, "check", "whole");
}

/// An owner of buffers and somebody who writes some of them.
fn buffers(place: &Place) -> (Child, Child) {
    let mut owner = start("own-buffers", Kind::Live, place);
    hears(&mut owner, "ready");
    let mut writer = start("write-buffers", Kind::Live, place);
    hears(&mut writer, "joined");
    (owner, writer)
}

#[test]
fn a_writer_of_buffers_dies_with_what_it_was_granted() {
    let place = Place::new();
    let (mut owner, mut living) = buffers(&place);
    living.tell("go");
    for point in [Point::GrantReceived, Point::Send, Point::Sent] {
        for arrival in 1..=4 {
            let mut writer = start("write-buffers", Kind::Live, &place);
            hears(&mut writer, "joined");
            arm_child(&mut writer, point, arrival..arrival + 1, "kill");
            writer.tell("go");
            assert_eq!(writer.dies_of(), SIGKILL, "{point:?} {arrival}");
            for _ in 0..2 {
                hears(&mut living, "wrote");
            }
        }
    }
    living.tell("end");
    eventually("every buffer is back", || {
        let stats = query(&place.pool()).unwrap();
        stats.consumers.is_empty() && stats.slots_held == 0 && stats.cut_off == 0
    });
    ask(&mut owner, "write", "written");
    owner.tell("end");
    assert!(owner.ends());
    place.assert_clean();
}

#[test]
fn an_owner_of_buffers_dies_at_each_of_its_points() {
    let place = Place::new();
    for point in [Point::SlotGranted, Point::RingAsked] {
        for arrival in [1, 4] {
            let (mut owner, mut writer) = buffers(&place);
            arm_child(&mut owner, point, arrival..arrival + 1, "kill");
            writer.tell("go");
            for _ in 0..4 {
                // To ask for a count is the owner's own.
                if point == Point::RingAsked {
                    owner.tell("write");
                }
            }
            assert_eq!(owner.dies_of(), SIGKILL, "{point:?} {arrival}");
            while writer.next_line().is_some_and(|said| said != "over") {}
            assert!(writer.ends());
        }
    }
    drop(Producer::builder(&place.pool()).build().unwrap());
    place.assert_clean();
}
