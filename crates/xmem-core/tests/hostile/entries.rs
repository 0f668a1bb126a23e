// SPDX-License-Identifier: MPL-2.0

//! Producers with invalid entries.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::SealFlags;
use xmem_core::{Consumer, FrameLayout, ReadLease, ReceiveError};

use crate::OnDrop;
use crate::producers::{answer_all, consume, consume_waiting};
use crate::support::raw::{
    self, Fake, Memory, entry, of_entry, of_extension, of_layout, of_place, place,
};
use crate::support::*;

/// Calls `consume` while a correct fake producer with this control memory and lease page answers.
fn beside_a_producer<T>(control: &OwnedFd, page: &OwnedFd, consume: impl FnOnce(&Place) -> T) -> T {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let raw = fake.welcome(control, page);
            answer_all(&raw, |question| match question[0] {
                3 => (raw::region(1, 8192, 0, ""), vec![raw::frozen(8192)]),
                _ => (raw::sticky(1), vec![raw::memory(8, true)]),
            });
        });
        consume(&place)
    })
}

/// The errors of a consumer of one published entry, with these words of the control memory changed.
fn with_words(words: &[(usize, u64)], times: [Duration; 5]) -> Vec<ReceiveError> {
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, &[]);
    for (word, value) in words {
        control.set(*word, *value);
    }
    let page = raw::memory(1 << 16, true);
    let errors = beside_a_producer(&control_fd, &page, |place| consume_waiting(place, times));
    errors.unwrap()
}

#[test]
fn entries_that_point_elsewhere_are_an_error() {
    let soon = Duration::from_millis(5);
    let errors = with_words(&[], [HANG, soon, soon, soon, soon]);
    assert_eq!(
        errors.len(),
        4,
        "the entry itself is a good one: {errors:?}"
    );
    let (at, len) = (of_place(place::OFFSET), of_place(place::LEN));
    let (offset, size) = (of_entry(entry::OFFSET), of_entry(entry::SIZE));
    let (attached, kind) = (of_entry(entry::ATTACHED), of_entry(entry::KIND));
    let attached = |at, len| (attached, entry::attached(at, len));
    let lies: [(&str, &[(usize, u64)]); 20] = [
        ("a slot after the region", &[(at, 8192)]),
        ("a slot across the region's end", &[(at, 4097)]),
        ("a slot at the end of the address space", &[(at, u64::MAX)]),
        ("a slot larger than the region", &[(len, 8193)]),
        ("a slot as large as the address space", &[(len, u64::MAX)]),
        ("a payload after its slot", &[(offset, 4097), (size, 0)]),
        ("a payload across its slot's end", &[(offset, 1)]),
        ("a payload that wraps", &[(offset, u64::MAX), (size, 2)]),
        ("a payload larger than its slot", &[(size, 4097)]),
        ("attachments after their slot", &[attached(4097, 1)]),
        ("attachments across their slot's end", &[attached(4090, 7)]),
        (
            "attachments at the end of all",
            &[attached((1 << 39) - 1, 2)],
        ),
        ("attachments without end", &[attached(0, (1 << 25) - 1)]),
        ("attachments that are none", &[attached(0, 3)]),
        ("no generation", &[(of_entry(entry::SLOT), 1)]),
        ("a layout behind the table", &[(kind, 65)]),
        ("the last layout that there can be", &[(kind, 0xffff)]),
        ("a layout of no type", &[(of_layout(0), 200)]),
        ("a layout of nine dimensions", &[(of_layout(0), 9 << 8)]),
        ("such an extension", &[(kind, 0), (of_extension(0), 200)]),
    ];
    for (what, lie) in lies {
        let errors = with_words(lie, [HANG, soon, soon, soon, soon]);
        // It is reported once, and does not block the consumer.
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
    // A correct producer may also leave such entries: frames that are not available any more.
    let slot = of_entry(entry::SLOT);
    for (what, lie) in [
        ("no such slot", (slot, 77 | 5 << 32)),
        ("another generation", (slot, 1 | 4 << 32)),
        ("memory of no kind", (of_place(place::REGION), 1 | 7 << 32)),
        ("another stamp", (of_entry(0), 4)),
    ] {
        let errors = with_words(&[lie], [soon; 5]);
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
    // A live pool with an impossible history, and a lossless pool: the consumer must neither search all missing frames, nor follow
    // a head that keeps increasing.
    for mode in [(raw::HISTORY, u64::from(u32::MAX)), (raw::LOSSLESS, 1)] {
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
                    let raw = fake.welcome(&control_fd, &page);
                    answer_all(&raw, |_| (raw::sticky(1), vec![]));
                });
                assert_eq!(consume(&place).unwrap().len(), 5);
            });
        }
    }
}

/// A consumer that only wants the newest frame looks for newer ones only in the ring.
#[test]
fn a_stream_that_jumps_ahead_has_no_newest_frame() {
    const FAR: u64 = u32::MAX as u64;
    let (control_fd, control) = raw::control(None);
    control.set(raw::HISTORY, FAR);
    let page = raw::memory(1 << 16, true);
    beside_a_producer(&control_fd, &page, |place| {
        let builder = Consumer::builder(place.pool()).newest_only(true);
        let mut consumer = builder.connect().unwrap();
        for sequence in 0..8 {
            raw::publish_entry(&control, sequence, &[]);
        }
        control.set(raw::SLOTS + 1, 5 << 32 | 1);
        control.set(raw::HEAD, FAR);
        let error = consumer.receive(Some(Duration::from_millis(20)));
        assert!(matches!(error, Err(ReceiveError::Timeout)), "{error:?}");
    });
}

/// The ring is long, its entries are valid, and each slot is permanently claimed.
#[test]
fn a_ring_full_of_claimed_slots_blocks_no_receive() {
    const RING: u64 = 1 << 18;
    let fd = raw::memory(raw::control_len(4, RING), false);
    let control = Memory::map(&fd, true);
    raw::seal(&fd, raw::SIZE | SealFlags::FUTURE_WRITE);
    let (_good, small) = raw::control(None);
    for word in 0..16 {
        control.set(word, small.words()[word].load(Ordering::Relaxed));
    }
    control.set(raw::RING_LEN, RING);
    control.set(raw::LOSSLESS, 1);
    for sequence in 0..RING {
        raw::publish_entry_in(&control, RING, sequence, &[]);
    }
    control.set(raw::SLOTS + 1, 5 << 32 | 1);
    let page_fd = raw::memory(1 << 16, true);
    let page = Memory::map(&page_fd, true);
    beside_a_producer(&fd, &page_fd, |place| {
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        let error = consumer.receive(Some(Duration::from_millis(20)));
        assert!(matches!(error, Err(ReceiveError::Timeout)), "{error:?}");
        let looked_at = page.words()[raw::CURSOR].load(Ordering::Relaxed);
        assert!(
            looked_at < RING,
            "all of the ring without a look at the time"
        );
    });
}

/// Receives two frames. Changes words of the second entry and of the control memory in between.
fn over_a_change(
    words: &[(usize, u64)],
    second: &[(usize, u64)],
    look: impl FnOnce(ReadLease, Result<ReadLease, ReceiveError>),
) {
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, &[]);
    let page = raw::memory(1 << 16, true);
    beside_a_producer(&control_fd, &page, |place| {
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        let first = consumer.receive(Some(HANG)).unwrap();
        raw::publish_entry(&control, 1, second);
        for (word, value) in words {
            control.set(*word, *value);
        }
        look(first, consumer.receive(Some(HANG)));
    });
}

#[test]
fn a_layout_that_changes_later_stays_as_it_was_read() {
    over_a_change(&[(of_layout(0), 200)], &[], |first, second| {
        let layouts = [&first, &second.unwrap()].map(|frame| frame.meta().layout.clone());
        assert!(layouts.iter().all(|it| **it == FrameLayout::default()));
    });
}

#[test]
fn an_extension_is_read_only_if_its_entry_has_one() {
    // Of the second entry: the layout, and the user bytes.
    let nonsense = [(of_extension(48), 200), (of_extension(48 + 34), 7)];
    over_a_change(&nonsense, &[], |_, second| {
        assert_eq!(second.unwrap().meta().reserved, None);
    });
    let has_reserved = (entry::KIND, 1 | entry::HAS_RESERVED);
    over_a_change(&nonsense, &[has_reserved], |_, second| {
        let frame = second.unwrap();
        assert_eq!(frame.meta().reserved.as_ref().unwrap()[..2], [7, 0]);
    });
}

#[test]
fn a_place_that_moves_under_a_lease_moves_no_frame() {
    let offset = of_place(place::OFFSET);
    over_a_change(&[(offset, 64)], &[], |first, second| {
        let second = second.unwrap();
        assert_eq!(second.slot_ptr().addr() - first.slot_ptr().addr(), 64);
        let sizes = [first, second].map(|frame| frame.bytes().unwrap().len());
        assert_eq!(sizes, [4096, 4096]);
    });
    over_a_change(&[(offset, 8192)], &[], |first, second| {
        assert!(matches!(second, Err(ReceiveError::Corrupt(_))));
        assert!(first.bytes().unwrap().iter().all(|byte| *byte == 0));
    });
}
