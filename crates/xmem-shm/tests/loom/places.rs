// SPDX-License-Identifier: MPL-2.0

//! The place of a slot: stored before the slot is used, read before it is held.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xmem_shm::protocol::lease::{self, Hold};
use xmem_shm::protocol::lease::{SlotState, SlotWord};
use xmem_shm::protocol::ring;

use crate::ring::entry;
use crate::slot::holds;
use crate::{check, spawn};

/// A slot with a place of two words, the only entry of the ring, and a consumer's lease word.
struct Memory {
    word: AtomicU64,
    place: [AtomicU64; 2],
    entry: [AtomicU64; 3],
    lease: AtomicU32,
}

impl Memory {
    /// The frame of generation 1 is published.
    fn new() -> Arc<Self> {
        let memory = Self {
            word: AtomicU64::new(SlotWord::new(1, SlotState::Published).0),
            place: [AtomicU64::new(1), AtomicU64::new(1)],
            entry: entry(),
            lease: AtomicU32::new(0),
        };
        memory.write_entry(1);
        Arc::new(memory)
    }

    fn write_entry(&self, generation: u64) {
        ring::write(&self.entry, generation, &[generation, 0], None);
    }

    fn store_place(&self, value: u64) {
        for word in &self.place {
            word.store(value, Ordering::Relaxed);
        }
    }

    fn read_place(&self) -> [u64; 2] {
        [0, 1].map(|at| self.place[at].load(Ordering::Relaxed))
    }

    /// `claim`, `Guard::free`, and the use of the slot in another region.
    fn claim(&self) -> Option<SlotWord> {
        let word = lease::claim(&self.word, |generation| holds(&self.lease, generation))?;
        self.word
            .store(word.with_state(SlotState::Free).0, Ordering::Relaxed);
        lease::claim(&self.word, |_| false)
    }

    fn publish(&self, word: SlotWord) {
        lease::publish(&self.word, word, false);
        self.write_entry(word.generation().into());
    }

    /// Takes the frame of the entry, of any generation.
    fn take(&self, read_first: bool) {
        let mut words = [0; 2];
        for sequence in [1, 3] {
            if !ring::read(&self.entry, sequence, &mut words) {
                continue;
            }
            let before = self.read_place();
            if lease::hold(&self.word, &self.lease, words[0] as u32) == Hold::Held {
                let place = if read_first {
                    before
                } else {
                    self.read_place()
                };
                assert_eq!(place, [words[0]; 2]);
                lease::release(&self.word, &self.lease);
            }
        }
    }
}

fn one_turn_each(read_first: bool, produce: impl FnOnce(&Memory)) {
    let memory = Memory::new();
    let consumer = spawn(memory.clone(), move |memory| memory.take(read_first));
    produce(&memory);
    consumer.join().unwrap();
}

/// The place changes while the slot is claimed. The consumer may read it before or after the hold.
#[test]
fn the_place_of_a_frame_that_is_held_is_its_own() {
    for read_first in [true, false] {
        check(Some(3), move || {
            one_turn_each(read_first, |memory| {
                if let Some(word) = memory.claim() {
                    memory.store_place(3);
                    memory.publish(word);
                }
            });
        });
    }
}

#[test]
#[should_panic]
fn wrong_a_place_that_moves_before_the_slot_is_claimed() {
    check(Some(3), || {
        one_turn_each(true, |memory| {
            memory.store_place(3);
            if let Some(word) = memory.claim() {
                memory.publish(word);
            }
        });
    });
}

#[test]
#[should_panic]
fn wrong_a_place_that_moves_after_the_frame_is_published() {
    check(Some(3), || {
        one_turn_each(true, |memory| {
            if let Some(word) = memory.claim() {
                memory.publish(word);
                memory.store_place(3);
            }
        });
    });
}
