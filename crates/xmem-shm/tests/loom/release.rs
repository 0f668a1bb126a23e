// SPDX-License-Identifier: MPL-2.0

//! The end of a lease: by a device, and with a producer that waits.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use xmem_shm::protocol::lease::{self, Hold};

use crate::slot::{Slot, holds, one_turn_each};
use crate::{check, spawn};

/// A consumer lets a device end its lease on a frame, and may take the same frame again with `again`.
fn a_device_ends_a_lease(again: fn(&Slot, &AtomicU32)) {
    check(None, move || {
        one_turn_each(move |slot, lease| {
            if lease::hold(&slot.word, lease, 1) != Hold::Held {
                return;
            }
            let device = spawn((slot.clone(), lease.clone()), |(slot, lease)| {
                assert_eq!(slot.read(), 1);
                // A plain store, which does not check the owner of the lease.
                lease.store(0, Ordering::Release);
            });
            again(slot, lease);
            device.join().unwrap();
        });
    });
}

#[test]
fn a_device_ends_a_lease_and_the_slot_is_held_again_when_that_is_seen() {
    a_device_ends_a_lease(|slot, lease| {
        if lease.load(Ordering::Acquire) == 0 {
            slot.consume(lease, 1);
        }
    });
}

#[test]
#[should_panic]
fn wrong_a_slot_is_held_again_before_a_device_has_ended_its_lease() {
    a_device_ends_a_lease(|slot, lease| {
        slot.consume(lease, 1);
    });
}

/// A late attempt on another frame of the slot replaces the 0 that the device stored.
#[test]
fn a_device_ends_a_lease_and_another_frame_of_the_slot_is_tried() {
    a_device_ends_a_lease(|slot, lease| {
        if lease.load(Ordering::Acquire) == 0 {
            assert_eq!(lease::hold(&slot.word, lease, 9), Hold::Gone);
        }
    });
}

/// A consumer that holds one frame after another is never counted as holding both.
#[test]
fn leases_are_counted_as_of_one_moment() {
    check(None, || {
        let slots = Arc::new([Slot::published(), Slot::published()]);
        let leases = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let consumer = spawn((slots.clone(), leases.clone()), |(slots, leases)| {
            for (slot, lease) in slots.iter().zip(&*leases) {
                assert!(slot.consume(lease, 1));
            }
        });
        let seen = leases.iter().filter(|lease| holds(lease, 1));
        let seen: Vec<_> = seen.map(|lease| (lease, 1)).collect();
        assert!(lease::still_held(&seen) < 2, "it never held both");
        consumer.join().unwrap();
    });
}

/// Either the release is seen by the producer, or the request for a wake-up is seen by the consumer.
#[test]
fn release_and_ask_to_ring_see_each_other() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(1));
        let consumer = spawn((slot.clone(), lease.clone()), |(slot, lease)| {
            assert_eq!(slot.read(), 1);
            lease::release(&slot.word, &lease)
        });
        lease::ask_to_ring(&slot.word);
        let free = !holds(&lease, 1);
        let rings = consumer.join().unwrap();
        assert!(rings || free, "released without a wake-up");
    });
}

/// The same for the number of waiting threads, which a consumer reads after a release.
#[test]
fn release_and_a_waiting_producer_see_each_other() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(1));
        let waiting = Arc::new(AtomicU64::new(0));
        let consumer = spawn(
            (slot.clone(), lease.clone(), waiting.clone()),
            |(slot, lease, waiting)| {
                lease::release(&slot.word, &lease);
                waiting.load(Ordering::Relaxed) != 0
            },
        );
        waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let free = !holds(&lease, 1);
        let rings = consumer.join().unwrap();
        assert!(rings || free, "released without a wake-up");
    });
}

#[test]
#[should_panic(expected = "without a wake-up")]
fn wrong_a_flag_without_fences() {
    check(None, || {
        let lease = Arc::new(AtomicU32::new(1));
        let waiting = Arc::new(AtomicU64::new(0));
        let consumer = spawn((lease.clone(), waiting.clone()), |(lease, waiting)| {
            lease.store(0, Ordering::Release);
            waiting.load(Ordering::Acquire) != 0
        });
        waiting.store(1, Ordering::Release);
        let free = lease.load(Ordering::Acquire) == 0;
        let rings = consumer.join().unwrap();
        assert!(rings || free, "released without a wake-up");
    });
}
