// SPDX-License-Identifier: MPL-2.0

//! The leases of a connection. A slot has one lease, and any number of handles in this process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::layout::Reads;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::prefetch;
use xmem_shm::protocol::lease;
use xmem_shm::sync::{AtomicU32, AtomicU64, Ordering};

use super::connection::Connection;
use super::link::Link;
use crate::frame::hold::{Hold, Holder, SlotPlace};
use crate::stats::ReceiveStats;

/// The purpose for which a frame is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To hold it, within the budget. With a budget of 0, one at a time.
    Keep,
    /// To hold it, only within the budget.
    KeepWithinBudget,
    /// To copy it at once. Also past the budget, one at a time.
    CopyOut,
}

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakeError {
    /// The slot already has another frame.
    Gone,
    /// The budget is used up.
    OverBudget,
}

/// The handles of this process to one slot.
#[derive(Clone, Default)]
struct Leased {
    generation: u32,
    /// 0: there is no lease. 64 bits do not overflow, even if a program drops no handle.
    handles: u64,
}

struct Table {
    /// By slot.
    slots: Box<[Leased]>,
    num_leased: u32,
    /// The slot of the last lease past the budget.
    extra: Option<u32>,
}

impl Table {
    /// The entry of a slot that has a lease.
    fn leased(&mut self, slot: u32) -> Option<&mut Leased> {
        let leased = self.slots.get_mut(slot as usize);
        leased.filter(|leased| leased.handles > 0)
    }

    /// Whether another frame would be past the budget. An error if it may not be taken; at most one frame at a time may be past
    /// the budget.
    fn is_extra(&mut self, budget: u32, purpose: Purpose) -> Result<bool, TakeError> {
        let held = self.num_leased;
        if held < budget {
            return Ok(false);
        }
        self.is_extra_past(held, budget, purpose)
    }

    #[cold]
    fn is_extra_past(
        &mut self,
        held: u32,
        budget: u32,
        purpose: Purpose,
    ) -> Result<bool, TakeError> {
        // The budget may have grown, and include the frame that was taken past it.
        let has_extra = held > budget && self.extra.is_some_and(|slot| self.leased(slot).is_some());
        let is_allowed = match purpose {
            Purpose::Keep => held == 0,
            Purpose::KeepWithinBudget => false,
            Purpose::CopyOut => true,
        };
        if is_allowed && !has_extra {
            Ok(true)
        } else {
            Err(TakeError::OverBudget)
        }
    }
}

/// The leases of one connection, by slot.
pub(crate) struct Leases {
    connection: Arc<Connection>,
    table: Mutex<Table>,
}

/// How often a slot is read again while the producer checks it.
const CLAIMED_RETRIES: u32 = 1000;

impl Leases {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        let num_slots = connection.page().leases().len();
        Self {
            connection: connection.clone(),
            table: Mutex::new(Table {
                slots: vec![Leased::default(); num_slots].into(),
                num_leased: 0,
                extra: None,
            }),
        }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// How this process opened device memory.
    pub(super) fn device(&self) -> String {
        self.connection.link().device()
    }

    pub(super) fn stats(&self) -> ReceiveStats {
        if !self.connection.is_of_this_process() {
            // A forked child does not map the page.
            return ReceiveStats {
                budget: self.connection.budget(),
                ..ReceiveStats::default()
            };
        }
        let page = self.connection.page();
        ReceiveStats {
            received: page.received().load(Ordering::Relaxed),
            missed: page.missed().load(Ordering::Relaxed),
            skipped: page.skipped().load(Ordering::Relaxed),
            held: self.lock().num_leased,
            budget: self.connection.budget(),
            budget_limit: self.connection.budget_limit(),
            latency_ns: page.latency().load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// The slot word and the lease word of a slot.
    fn words(&self, slot: u32) -> Option<(&AtomicU64, &AtomicU32)> {
        let lease_word = self.connection.page().leases().get(slot as usize)?;
        Some((self.connection.control().slot(slot)?, lease_word))
    }

    /// A lease on the frame in this slot is taken soon.
    pub(super) fn expect(&self, slot: u32) {
        if let Some((word, lease_word)) = self.words(slot) {
            prefetch::to_write(lease_word);
            prefetch::to_read(word);
        }
    }

    /// Takes a lease on a frame, or another handle if it has a lease.
    pub(super) fn take(
        self: &Arc<Self>,
        place: SlotPlace,
        purpose: Purpose,
    ) -> Result<Hold, TakeError> {
        self.count(place.slot, place.generation, purpose)?;
        Ok(Hold::new(self.clone(), place))
    }

    /// Counts another handle to a frame. Takes the lease for the first one.
    fn count(&self, slot: u32, generation: u32, purpose: Purpose) -> Result<(), TakeError> {
        let (word, lease_word) = self.words(slot).ok_or(TakeError::Gone)?;
        let taken = self.connection.page().taken().get(slot as usize);
        let taken = taken.ok_or(TakeError::Gone)?;
        let mut table = self.lock();
        if let Some(leased) = table.leased(slot) {
            // A held slot has no other frame, unless the producer violates the protocol.
            if leased.generation != generation {
                return Err(TakeError::Gone);
            }
            leased.handles += 1;
            return Ok(());
        }
        let budget = self.connection.budget_here();
        let mut is_extra = table.is_extra(budget, purpose)?;
        let mut tries = 0;
        loop {
            match lease::hold(word, lease_word, generation) {
                lease::Hold::Held => break,
                // The producer is checking the slot. It publishes it again if another consumer holds it.
                lease::Hold::Claimed if tries < CLAIMED_RETRIES => {
                    tries += 1;
                    std::hint::spin_loop();
                }
                lease::Hold::Claimed | lease::Hold::Gone => return Err(TakeError::Gone),
            }
        }
        // Checks the budget again. The fence in `hold` pairs with the one in `Shares::share_out`: either the producer saw the
        // lease when it reduced the budget, or the smaller budget is visible here.
        let budget_now = self.connection.budget_here();
        if budget_now != budget {
            is_extra = match table.is_extra(budget_now, purpose) {
                Ok(is_extra) => is_extra,
                Err(refusal) => {
                    let asked = lease::release(word, lease_word);
                    drop(table);
                    self.connection.notify_release(asked);
                    return Err(refusal);
                }
            };
        }
        // If the frame is within the budget, all leases are.
        table.extra = is_extra.then_some(slot);
        taken.store(generation, Ordering::Release);
        fault::point(Point::TakenStored);
        if let Some(leased) = table.slots.get_mut(slot as usize) {
            *leased = Leased {
                generation,
                handles: 1,
            };
            table.num_leased += 1;
        }
        Ok(())
    }

    /// Takes a frame that is to be copied. Past the budget it is read without a lease, while another process has one. The copy
    /// is valid only if the frame [is intact](Hold::is_intact) afterwards.
    pub(super) fn take_or_read_unleased(
        self: &Arc<Self>,
        place: SlotPlace,
    ) -> Result<Hold, TakeError> {
        match self.count(place.slot, place.generation, Purpose::CopyOut) {
            Ok(()) => Ok(Hold::new(self.clone(), place)),
            Err(TakeError::OverBudget) => {
                let unleased = Hold::unleased(self.clone(), place);
                let is_intact = unleased.is_intact();
                is_intact.then_some(unleased).ok_or(TakeError::Gone)
            }
            Err(TakeError::Gone) => Err(TakeError::Gone),
        }
    }

    /// Counts a read of a buffer by number that this process holds.
    pub(crate) fn count_read(&self, slot: u32, generation: u32) {
        let reads = self.connection.page().reads().get(slot as usize);
        let one_more = |reads| Some(Reads(reads).and_one_of(generation).0);
        if let Some(reads) = reads {
            // Release: pairs with the fence in `ConsumerRecord::reads_of`, so the producer that sees the read sees the lease.
            let _ = reads.fetch_update(Ordering::Release, Ordering::Relaxed, one_more);
            fault::point(Point::ReadCounted);
        }
    }
}

impl Holder for Leases {
    fn add(&self, slot: u32) {
        if self.is_of_this_process()
            && let Some(leased) = self.lock().leased(slot)
        {
            leased.handles += 1;
        }
    }

    fn remove(&self, slot: u32) {
        if !self.is_of_this_process() {
            return;
        }
        let mut table = self.lock();
        let Some(leased) = table.leased(slot) else {
            return;
        };
        leased.handles -= 1;
        if leased.handles > 0 {
            return;
        }
        table.num_leased -= 1;
        let words = self.words(slot);
        let asked = words.is_some_and(|(word, lease_word)| lease::release(word, lease_word));
        drop(table);
        self.connection.notify_release(asked);
    }

    fn is_there(&self, slot: u32, generation: u32) -> bool {
        let word = self.connection.control().slot(slot);
        word.is_some_and(|word| lease::is_there(word, generation))
    }

    fn producer_is_gone(&self) -> bool {
        self.connection.link().is_disconnected()
    }

    fn pool_name(&self) -> &str {
        self.connection.pool_name()
    }

    fn pool_id(&self) -> u64 {
        self.connection.pool_id()
    }

    fn socket_path(&self) -> &Path {
        &self.connection.terms().path
    }
}

/// Functions for the module `cuda`.
impl Leases {
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.connection.is_of_this_process()
    }

    /// The connection. When it ends, the producer releases everything that this process holds there.
    pub(crate) fn link(&self) -> Arc<Link> {
        self.connection.link().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::{Consumer, FrameMeta, Producer};
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_handle_in_a_forked_child_neither_locks_nor_counts() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(pool.to_str().unwrap()).build().unwrap();
        let mut consumer = Consumer::builder(producer.pool()).connect().unwrap();
        drop(producer.acquire(10).unwrap().publish(FrameMeta::new(10)));
        let frame = consumer.receive(Some(Duration::from_secs(60))).unwrap();
        let leases = frame.hold().holder::<Leases>().unwrap();
        let mut handles = vec![frame.clone(), frame];
        let drops_all = || {
            handles.extend(handles.clone());
            handles.clear();
            true
        };
        assert!(
            is_so_in_a_child_without(|| leases.lock(), drops_all),
            "it hung"
        );
        let left = |handles: usize| assert_eq!(consumer.held(), u32::from(handles > 0));
        left(handles.len());
        while handles.pop().is_some() {
            left(handles.len());
        }
    }
}
