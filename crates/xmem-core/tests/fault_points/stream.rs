// SPDX-License-Identifier: MPL-2.0

//! Producers, with and without faults.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use xmem_core::fault::is_armed;
use xmem_core::{AcquireError, Backing, CreateError, Delivery, Producer, Sticky, Wait, WaitError};

use crate::support::child::reply;
use crate::support::victim::*;
use crate::support::*;
use crate::table::{HISTORY, Kind, LIFE, SIZES};

/// A producer that uses all functions.
pub(crate) struct Stream {
    pub(crate) producer: Producer,
    kind: Kind,
    pub(crate) seed: u64,
    number: u64,
}

impl Stream {
    pub(crate) fn start(pool: &str, kind: Kind, patience: Duration) -> Result<Self, CreateError> {
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
        // Seeds increase from one producer to the next, because they begin with CLOCK_MONOTONIC.
        Ok(Self {
            producer,
            kind,
            seed: xmem_core::monotonic_ns().cast_unsigned(),
            number: 0,
        })
    }

    /// Publishes one frame and calls other functions. Errors of the system are ignored.
    pub(crate) fn step(&mut self) {
        let number = self.number;
        self.number += 1;
        let size = SIZES[(number / 18 % 3) as usize];
        if number % 24 == 1 {
            let mut sticky = Sticky::new();
            sticky.set("caps", format!("a/b, number={number}"));
            let _ = self.producer.set_sticky(&sticky);
        }
        if number % 20 == 5 {
            // Dropped without publishing.
            drop(self.producer.acquire(size));
        }
        let lease = if self.kind == Kind::Lossless {
            match self.producer.wait_for_room(Wait::FOREVER) {
                Ok(()) => {}
                Err(WaitError::Closed) => return,
                Err(error) => panic!("{error}"),
            }
            self.producer.acquire_wait(size, Wait::up_to(HANG))
        } else {
            self.producer.acquire(size)
        };
        let mut lease = match lease {
            Ok(lease) => lease,
            Err(AcquireError::Region(_) | AcquireError::Exhausted { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        self.seed += 1;
        fill(self.seed, lease.as_mut_slice());
        if number % 10 == 3 {
            lease.set_release_hook(|| {});
        }
        lease.publish(seeded(self.seed, size)).unwrap();
        match number % 40 {
            22 => drop(self.producer.collect()),
            33 => self.producer.set_eos(true),
            _ => {}
        }
        // Lets consumers sleep.
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A producer without faults, which reports when killed processes were removed.
pub(crate) fn produce(pool: &str, kind: Kind, commands: &Receiver<String>) {
    let patience: u64 = std::env::var("PATIENCE_MS").map_or(HANG.as_millis() as u64, |ms| {
        ms.parse().expect("milliseconds")
    });
    let mut stream = Stream::start(pool, kind, Duration::from_millis(patience)).unwrap();
    reply("ready");
    let mut before = None;
    loop {
        match next_command(commands).as_deref() {
            Some("end") => break,
            Some("more") => {
                // This number is published, independent of stopped consumers.
                for _ in 0..20 {
                    stream.step();
                }
                reply("more");
            }
            Some("settle") => {
                // Only the two consumers without faults remain, and they hold no frames.
                let producer = &stream.producer;
                if kind == Kind::Lossless {
                    producer.drain(Wait::up_to(HANG)).unwrap();
                }
                eventually("all comes back", || {
                    let stats = producer.stats();
                    stats.consumers.len() == 2
                        && stats.consumers.iter().all(|consumer| consumer.held == 0)
                        && stats.slots_held <= HISTORY
                });
                eventually("retired regions are released", || {
                    producer.collect();
                    let stats = producer.stats();
                    let used = stats.regions as usize;
                    let now = resources();
                    // A segment has a second descriptor, whose lock shows that its owner is alive.
                    let fds = if kind == Kind::PosixShm { 2 } else { 1 };
                    let now = Resources {
                        descriptors: now.descriptors - fds * used,
                        mappings: now.mappings - used,
                    };
                    now == *before.get_or_insert(now)
                });
                let stats = producer.stats();
                assert_eq!(stats.cut_off, 0, "{stats:?}");
                reply("settled");
            }
            _ => stream.step(),
        }
    }
    drop(stream);
    reply("ended");
}

/// A producer that recreates its pool repeatedly.
pub(crate) fn reproduce(pool: &str, kind: Kind, commands: &Receiver<String>) {
    commands.recv().unwrap();
    let before = resources();
    loop {
        match Stream::start(pool, kind, HANG) {
            Ok(mut stream) => {
                // Without a consumer there are no wake-ups and no handover.
                let _ = stream
                    .producer
                    .wait_for_consumers(1, Wait::up_to(Duration::from_secs(5)));
                for _ in 0..LIFE {
                    match next_command(commands).as_deref() {
                        Some("end") => {
                            drop(stream);
                            reply("ended");
                            return;
                        }
                        Some("went on?") if is_armed() => {
                            stream.step();
                            reply("not yet");
                        }
                        Some("went on?") => {
                            for _ in 0..10 {
                                stream.step();
                            }
                            reply("went on");
                        }
                        _ => stream.step(),
                    }
                }
            }
            Err(CreateError::InUse { holder, .. }) => panic!("{holder} has the pool"),
            // A refusal is temporary.
            Err(_) => match next_command(commands).as_deref() {
                Some("end") => {
                    reply("ended");
                    return;
                }
                Some(_) => reply("not yet"),
                None => {}
            },
        }
        assert_eq!(resources(), before, "something leaked");
    }
}

/// A producer that publishes on command.
pub(crate) fn step_by_step(pool: &str, kind: Kind, commands: &Receiver<String>) {
    let patience = Duration::from_millis(100);
    let stream = Stream::start(pool, kind, patience).unwrap();
    reply("ready");
    let mut seed = stream.seed;
    while let Ok(command) = commands.recv() {
        if command == "end" {
            break;
        }
        // Each frame with a new sticky state, or all with the same.
        let (count, states) = match command.strip_prefix("sticky ") {
            Some(count) => (count, true),
            None => (command.as_str(), false),
        };
        for _ in 0..count.parse::<u32>().unwrap() {
            stream.producer.wait_for_room(Wait::FOREVER).unwrap();
            if states {
                let mut sticky = Sticky::new();
                sticky.set("seed", seed.to_string());
                stream.producer.set_sticky(&sticky).unwrap();
            }
            seed += 1;
            publish(&stream.producer, seed, SIZES[0]);
        }
        reply("published");
    }
}
