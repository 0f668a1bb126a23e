// SPDX-License-Identifier: MPL-2.0

//! Producers that lie about their frames.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::SealFlags;
use xmem_core::{Consumer, ReceiveError};

use crate::OnDrop;
use crate::producers::{answer_all, consume, consume_waiting};
use crate::support::raw::{self, Fake, Memory};
use crate::support::*;

/// A fake producer that answers as it should, with one entry published by it. Returns what the consumer makes of it.
fn with_entry(entry: &[(usize, u64)], times: [Duration; 5]) -> Vec<ReceiveError> {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, entry);
    let page = raw::memory(1 << 16, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]);
            answer_all(&raw, |question| match question[0] {
                3 => (raw::region(1, 8192, 0, ""), vec![raw::frozen(8192)]),
                _ => (raw::sticky(1), vec![raw::memory(8, true)]),
            });
        });
        consume_waiting(&place, times).unwrap()
    })
}

#[test]
fn entries_that_point_elsewhere_are_an_error() {
    let soon = Duration::from_millis(5);
    let errors = with_entry(&[], [HANG, soon, soon, soon, soon]);
    assert_eq!(
        errors.len(),
        4,
        "the entry itself is a good one: {errors:?}"
    );
    let lies: [(&str, &[(usize, u64)]); 17] = [
        ("a slot after the region", &[(2, 8192)]),
        ("a slot across the region's end", &[(2, 4097)]),
        ("a slot at the end of the address space", &[(2, u64::MAX)]),
        ("a slot larger than the region", &[(3, 8193)]),
        ("a slot as large as the address space", &[(3, u64::MAX)]),
        ("a payload after its slot", &[(11, 4097), (12, 0)]),
        ("a payload across its slot's end", &[(11, 1)]),
        ("a payload that wraps", &[(11, u64::MAX), (12, 2)]),
        ("a payload larger than its slot", &[(12, 4097)]),
        ("attachments after their slot", &[(4, 4097), (5, 1)]),
        ("attachments across their slot's end", &[(4, 4090), (5, 7)]),
        ("attachments that wrap", &[(4, u64::MAX), (5, 2)]),
        ("attachments without end", &[(5, u64::MAX)]),
        ("attachments that are none", &[(4, 0), (5, 3)]),
        ("another sequence", &[(7, 3)]),
        ("no generation", &[(8, 1)]),
        ("a region of no number", &[(1, u64::MAX)]),
    ];
    for (what, lie) in lies {
        let errors = with_entry(lie, [HANG, soon, soon, soon, soon]);
        // It is reported once: a consumer is not blocked by it.
        assert!(
            matches!(
                errors.as_slice(),
                [
                    ReceiveError::Corrupt(_),
                    ReceiveError::Timeout,
                    ReceiveError::Timeout,
                    ReceiveError::Timeout,
                    ReceiveError::Timeout
                ]
            ),
            "{what}: {errors:?}"
        );
    }
    // A correct producer may leave these behind, too: frames that are gone.
    for (what, lie) in [
        ("no such slot", (8, 77 | 5 << 32)),
        ("another generation", (8, 1 | 4 << 32)),
    ] {
        let errors = with_entry(&[lie], [soon; 5]);
        assert!(
            errors
                .iter()
                .all(|error| matches!(error, ReceiveError::Timeout)),
            "{what}: {errors:?}"
        );
    }
}

#[test]
fn a_stream_that_jumps_ahead_ends_no_receive() {
    // Live with an impossible history, and lossless: neither may look through all that is not there, nor run after a
    // head that runs away.
    for mode in [(6, u64::from(u32::MAX)), (5, 1)] {
        for (head, runs) in [(1 << 40, false), (u64::MAX, false), (1 << 40, true)] {
            let place = Place::new();
            let fake = Fake::at(place.pool());
            let (control_fd, control) = raw::control(None);
            control.set(mode.0, mode.1);
            control.set(raw::HEAD, head);
            let page = raw::memory(1 << 16, true);
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
                scope.spawn(|| {
                    while runs && !done.load(Ordering::Relaxed) {
                        control.words()[raw::HEAD].fetch_add(1, Ordering::Release);
                    }
                });
                scope.spawn(|| {
                    let raw = fake.answer(&raw::welcome(raw::VERSION), &[&control_fd, &page]);
                    answer_all(&raw, |_| (raw::sticky(1), vec![]));
                });
                assert_eq!(consume(&place).unwrap().len(), 5);
            });
        }
    }
}

/// The ring is long, its entries are good, and each slot is claimed for ever.
#[test]
fn a_ring_full_of_claimed_slots_blocks_no_receive() {
    const RING: u64 = 1 << 18;
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let fd = raw::memory(raw::control_len(4, RING), false);
    let control = Memory::map(&fd, true);
    raw::seal(&fd, raw::SIZE | SealFlags::FUTURE_WRITE);
    let (_good, small) = raw::control(None);
    for word in 0..16 {
        control.set(word, small.words()[word].load(Ordering::Relaxed));
    }
    control.set(3, RING);
    control.set(5, 1);
    for sequence in 0..RING {
        raw::publish_entry_in(&control, RING, sequence, &[]);
    }
    control.set(raw::SLOTS + 1, 5 << 32 | 1);
    let page_fd = raw::memory(1 << 16, true);
    let page = Memory::map(&page_fd, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.answer(&raw::welcome(raw::VERSION), &[&fd, &page_fd]);
            answer_all(&raw, |question| match question[0] {
                3 => (raw::region(1, 8192, 0, ""), vec![raw::frozen(8192)]),
                _ => (raw::sticky(1), vec![raw::memory(8, true)]),
            });
        });
        let mut consumer = Consumer::builder(&place.pool()).connect().unwrap();
        let error = consumer.receive(Some(Duration::from_millis(20)));
        assert!(matches!(error, Err(ReceiveError::Timeout)), "{error:?}");
        let looked_at = page.words()[raw::CURSOR].load(Ordering::Relaxed);
        assert!(
            looked_at < RING,
            "all of the ring without a look at the time"
        );
    });
}
