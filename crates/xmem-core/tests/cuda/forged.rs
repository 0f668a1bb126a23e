// SPDX-License-Identifier: MPL-2.0

//! Producers that send a modified device header of another producer.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use xmem_core::cuda::{Device, Mode};
use xmem_core::{Consumer, FrameMeta, Producer, SlotSpec, StartFrom};

use crate::lab::Lab;
use crate::support::child::reply;
use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::{HANG, assert_contains};

/// Words of a device header.
const KIND_AND_FORMAT: usize = 1;
const NONCE: usize = 4;
const DEVICE_LEN: usize = 6;
const SLOTS: usize = 8;
const DEVICE_STRIDE: usize = 9;
const HOST_STRIDE: usize = 10;
const SLOTS_AT: usize = 11;
const CANARY_AT: usize = 12;

/// The modified words of the header.
fn changes(name: &str) -> Vec<(usize, u64)> {
    let kind = |kind: u64| (KIND_AND_FORMAT, 1 | kind << 32);
    match name {
        "none" => vec![],
        // Far beyond the process's memory.
        "other-stride" => vec![
            (DEVICE_LEN, 1 << 40),
            (DEVICE_STRIDE, 1 << 29),
            (CANARY_AT, 1 << 39),
        ],
        "longer" => vec![(DEVICE_LEN, 1 << 40)],
        "foreign" => vec![
            kind(4),
            (NONCE, 99),
            (SLOTS, 0),
            (DEVICE_STRIDE, 0),
            (HOST_STRIDE, 0),
        ],
        other => panic!("no change {other:?}"),
    }
}

/// A consumer of a producer with a forged header. `whose`: whether the header is from a pool of this process or of another one.
pub fn read_forged(pool: &str, whose: &str, name: &str) {
    let own = (whose == "own").then(|| {
        let producer = Producer::builder(pool)
            .cuda_mode(Mode::Legacy)
            .build()
            .unwrap();
        let device = Device::new(0).unwrap();
        let slot = producer.acquire(SlotSpec::new(4096).on(&device)).unwrap();
        drop(slot.publish(FrameMeta::new(4096)).unwrap());
        producer
    });
    // The region as the producer sends it to each consumer.
    let (honest, _joined) = Raw::join(pool, 1);
    honest.send(&raw::get_region(1), &[]).unwrap();
    let (message, fds) = honest.recv_kind(3);
    drop(honest);
    let header = Memory::map(&fds[0], false);
    let len = header.words().len() * 8;
    let words: Vec<u64> = header
        .words()
        .iter()
        .map(|word| word.load(Ordering::Relaxed))
        .collect();
    let host = raw::memory(len as u64, true);
    let memory = Memory::map(&host, true);
    for (at, word) in words.iter().enumerate() {
        memory.set(at, *word);
    }
    for (at, word) in changes(name) {
        memory.set(at, word);
    }
    raw::seal(&host, rustix::fs::SealFlags::FUTURE_WRITE);
    let forged = |at: usize| memory.words()[at].load(Ordering::Relaxed);
    let (control_fd, control) = raw::control(None);
    let slot_at = forged(SLOTS_AT) + forged(HOST_STRIDE) * u64::from(forged(SLOTS) > 1);
    let size = forged(DEVICE_STRIDE).min(4096);
    raw::publish_entry(&control, 0, &[(raw::entry::SIZE, size)]);
    control.set(raw::of_place(raw::place::OFFSET), slot_at);
    control.set(raw::of_place(raw::place::LEN), forged(HOST_STRIDE));
    let page = raw::memory(1 << 16, true);
    let at = format!("{pool}-forged");
    let fake = Fake::at(&at);
    let mut sent: Vec<OwnedFd> = fds;
    sent[0] = host;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.welcome(&control_fd, &page);
            while let Some((question, _)) = raw.recv() {
                let fds: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
                let _ = match question[0] {
                    3 => raw.send(&message, &fds),
                    4 => raw.send(&raw::sticky(1), &[raw::memory(8, true).as_fd()]),
                    _ => continue,
                };
            }
        });
        let mut consumer = Consumer::builder(&at)
            .start_from(StartFrom::Oldest)
            .connect()
            .unwrap();
        let result = match consumer.receive(Some(HANG)) {
            Err(error) => error.to_string(),
            Ok(frame) => match frame.into_cuda() {
                Ok(frame) => format!("lies at {}", frame.ptr()),
                Err(error) => error.to_string(),
            },
        };
        drop(consumer);
        reply(result);
    });
    drop(own);
}

#[track_caller]
fn result_of(whose: &str, name: &str) -> String {
    result_in(&Lab::new(), whose, name)
}

#[track_caller]
fn result_in(lab: &Lab, whose: &str, name: &str) -> String {
    let mut producer = (whose == "other").then(|| {
        let mut producer = lab.ready("produce legacy");
        crate::lab::run(&mut producer, "publish", "published 0");
        producer
    });
    let mut consumer = lab.start(&format!("read-forged {whose} {name}"));
    let result = consumer.reply();
    assert!(consumer.ends(), "without a panic");
    drop(producer.take());
    lab.assert_allowed();
    result
}

#[test]
fn the_header_of_memory_of_this_process_is_taken_only_as_it_is() {
    assert!(result_of("own", "none").starts_with("lies at"));
    let result = result_of("own", "other-stride");
    assert_contains(&result, "memory of this process, and is not");
}

#[test]
fn foreign_memory_is_limited_to_the_drivers_size() {
    assert!(result_of("other", "none").starts_with("lies at"));
    let result = result_of("other", "longer");
    assert_contains(&result, "it is smaller than that");
}

#[test]
fn foreign_memory_is_limited_to_the_drivers_address_range() {
    let lab = || Lab::new().with("QUIRKS", "no-imported-range");
    assert!(result_in(&lab(), "other", "none").starts_with("lies at"));
    let result = result_in(&lab(), "other", "longer");
    assert_contains(&result, "it is smaller than that");
}

#[test]
fn no_slot_lies_in_a_region_without_slots() {
    let result = result_of("other", "foreign");
    assert_contains(&result, "a slot lies in imported memory");
}
