// SPDX-License-Identifier: MPL-2.0

//! The consumers of a pool.

use std::sync::Arc;

use xmem_shm::abi::layout::Control;
use xmem_shm::abi::parts::Origin;

use super::consumer::ConsumerRecord;

/// The list of a pool's consumers. It changes only under the pool's lock, and slots are claimed under the same lock. So a
/// consumer that may hold a frame is on the list before any slot is claimed.
#[derive(Debug)]
pub(in crate::producer) struct Consumers(Arc<[Arc<ConsumerRecord>]>);

impl Consumers {
    pub(super) fn new() -> Self {
        Self(Arc::new([]))
    }

    pub(in crate::producer) fn iter(&self) -> impl Iterator<Item = &Arc<ConsumerRecord>> {
        self.0.iter()
    }

    pub(in crate::producer) fn len(&self) -> usize {
        self.0.len()
    }

    /// The present list, for use without the lock. `None`: it is empty.
    pub(super) fn shared(&self) -> Option<Arc<[Arc<ConsumerRecord>]>> {
        (!self.0.is_empty()).then(|| self.0.clone())
    }

    pub(super) fn get(&self, id: u64) -> Option<&Arc<ConsumerRecord>> {
        self.0.iter().find(|consumer| consumer.id() == id)
    }

    pub(in crate::producer) fn add(&mut self, consumer: Arc<ConsumerRecord>) {
        self.0 = self.0.iter().cloned().chain([consumer]).collect();
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Arc<ConsumerRecord>> {
        let consumer = self.get(id)?.clone();
        let others = self.0.iter().filter(|consumer| consumer.id() != id);
        self.0 = others.cloned().collect();
        Some(consumer)
    }

    /// Whether any consumer holds this generation of a slot.
    pub(super) fn hold(&self, slot: u32, generation: u32) -> bool {
        self.iter().any(|consumer| consumer.holds(slot, generation))
    }

    /// How many reads of this generation of a slot are over.
    pub(super) fn reads_over(&self, slot: u32, generation: u32) -> u32 {
        let over = self.iter().map(|consumer| {
            // In this order: see there.
            let reads = consumer.reads_of(slot, generation);
            if consumer.holds(slot, generation) {
                0
            } else {
                reads
            }
        });
        over.fold(0, u32::saturating_add)
    }

    /// How many reads of this frame have begun.
    pub(in crate::producer) fn reads_begun(&self, slot: u32, generation: u32) -> u32 {
        let begun = self.iter().map(|it| it.reads_of(slot, generation));
        begun.fold(0, u32::saturating_add)
    }

    /// The consumers that may take frames.
    pub(in crate::producer) fn readers(&self) -> Arc<[u64]> {
        let readers = self.iter().filter(|it| it.reads());
        readers.map(|it| it.id()).collect()
    }

    /// Those of the given consumers that may still take this frame and have not.
    pub(in crate::producer) fn awaited(
        &self,
        ids: &[u64],
        slot: u32,
        generation: u32,
    ) -> impl Iterator<Item = &Arc<ConsumerRecord>> {
        let named = self.iter().filter(|it| ids.contains(&it.id()));
        named.filter(move |it| it.reads() && it.reads_of(slot, generation) == 0)
    }

    /// Whether each of those that take frames can hold frames of these pools of origin. `None`: some answers are missing, and the
    /// others are yes.
    pub(in crate::producer) fn reach(&self, origins: impl Iterator<Item = Origin>) -> Option<bool> {
        let mut reach = Some(true);
        for origin in origins {
            for consumer in self.iter().filter(|it| it.takes_frames()) {
                match consumer.reach().of(origin.pool_id) {
                    Some(true) => {}
                    Some(false) => return Some(false),
                    None => reach = None,
                }
            }
        }
        reach
    }

    /// How many entries the slowest consumer is behind.
    pub(super) fn backlog(&self, head: u64) -> u64 {
        let cursors = self.iter().filter_map(|consumer| consumer.cursor());
        let behind = cursors.map(|cursor| head.saturating_sub(cursor));
        behind.max().unwrap_or(0)
    }

    /// Whether the entry with this sequence is kept for a consumer, this many nanoseconds after it was published.
    pub(super) fn want(&self, sequence: u64, age: u64) -> bool {
        self.iter().any(|consumer| consumer.wants(sequence, age))
    }

    /// The consumers that are furthest behind, and by how many entries.
    pub(in crate::producer) fn slowest(&self, head: u64) -> (u64, Vec<Arc<ConsumerRecord>>) {
        let most = self.backlog(head);
        let behind = |consumer: &ConsumerRecord| {
            consumer
                .cursor()
                .map_or(0, |cursor| head.saturating_sub(cursor))
        };
        let is_slowest = |consumer: &&Arc<ConsumerRecord>| most > 0 && behind(consumer) >= most;
        (most, self.iter().filter(is_slowest).cloned().collect())
    }

    /// The consumers whose pages violate the protocol, with the violation.
    pub(super) fn protocol_violations(
        &self,
        control: &Control,
    ) -> Vec<(Arc<ConsumerRecord>, &'static str)> {
        let head = control.head();
        let violation = |consumer: &Arc<ConsumerRecord>| {
            Some((
                consumer.clone(),
                consumer.protocol_violation(control, head)?,
            ))
        };
        self.iter().filter_map(violation).collect()
    }
}
