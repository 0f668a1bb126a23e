// SPDX-License-Identifier: MPL-2.0

//! Consumers, with and without faults.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use xmem_core::discovery::query;
use xmem_core::fault::is_armed;
use xmem_core::{ConnectError, Consumer, Delivery, ReadLease, ReceiveError, StartFrom};

use crate::support::child::reply;
use crate::support::victim::*;
use crate::support::*;

/// Checks each frame in each connection. After a connection ended, no resources of it may remain.
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
                let sequence = frame.info().sequence;
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
                    self.release_one();
                }
                Seen::Frame(seed)
            }
            Err(ReceiveError::OverBudget { .. }) => {
                self.release_one();
                Seen::Nothing
            }
            Err(ReceiveError::Timeout) => {
                self.release_one();
                Seen::Nothing
            }
            Err(ReceiveError::Eos) => {
                self.release_one();
                std::thread::sleep(Duration::from_millis(1));
                Seen::Nothing
            }
            // The consumer was stopped for longer than the producer waits, or the machine is slow.
            Err(ReceiveError::ProducerLost | ReceiveError::TimedOut) => {
                self.leave();
                Seen::Left
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Asserts that a frame stays complete after any fault of its producer.
    fn release_one(&mut self) {
        self.held.pop_front().iter().for_each(assert_whole);
    }

    fn leave(&mut self) {
        while !self.held.is_empty() {
            self.release_one();
        }
        if self.consumer.take().is_none() {
            return;
        }
        self.last = None;
        assert_eq!(resources(), self.before, "something leaked");
    }
}

/// A consumer without faults.
pub(crate) fn watch(pool: &str, commands: &Receiver<String>) {
    let mut watch = Watch::new();
    let mut wanted: Option<u64> = None;
    let mut seen = 0;
    loop {
        match next_command(commands).as_deref() {
            Some("end") => break,
            Some(other) => wanted = Some(other.parse().unwrap()),
            None => {}
        }
        let had = watch.consumer.is_some();
        if let Seen::Frame(Some(seed)) = watch.look(pool) {
            seen = seen.max(seed);
        }
        if !had && watch.consumer.is_some() {
            reply("joined");
        }
        if wanted.is_some_and(|wanted| seen >= wanted) {
            wanted = None;
            reply("seen");
        }
    }
    watch.leave();
    reply("left");
}

/// A consumer that uses all functions repeatedly.
pub(crate) fn churn(pool: &str, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let before = resources();
    for round in 0u64.. {
        // A refusal can cause any error. All errors are temporary.
        let consumer = Consumer::builder(pool)
            .max_held(3)
            .start_from(StartFrom::Oldest)
            .connect_wait(Some(Duration::from_millis(50)))
            .ok();
        if round % 3 == 2 {
            let _ = query(pool);
            let _ = xmem_core::discovery::pools();
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
                        let sequence = frame.info().sequence;
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
                    // Memory was refused. The frame arrives when memory is available.
                    Err(ReceiveError::Region(_)) => {}
                    Err(error) => panic!("{error}"),
                }
                number += 1;
            }
            // Held frames are released after the consumer.
            drop(consumer);
            held.iter().for_each(assert_whole);
            true
        });
        assert_eq!(resources(), before, "something leaked");
        match next_command(commands).as_deref() {
            Some("end") => break,
            Some("went on?") if went_on && !is_armed() => reply("went on"),
            Some("went on?") => reply("not yet"),
            _ => {}
        }
    }
    reply("ended");
}

/// A consumer that takes a frame on command.
pub(crate) fn take(pool: &str, commands: &Receiver<String>) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect_wait(Some(HANG))
        .unwrap();
    reply("joined");
    let mut held = Vec::new();
    while let Ok(command) = commands.recv() {
        match command.as_str() {
            "take" => {
                held.push(receive(&mut consumer));
                reply(held[held.len() - 1].info().sequence);
            }
            "check" => {
                held.iter().for_each(assert_whole);
                reply("whole");
            }
            _ => break,
        }
    }
}
