// SPDX-License-Identifier: MPL-2.0

//! Taking the frame that an entry describes: its sticky state, its region, its lease, its pieces.

use std::sync::Arc;

use xmem_shm::abi::budget::BudgetLimit;
use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::layout::{FLAG_CUT_OFF, FLAG_TIMED_OUT};
use xmem_shm::abi::parts::PartPlace;
use xmem_shm::bounds::lie_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::clock::monotonic_ns;
use xmem_shm::sync::Ordering;

use super::held::{NotTaken, Purpose, SlotPlace};
use super::session::Session;
use crate::cancel::Canceller;
use crate::error::ReceiveError;
use crate::frame::hold::Hold;
use crate::frame::lease::{Malformed, ReadLease};
use crate::frame::parts::Part;

impl From<Malformed> for ReceiveError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Corrupt(what)
    }
}

impl Session {
    /// What the producer has said about this consumer.
    pub(super) fn check_flags(&self) -> Result<(), ReceiveError> {
        let flags = self.page.flags().load(Ordering::Relaxed);
        if flags & FLAG_CUT_OFF != 0 {
            Err(ReceiveError::CutOff)
        } else if flags & FLAG_TIMED_OUT != 0 {
            Err(ReceiveError::TimedOut)
        } else {
            Ok(())
        }
    }

    /// Takes the frame that an entry describes. `None`: the frame is gone.
    pub(super) fn take(
        self: &Arc<Self>,
        entry: Entry,
        purpose: Purpose,
        wants_parts: bool,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        let meta = &entry.meta;
        if meta.generation == 0 {
            return Err(ReceiveError::Corrupt("an entry without a generation"));
        }
        let Some(sticky) = self.sticky(meta.sticky_version, deadline, cancel)? else {
            return Ok(None);
        };
        let Some(view) = self.region(entry.region, deadline, cancel)? else {
            return Ok(None);
        };
        if !lie_inside(entry.offset, entry.len, view.len() as u64) {
            return Err(ReceiveError::Corrupt("a slot lies outside its region"));
        }
        let (offset, len) = (entry.offset as usize, entry.len as usize);
        if !view.has_slots() {
            return Err(ReceiveError::Corrupt(
                "a slot lies in somebody else's memory",
            ));
        }
        self.held
            .wait_for_device(self, meta.slot, deadline, cancel)?;
        let place = SlotPlace {
            slot: meta.slot,
            generation: meta.generation,
            view,
            offset,
            len,
        };
        match self.held.take(self, place, purpose) {
            Ok(held) => ReadLease::new(held, entry, sticky, &|places| {
                self.find_parts(places, purpose, wants_parts, deadline, cancel)
            }),
            Err(NotTaken::Gone) => Ok(None),
            Err(NotTaken::OverBudget) => {
                self.warn_of_budget();
                Err(ReceiveError::OverBudget {
                    budget: self.budget(),
                })
            }
        }
    }

    /// Logs once why the budget that is used up is smaller than what was asked for.
    fn warn_of_budget(&self) {
        let limit = self.budget_limit();
        if limit != BudgetLimit::Asked && !self.warned_of_budget.swap(true, Ordering::Relaxed) {
            log::warn!(
                "pool {:?}: all {} slots that this consumer may hold at once are held: raise {limit} of the producer",
                self.pool_name(),
                self.budget()
            );
        }
    }

    /// Finds the pieces of a frame that is held. `None`: one is gone, or whoever asks cannot take it as it is.
    fn find_parts(
        &self,
        places: Vec<PartPlace>,
        purpose: Purpose,
        wants_parts: bool,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Vec<Part>>, ReceiveError> {
        let mut parts = Vec::with_capacity(places.len());
        for place in places {
            let Some(view) = self.region(place.region, deadline, cancel)? else {
                return Ok(None);
            };
            let held_there = match place.origin {
                Some(origin) => {
                    match self.hold_at_origin(origin, &view, purpose, deadline, cancel)? {
                        Ok(held) => Some(held as Arc<dyn Hold>),
                        Err(NotTaken::Gone) => return Ok(None),
                        Err(NotTaken::OverBudget) => {
                            return Err(ReceiveError::OverBudget {
                                budget: self.budget(),
                            });
                        }
                    }
                }
                None => None,
            };
            let part = Part::new(view, place, held_there)
                .ok_or(ReceiveError::Corrupt("a piece lies outside its region"))?;
            parts.push(part);
        }
        if wants_parts {
            return Ok(Some(parts));
        }
        if parts.iter().all(Part::is_on_device) {
            // It is for the device to read.
            return Ok(Some(parts));
        }
        let readable = match parts.as_slice() {
            [part] => part.map().map(drop).map_err(|error| error.to_string()),
            parts => Err(format!("it lies in {} pieces", parts.len())),
        };
        match readable {
            Ok(()) => Ok(Some(parts)),
            Err(reason) => {
                log::warn!(
                    "pool {:?}: missing a frame, since {reason}: ask for `parts` to take such frames",
                    self.pool_name()
                );
                Ok(None)
            }
        }
    }

    /// Only this side writes the words.
    pub(super) fn count(&self, published_at: i64) {
        let page = &self.page;
        page.received().store(
            page.received().load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        fault::point(Point::ReceivedCounted);
        let latency = monotonic_ns()
            .saturating_sub(published_at)
            .max(0)
            .cast_unsigned();
        let before = page.latency().load(Ordering::Relaxed);
        let smoothed = if before == 0 {
            latency
        } else {
            before - before / 8 + latency / 8
        };
        page.latency().store(smoothed, Ordering::Relaxed);
    }
}
