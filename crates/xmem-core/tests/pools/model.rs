// SPDX-License-Identifier: MPL-2.0

//! Random sequences of all operations of a pool, compared with a model of plain vectors that predicts the results.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use crate::support::*;
use proptest::collection::vec;
use proptest::prelude::*;
use xmem_core::{
    AcquireError, Consumer, Delivery, Producer, ReadLease, ReceiveError, StartFrom, WriteLease,
};

/// The operations. Numbers select an existing object, modulo their count.
#[derive(Debug, Clone, Copy)]
enum Op {
    Acquire(usize),
    Publish(usize),
    GiveUp(usize),
    Republish(usize),
    DropOwn(usize),
    Join(StartFrom, u32),
    Leave(usize),
    Receive(usize),
    ReceiveAll(usize),
    DropFrame(usize, usize),
    Collect,
    SetEos(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..64usize;
    let start = prop_oneof![
        Just(StartFrom::Next),
        Just(StartFrom::Newest),
        Just(StartFrom::Oldest)
    ];
    prop_oneof![
        6 => n.clone().prop_map(Op::Acquire),
        6 => n.clone().prop_map(Op::Publish),
        1 => n.clone().prop_map(Op::GiveUp),
        2 => n.clone().prop_map(Op::Republish),
        4 => n.clone().prop_map(Op::DropOwn),
        2 => (start, 1..4u32).prop_map(|(start, held)| Op::Join(start, held)),
        1 => n.clone().prop_map(Op::Leave),
        6 => n.clone().prop_map(Op::Receive),
        2 => n.clone().prop_map(Op::ReceiveAll),
        5 => (n.clone(), n).prop_map(|(consumer, frame)| Op::DropFrame(consumer, frame)),
        1 => Just(Op::Collect),
        1 => any::<bool>().prop_map(Op::SetEos),
    ]
}

/// A frame as it was published.
#[derive(Debug, Clone, Copy)]
struct Published {
    seed: u64,
    size: usize,
    slot: u32,
}

struct Reader {
    consumer: Consumer,
    cursor: u64,
    /// The position after the last end that it got.
    end_seen: u64,
    missed: u64,
    frames: Vec<ReadLease>,
}

impl Reader {
    fn slots(&self) -> HashSet<u32> {
        self.frames.iter().map(|frame| frame.info().slot).collect()
    }
}

struct Setting {
    delivery: Delivery,
    history: u32,
    max_slots: u32,
    sizes: &'static [usize],
}

struct World {
    setting: Setting,
    place: Place,
    producer: Producer,
    published: Vec<Published>,
    history: VecDeque<u64>,
    eos: bool,
    writing: Vec<(WriteLease, usize)>,
    own: Vec<ReadLease>,
    readers: Vec<Reader>,
    /// Frames of consumers that left.
    left_behind: Vec<ReadLease>,
    next_seed: u64,
}

impl World {
    fn new(setting: Setting) -> Self {
        let place = Place::new();
        let producer = Producer::builder(place.pool())
            .delivery(setting.delivery)
            .history(setting.history)
            .max_slots(setting.max_slots)
            .build()
            .unwrap();
        Self {
            setting,
            place,
            producer,
            published: Vec::new(),
            history: VecDeque::new(),
            eos: false,
            writing: Vec::new(),
            own: Vec::new(),
            readers: Vec::new(),
            left_behind: Vec::new(),
            next_seed: 0,
        }
    }

    fn head(&self) -> u64 {
        self.published.len() as u64
    }

    fn lossless(&self) -> bool {
        self.setting.delivery == Delivery::Lossless
    }

    /// The held slots.
    fn held(&self) -> HashSet<u32> {
        let writing = self.writing.iter().map(|(lease, _)| lease.slot());
        let frames = self
            .own
            .iter()
            .chain(&self.left_behind)
            .chain(self.readers.iter().flat_map(|reader| &reader.frames))
            .map(|frame| frame.info().slot);
        let history = self
            .history
            .iter()
            .map(|sequence| self.published[*sequence as usize].slot);
        writing.chain(frames).chain(history).collect()
    }

    /// The slots that cannot be written: held slots, and those that a lossless pool keeps for slow consumers.
    fn busy(&self) -> HashSet<u32> {
        let mut busy = self.held();
        if self.lossless()
            && let Some(slowest) = self.readers.iter().map(|reader| reader.cursor).min()
        {
            let waiting = &self.published[slowest as usize..];
            busy.extend(waiting.iter().map(|frame| frame.slot));
        }
        busy
    }

    fn acquire(&mut self, n: usize) {
        let size = self.setting.sizes[n % self.setting.sizes.len()];
        match self.producer.acquire(size) {
            Ok(lease) => {
                assert_eq!(lease.len(), size);
                assert!(
                    !self.busy().contains(&lease.slot()),
                    "slot {} is in use",
                    lease.slot()
                );
                self.writing.push((lease, size));
            }
            Err(AcquireError::Exhausted { .. }) => {
                assert_eq!(
                    self.busy().len() as u32,
                    self.setting.max_slots,
                    "a slot is free"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn note(&mut self, sequence: u64, frame: Published) {
        assert_eq!(sequence, self.head());
        self.published.push(frame);
        self.history.push_back(sequence);
        while self.history.len() > self.setting.history as usize {
            self.history.pop_front();
        }
        self.eos = false;
    }

    fn publish(&mut self, n: usize) {
        let (mut lease, size) = self.writing.swap_remove(n % self.writing.len());
        let seed = self.next_seed;
        self.next_seed += 1;
        fill(seed, lease.as_mut_slice());
        let slot = lease.slot();
        let frame = lease.publish(seeded(seed, size)).unwrap();
        assert_eq!(frame.info().slot, slot);
        self.note(frame.info().sequence, Published { seed, size, slot });
        self.own.push(frame);
    }

    fn republish(&mut self, n: usize) {
        let frame = &self.own[n % self.own.len()];
        let (seed, size) = (frame.meta().pts.unwrap(), frame.size() as usize);
        let slot = frame.info().slot;
        let meta = seeded(seed, size).duration(self.head());
        // A ring full of untaken frames would be overwritten.
        match self.producer.republish(frame, &meta) {
            Ok(sequence) => self.note(sequence, Published { seed, size, slot }),
            Err(xmem_core::PublishError::NoRoom) => assert!(self.lossless()),
            Err(error) => panic!("{error}"),
        }
    }

    fn join(&mut self, start: StartFrom, held: u32) {
        let result = Consumer::builder(self.place.pool())
            .start_from(start)
            .max_held(held)
            .connect();
        let kept = self.history.len() as u64;
        let behind = match start {
            StartFrom::Next => 0,
            StartFrom::Newest => kept.min(1),
            StartFrom::Oldest => kept,
        };
        match result {
            Ok(consumer) => {
                assert!(consumer.budget() <= held);
                self.readers.push(Reader {
                    consumer,
                    cursor: self.head() - behind,
                    end_seen: 0,
                    missed: 0,
                    frames: Vec::new(),
                });
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes a frame, or finds none. Returns whether there was one.
    fn receive(&mut self, n: usize) -> bool {
        let head = self.head();
        let skip_to = if self.lossless() {
            0
        } else {
            head.saturating_sub(self.setting.history.into())
        };
        let n = n % self.readers.len();
        let reader = &mut self.readers[n];
        if reader.cursor >= head {
            let error = reader.consumer.receive(Some(Duration::ZERO)).unwrap_err();
            match error {
                ReceiveError::Eos => {
                    assert!(self.eos);
                    reader.end_seen = reader.cursor + 1;
                }
                ReceiveError::Timeout => assert!(!self.eos),
                error => panic!("{error}"),
            }
            return false;
        }
        // In a live pool, frames older than the history are missed. No other frame is.
        let skipped = skip_to.saturating_sub(reader.cursor);
        reader.cursor += skipped;
        reader.missed += skipped;
        let expected = self.published[reader.cursor as usize];
        let held = reader.slots();
        let is_held = held.contains(&expected.slot);
        let fits = |consumer: &Consumer| is_held || (held.len() as u32) < consumer.budget().max(1);
        // The budget increases when the producer detects that another consumer has left.
        let before = fits(&reader.consumer);
        let received = reader.consumer.receive(Some(HANG));
        let taken = received.is_ok();
        match received {
            Ok(frame) => {
                assert!(fits(&reader.consumer), "over its budget");
                assert_eq!(frame.info().sequence, reader.cursor);
                assert_eq!(frame.info().slot, expected.slot);
                assert_frame(&frame, expected.seed, expected.size);
                reader.cursor += 1;
                reader.frames.push(frame);
            }
            Err(ReceiveError::OverBudget { .. }) => assert!(!before),
            Err(error) => panic!("frame {}: {error}", reader.cursor),
        }
        assert_eq!(reader.consumer.stats().missed, reader.missed);
        assert_eq!(reader.consumer.held() as usize, reader.slots().len());
        taken
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Acquire(n) => self.acquire(n),
            Op::Publish(n) if !self.writing.is_empty() => self.publish(n),
            Op::GiveUp(n) if !self.writing.is_empty() => {
                self.writing.swap_remove(n % self.writing.len());
            }
            Op::Republish(n) if !self.own.is_empty() => self.republish(n),
            Op::DropOwn(n) if !self.own.is_empty() => {
                assert_whole(&self.own.swap_remove(n % self.own.len()));
            }
            Op::Join(start, held) => self.join(start, held),
            Op::Leave(n) if !self.readers.is_empty() => {
                let reader = self.readers.swap_remove(n % self.readers.len());
                drop(reader.consumer);
                self.left_behind.extend(reader.frames);
            }
            Op::Receive(n) if !self.readers.is_empty() => {
                self.receive(n);
            }
            Op::ReceiveAll(n) if !self.readers.is_empty() => while self.receive(n) {},
            Op::DropFrame(n, frame) if !self.readers.is_empty() => {
                let n = n % (self.readers.len() + 1);
                let frames = match self.readers.get_mut(n) {
                    Some(reader) => &mut reader.frames,
                    None => &mut self.left_behind,
                };
                if !frames.is_empty() {
                    assert_whole(&frames.swap_remove(frame % frames.len()));
                }
            }
            Op::Collect => {
                self.producer.collect();
            }
            Op::SetEos(eos) => {
                self.producer.set_eos(eos);
                // Lossless consumers get an end also if the stream goes on.
                let lacks_end = |reader: &Reader| reader.end_seen <= self.head();
                let stays = self.lossless() && self.eos && self.readers.iter().any(lacks_end);
                self.eos = eos || stays;
            }
            _ => {}
        }
        let stats = self.producer.stats();
        assert_eq!(stats.slots_held as usize, self.held().len());
        assert_eq!(stats.published, self.head());
        assert!(stats.slots <= self.setting.max_slots);
        assert_eq!(stats.cut_off, 0);
    }

    /// Asserts that all held frames are unchanged, and releases them.
    fn end(mut self) {
        let readers = self.readers.iter().flat_map(|reader| &reader.frames);
        for frame in self.own.iter().chain(&self.left_behind).chain(readers) {
            assert_whole(frame);
        }
        self.writing.clear();
        self.own.clear();
        self.left_behind.clear();
        self.readers.clear();
        assert_eq!(self.producer.stats().slots_held as usize, self.held().len());
        eventually("all consumers are gone", || {
            self.producer.stats().consumers.is_empty()
        });
        // Every slot can be claimed again, those of the history when it advances.
        let size = self.setting.sizes[0];
        for _ in 0..2 * self.setting.max_slots.min(64) {
            publish(&self.producer, 1, size);
        }
        drop(self.producer);
        self.place.assert_clean();
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 200,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..ProptestConfig::default()
    }
}

fn run(setting: Setting, ops: &[Op]) {
    let mut world = World::new(setting);
    for op in ops {
        world.step(*op);
    }
    world.end();
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn live(ops in vec(op(), 1..150)) {
        run(Setting {
            delivery: Delivery::Live,
            history: 3,
            max_slots: 256,
            sizes: &[4096, 1, 20_000, 300_000],
        }, &ops);
    }

    #[test]
    fn live_with_few_slots(ops in vec(op(), 1..150)) {
        run(Setting {
            delivery: Delivery::Live,
            history: 2,
            max_slots: 12,
            sizes: &[4000, 100],
        }, &ops);
    }

    #[test]
    fn lossless(ops in vec(op(), 1..150)) {
        run(Setting {
            delivery: Delivery::Lossless,
            history: 1,
            max_slots: 256,
            sizes: &[4096, 1, 20_000, 300_000],
        }, &ops);
    }

    #[test]
    fn lossless_with_few_slots(ops in vec(op(), 1..150)) {
        run(Setting {
            delivery: Delivery::Lossless,
            history: 2,
            max_slots: 12,
            sizes: &[4000, 100],
        }, &ops);
    }
}
