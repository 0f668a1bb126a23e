// SPDX-License-Identifier: MPL-2.0

//! Leases that this process has. A slot is leased once per connection, however many handles there are to it.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::session::Session;
use crate::fault::{self, Point};
use crate::parts::Origin;
use crate::protocol::lease::{self, Hold};
use crate::region::RegionView;
use crate::sync::{Ordering, fence};

/// A frame that is held. The last handle to it ends the lease.
pub(crate) struct Held {
    session: Arc<Session>,
    /// Tells this lease from a later one of the same slot.
    token: u64,
    place: SlotPlace,
}

/// A frame's slot, and where that lies here.
#[derive(Debug)]
pub(super) struct SlotPlace {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) view: Arc<RegionView>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("slot", &self.place.slot)
            .field("generation", &self.place.generation)
            .finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn ptr(&self) -> *const u8 {
        self.place.view.ptr().wrapping_add(self.place.offset)
    }

    pub(crate) fn len(&self) -> usize {
        self.place.len
    }

    pub(crate) fn pool_name(&self) -> &str {
        self.session.pool_name()
    }

    /// The region of its slot, and the slot's first byte there.
    pub(crate) fn view(&self) -> (&Arc<RegionView>, usize) {
        (&self.place.view, self.place.offset)
    }

    /// Its slot, and the socket of its pool.
    pub(crate) fn origin(&self) -> (Origin, &Path) {
        let origin = Origin {
            pool_id: self.session.control.constants().pool_id,
            slot: self.place.slot,
            generation: self.place.generation,
        };
        (origin, &self.session.path)
    }

    /// The socket of a pool that frames of its own come from.
    pub(crate) fn path_of(&self, pool_id: u64) -> Option<PathBuf> {
        self.session.origins.path(pool_id).map(PathBuf::from)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A forked child inherits the handle, not the lease.
        if self.session.process.is_current() {
            self.session.held.release(&self.session, self);
        }
    }
}

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The slot holds another frame by now.
    Gone,
    /// The limit on leases is reached.
    OverBudget,
}

#[derive(Debug, Default)]
struct Table {
    leases: HashMap<u32, (u64, Weak<Held>)>,
    last_token: u64,
}

/// The leases of one connection, by slot.
#[derive(Debug, Default)]
pub(crate) struct HeldTable(Mutex<Table>);

/// How often to look again at a slot that the producer looks at.
const CLAIMED_RETRIES: u32 = 1000;

impl HeldTable {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> u32 {
        self.lock().leases.len() as u32
    }

    /// Takes a lease on a frame, or one more handle to one that is held already.
    pub(super) fn take(
        &self,
        session: &Arc<Session>,
        place: SlotPlace,
        limit: u32,
    ) -> Result<Arc<Held>, NotTaken> {
        let SlotPlace {
            slot, generation, ..
        } = place;
        let word = session.control.slot(slot).ok_or(NotTaken::Gone)?;
        let lease_word = session
            .page
            .leases()
            .get(slot as usize)
            .ok_or(NotTaken::Gone)?;
        let taken = session
            .page
            .taken()
            .get(slot as usize)
            .ok_or(NotTaken::Gone)?;
        let mut table = self.lock();
        let existing = table.leases.get(&slot).map(|(_, held)| held.upgrade());
        match existing {
            Some(Some(held)) => {
                // Before `held` may go: its drop takes the lock.
                drop(table);
                // A held slot cannot hold another frame, unless the producer lies.
                return if held.place.generation == generation {
                    Ok(held)
                } else {
                    Err(NotTaken::Gone)
                };
            }
            Some(None) => {
                // Its last handle is just being dropped, and waits for the lock; it will find that its lease was ended.
                // Pairs with the release in `Arc`'s drop: the reads through that handle are over.
                fence(Ordering::Acquire);
                table.leases.remove(&slot);
                if lease::release(word, lease_word) || session.producer_waits() {
                    session.ring();
                }
            }
            None => {}
        }
        if table.leases.len() as u32 >= limit {
            return Err(NotTaken::OverBudget);
        }
        let mut tries = 0;
        loop {
            match lease::hold(word, lease_word, generation) {
                Hold::Held => break,
                // The producer looks at it, and puts it back if somebody else holds it. It does not look for long.
                Hold::Claimed if tries < CLAIMED_RETRIES => {
                    tries += 1;
                    std::hint::spin_loop();
                }
                Hold::Claimed | Hold::Gone => return Err(NotTaken::Gone),
            }
        }
        taken.store(generation, Ordering::Release);
        fault::point(Point::TakenStored);
        table.last_token += 1;
        let held = Arc::new(Held {
            session: session.clone(),
            token: table.last_token,
            place,
        });
        table
            .leases
            .insert(slot, (held.token, Arc::downgrade(&held)));
        Ok(held)
    }

    fn release(&self, session: &Session, held: &Held) {
        let mut table = self.lock();
        if table
            .leases
            .get(&held.place.slot)
            .is_none_or(|(token, _)| *token != held.token)
        {
            return;
        }
        table.leases.remove(&held.place.slot);
        let words = session
            .control
            .slot(held.place.slot)
            .zip(session.page.leases().get(held.place.slot as usize));
        let asked = words.is_some_and(|(word, lease_word)| lease::release(word, lease_word));
        drop(table);
        if asked || session.producer_waits() {
            session.ring();
        }
    }
}
