// SPDX-License-Identifier: MPL-2.0

//! Hold and claim.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use xmem_shm::protocol::lease::{self, Hold};
use xmem_shm::protocol::lease::{SlotState, SlotWord};

use crate::slot::{Slot, holds, one_turn_each};
use crate::{check, spawn};

#[test]
fn hold_and_claim_exclude_each_other() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = spawn((slot.clone(), lease.clone()), |(slot, lease)| {
            slot.consume(&lease, 1);
            // The next frame, if it has been published.
            slot.consume(&lease, 2);
        });
        for _ in 0..2 {
            slot.produce(|generation| holds(&lease, generation));
        }
        consumer.join().unwrap();
        assert!(
            slot.produce(|generation| holds(&lease, generation)),
            "free again at the end"
        );
    });
}

#[test]
fn two_consumers_and_a_producer() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let leases = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let consumers = [0, 1].map(|n| {
            let (slot, leases) = (slot.clone(), leases.clone());
            thread::spawn(move || {
                slot.consume(&leases[n], 1);
            })
        });
        slot.produce(|generation| leases.iter().any(|lease| holds(lease, generation)));
        for consumer in consumers {
            consumer.join().unwrap();
        }
        assert!(slot.produce(|generation| leases.iter().any(|lease| holds(lease, generation))));
    });
}

/// A claim that finds a lease restores the slot with its frame, also for a consumer that takes it at the same time.
#[test]
fn a_refused_claim_changes_nothing() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        // One consumer holds the frame all the time.
        let first = Arc::new(AtomicU32::new(1));
        let second = Arc::new(AtomicU32::new(0));
        let joining = spawn(
            (slot.clone(), second.clone()),
            |(slot, second)| match lease::hold(&slot.word, &second, 1) {
                Hold::Held => {
                    assert_eq!(slot.read(), 1);
                    lease::release(&slot.word, &second);
                }
                Hold::Claimed => {}
                Hold::Gone => panic!("it was there all the time"),
            },
        );
        let held = |generation| holds(&first, generation) || holds(&second, generation);
        assert!(!slot.produce(held));
        assert!(!slot.produce(held));
        assert_eq!(slot.read(), 1);
        joining.join().unwrap();
        assert_eq!(
            slot.word.load(Ordering::Relaxed),
            SlotWord::new(1, SlotState::Published).0
        );
    });
}

#[test]
#[should_panic]
fn wrong_validate_then_announce() {
    check(None, || {
        one_turn_each(|slot, lease| {
            let word = SlotWord(slot.word.load(Ordering::Acquire));
            fence(Ordering::SeqCst);
            if word.generation() == 1 && word.state() == Some(SlotState::Published) {
                lease.store(1, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                assert_eq!(slot.read(), 1);
                lease::release(&slot.word, lease);
            }
        });
    });
}

#[test]
#[should_panic]
fn wrong_scan_then_claim() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = spawn((slot.clone(), lease.clone()), |(slot, lease)| {
            slot.consume(&lease, 1)
        });
        let held = holds(&lease, 1);
        fence(Ordering::SeqCst);
        slot.produce(|_| held);
        consumer.join().unwrap();
    });
}

/// Release and acquire are not sufficient: the store may not be visible when the load completes.
#[test]
#[should_panic]
fn wrong_announce_without_a_full_fence() {
    check(None, || {
        one_turn_each(|slot, lease| {
            lease.store(1, Ordering::Release);
            let word = SlotWord(slot.word.load(Ordering::Acquire));
            if word == SlotWord::new(1, SlotState::Published) {
                assert_eq!(slot.read(), 1);
            }
            lease::release(&slot.word, lease);
        });
    });
}

/// A thread reads a frame without a lease, because the holder was killed, and then checks whether the frame is still valid. The
/// bytes are atomic words here, because other threads may write them during the read.
fn a_look_without_a_lease(is_there: fn(&AtomicU64) -> bool) {
    check(None, move || {
        let word = Arc::new(AtomicU64::new(SlotWord::new(1, SlotState::Published).0));
        let bytes = Arc::new([AtomicU32::new(1), AtomicU32::new(1)]);
        let reader = spawn((word.clone(), bytes.clone()), move |(word, bytes)| {
            if lease::is_there(&word, 1) {
                let read = [0, 1].map(|at| bytes[at].load(Ordering::Relaxed));
                assert!(!is_there(&word) || read == [1, 1], "{read:?}");
            }
        });
        let next = lease::claim(&word, |_| false).unwrap();
        for byte in &*bytes {
            byte.store(next.generation(), Ordering::Relaxed);
        }
        lease::publish(&word, next, false);
        reader.join().unwrap();
    });
}

#[test]
fn a_frame_that_is_there_after_the_read_was_not_overwritten() {
    a_look_without_a_lease(|word| lease::is_there(word, 1));
}

#[test]
#[should_panic]
fn wrong_a_look_without_a_fence_behind_the_reads() {
    a_look_without_a_lease(|word| {
        SlotWord(word.load(Ordering::Acquire)) == SlotWord::new(1, SlotState::Published)
    });
}
