// SPDX-License-Identifier: MPL-2.0

//! Random sessions: valid messages in any order, modified messages, and any descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::net::{Shutdown, shutdown};
use xmem_core::{BufferPool, Delivery, Producer};

use crate::support::raw::{self, MAX_RIGHTS, Memory, Raw};
use crate::support::*;
use crate::{Bystander, only_the_bystander_is_left};

/// A modification of a message before it is sent.
#[derive(Debug, Clone, Copy)]
enum Bend {
    Not,
    Flip(usize, u8),
    Cut(usize),
    Extend(usize),
    Twice,
}

#[derive(Debug, Clone)]
enum Step {
    Send(Vec<u8>, Bend, usize),
    Receive,
    Scribble(usize, u64),
    ShutDown(bool),
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let n = || prop_oneof![4 => 0..6u32, 1 => any::<u32>()];
    prop_oneof![
        8 => (0..3u32, n()).prop_map(|(version, held)| raw::join(version, held)),
        1 => (0..3u32).prop_map(raw::query),
        4 => n().prop_map(raw::get_region),
        4 => n().prop_map(|version| raw::get_sticky(version.into())),
        2 => Just(raw::BELL.to_vec()),
        1 => Just(raw::LEAVE.to_vec()),
        1 => vec(any::<u8>(), 0..600),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bend = prop_oneof![
        12 => Just(Bend::Not),
        1 => (any::<usize>(), 0..8u8).prop_map(|(at, bit)| Bend::Flip(at, bit)),
        1 => any::<usize>().prop_map(Bend::Cut),
        1 => (1..2000usize).prop_map(Bend::Extend),
        2 => Just(Bend::Twice),
    ];
    let fds = prop_oneof![8 => Just(0), 1 => 1..6usize, 1 => Just(MAX_RIGHTS)];
    prop_oneof![
        10 => (message(), bend, fds).prop_map(|(message, bend, fds)| Step::Send(message, bend, fds)),
        3 => Just(Step::Receive),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(at, value)| Step::Scribble(at, value)),
        1 => any::<bool>().prop_map(Step::ShutDown),
    ]
}

/// Most sessions begin correctly.
fn session() -> impl Strategy<Value = Vec<Step>> {
    let begin = Step::Send(raw::join(raw::VERSION, 2), Bend::Not, 0);
    (prop::bool::weighted(0.8), vec(step(), 0..25)).prop_map(move |(properly, mut steps)| {
        if properly {
            steps.splice(0..0, [begin.clone(), Step::Receive]);
        }
        steps
    })
}

struct Session<'a> {
    raw: Raw,
    page: Option<Memory>,
    fds: &'a [OwnedFd],
}

impl Session<'_> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(message, bend, fds) => self.send(message.clone(), *bend, *fds),
            Step::Receive => {
                for (message, mut fds) in self.raw.recv_waiting() {
                    if message[0] == 1 && fds.len() == 2 {
                        self.page = fds.pop().map(|page| Memory::map(page, true));
                    }
                }
            }
            Step::Scribble(at, value) => {
                if let Some(page) = &self.page {
                    let words = page.words();
                    words[at % words.len()].store(*value, Ordering::Relaxed);
                }
            }
            Step::ShutDown(writing) => {
                let how = [Shutdown::Read, Shutdown::Write][usize::from(*writing)];
                let _ = shutdown(&self.raw.0, how);
            }
        }
    }

    fn send(&self, mut message: Vec<u8>, bend: Bend, fds: usize) {
        let len = message.len().max(1);
        match bend {
            Bend::Flip(at, bit) => message
                .iter_mut()
                .skip(at % len)
                .take(1)
                .for_each(|b| *b ^= 1 << bit),
            Bend::Cut(at) => message.truncate(at % len),
            Bend::Extend(by) => message.resize(len + by, 0),
            Bend::Not | Bend::Twice => {}
        }
        let fds: Vec<_> = self.fds.iter().map(AsFd::as_fd).cycle().take(fds).collect();
        let times = if matches!(bend, Bend::Twice) { 2 } else { 1 };
        for _ in 0..times {
            let _ = self.raw.send(&message, &fds);
        }
    }
}

fn descriptors() -> Vec<OwnedFd> {
    let (pipe, _) = rustix::pipe::pipe().unwrap();
    let open = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
    vec![
        open("/dev/null"),
        pipe,
        open("/"),
        raw::memory(4096, true),
        Raw::unconnected().0,
    ]
}

/// Plays sessions, two at a time, and calls `meanwhile` between the steps.
fn play(pool: &str, cases: u32, mut meanwhile: impl FnMut(), mut after: impl FnMut()) {
    let fds = descriptors();
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let both = (&mut meanwhile, &mut after);
    let both = std::cell::RefCell::new(both);
    runner
        .run(&(session(), session()), |(one, other)| {
            let mut both = both.borrow_mut();
            let session = || Session {
                raw: Raw::connect(pool),
                page: None,
                fds: &fds,
            };
            let mut sessions = [session(), session()];
            for n in 0..one.len().max(other.len()) {
                for (session, steps) in sessions.iter_mut().zip([&one, &other]) {
                    steps.get(n).into_iter().for_each(|step| session.step(step));
                }
                (both.0)();
            }
            drop(sessions);
            (both.1)();
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_sessions_disturb_no_other() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let place = Place::new();
        let producer = Producer::builder(place.pool())
            .delivery(delivery)
            .history(2)
            .max_slots(24)
            .lossless_timeout(Some(std::time::Duration::from_millis(10)))
            .build()
            .unwrap();
        let bystander = std::cell::RefCell::new(Bystander::new(&producer));
        bystander.borrow_mut().frames(30);
        let cases = if delivery == Delivery::Live { 150 } else { 20 };
        play(
            &place.pool(),
            cases,
            || bystander.borrow_mut().frames(1),
            || {
                only_the_bystander_is_left(&producer);
                // Only the history holds slots.
                eventually("all slots are back", || producer.stats().slots_held <= 2);
            },
        );
    }
}

#[test]
fn random_sessions_of_readers_leave_no_slot_behind() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    // Creates the pool that the readers join.
    drop(owner.acquire_cpu(1000).unwrap());
    let files = place.files();
    let writer = files
        .iter()
        .find(|file| file.extension() != Some("lock".as_ref()));
    play(
        writer.unwrap().to_str().unwrap(),
        150,
        || {
            let mut buffer = owner.acquire_cpu(1000).unwrap();
            buffer.as_cpu_slice_mut().unwrap().fill(7);
            owner.discard(buffer.forget().unwrap()).unwrap();
        },
        || {
            eventually("all slots are back", || {
                let stats = owner.stats();
                stats.slots_held == 0 && stats.consumers.is_empty()
            });
        },
    );
}
