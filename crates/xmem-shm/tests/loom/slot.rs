// SPDX-License-Identifier: MPL-2.0

//! A slot with a frame, and the operations of a producer and a consumer.
#![allow(unsafe_code)] // the frame's bytes: a cell whose races loom reports

use std::sync::Arc;

use crate::spawn;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xmem_shm::protocol::lease::{self, Hold};
use xmem_shm::protocol::lease::{SlotState, SlotWord};

/// A slot with a frame of one word, which is its generation.
pub(crate) struct Slot {
    pub(crate) word: AtomicU64,
    frame: UnsafeCell<u32>,
}

impl Slot {
    /// A slot with the frame of generation 1.
    pub(crate) fn published() -> Self {
        Self {
            word: AtomicU64::new(SlotWord::new(1, SlotState::Published).0),
            frame: UnsafeCell::new(1),
        }
    }

    fn write(&self, generation: u32) {
        self.frame.with_mut(|frame| {
            // SAFETY: the test checks this access; loom reports a concurrent one.
            unsafe { *frame = generation }
        });
    }

    pub(crate) fn read(&self) -> u32 {
        self.frame.with(|frame| {
            // SAFETY: as above.
            unsafe { *frame }
        })
    }

    /// The producer's operation: claims the slot, writes a frame, publishes it. Returns whether it succeeded.
    pub(crate) fn produce(&self, held: impl FnOnce(u32) -> bool) -> bool {
        let Some(word) = lease::claim(&self.word, held) else {
            return false;
        };
        self.write(word.generation());
        lease::publish(&self.word, word, false);
        true
    }

    /// A consumer's operation: holds the frame, reads it twice, releases it. Returns whether it succeeded.
    pub(crate) fn consume(&self, lease: &AtomicU32, generation: u32) -> bool {
        if lease::hold(&self.word, lease, generation) != Hold::Held {
            assert_eq!(lease.load(Ordering::Relaxed), 0, "a lease without a holder");
            return false;
        }
        assert_eq!(self.read(), generation);
        assert_eq!(self.read(), generation);
        lease::release(&self.word, lease);
        true
    }
}

pub(crate) fn holds(lease: &AtomicU32, generation: u32) -> bool {
    lease.load(Ordering::Relaxed) == generation
}

/// A producer's operation on a slot, concurrent with `consume`. The lease word is initially 0.
pub(crate) fn one_turn_each(consume: impl FnOnce(&Arc<Slot>, &Arc<AtomicU32>) + Send + 'static) {
    let slot = Arc::new(Slot::published());
    let lease = Arc::new(AtomicU32::new(0));
    let consumer = spawn((slot.clone(), lease.clone()), move |(slot, lease)| {
        consume(&slot, &lease)
    });
    slot.produce(|generation| holds(&lease, generation));
    consumer.join().unwrap();
}
