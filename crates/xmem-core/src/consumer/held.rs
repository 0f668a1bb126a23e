// SPDX-License-Identifier: MPL-2.0

//! Leases that this process has. A slot is leased once per connection, however many handles there are to it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::parts::Origin;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;
use xmem_shm::protocol::lease;
use xmem_shm::sync::{AtomicU32, Ordering, fence};

#[cfg(feature = "cuda")]
use super::session::Link;
use super::session::Session;
use crate::cancel::Canceller;
use crate::error::ReceiveError;
use crate::frame::hold::{Hold, Received};
use crate::region::RegionView;

/// A frame that is held. The last handle to it ends the lease.
pub(crate) struct Held {
    session: Arc<Session>,
    /// Tells this lease from a later one of the same slot. [`GLIMPSE`]: there is no lease.
    token: u64,
    place: SlotPlace,
}

/// The token of a frame that is looked at without a lease, as long as another process has one.
const GLIMPSE: u64 = 0;

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

impl Hold for Held {
    fn ptr(&self) -> *const u8 {
        self.place.view.ptr().wrapping_add(self.place.offset)
    }

    fn len(&self) -> usize {
        self.place.len
    }

    fn device_len(&self) -> Option<usize> {
        let header = self.place.view.cuda()?.header();
        usize::try_from(header.device_stride).ok()
    }

    fn pool_name(&self) -> &str {
        self.session.pool_name()
    }

    fn received(&self) -> Option<&dyn Received> {
        Some(self)
    }

    #[cfg(feature = "cuda")]
    fn pin(&self, device: &xmem_cuda::device::Device) {
        self.place.view.pin(device);
    }
}

impl Received for Held {
    fn view(&self) -> (&Arc<RegionView>, usize) {
        (&self.place.view, self.place.offset)
    }

    fn origin(&self) -> (Origin, &Path) {
        let origin = Origin {
            pool_id: self.session.control.constants().pool_id,
            slot: self.place.slot,
            generation: self.place.generation,
        };
        (origin, &self.session.path)
    }

    fn path_of(&self, pool_id: u64) -> Option<PathBuf> {
        self.session.origins.path(pool_id).map(PathBuf::from)
    }

    fn is_lease(&self) -> bool {
        self.token != GLIMPSE
    }

    fn is_intact(&self) -> bool {
        self.is_lease()
            || self
                .session
                .control
                .slot(self.place.slot)
                .is_some_and(|word| lease::is_there(word, self.place.generation))
    }

    fn producer_is_gone(&self) -> bool {
        self.session.is_disconnected()
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

/// What the device half of a frame needs of its lease.
#[cfg(feature = "cuda")]
impl Held {
    pub(crate) fn check_process(&self) -> Result<(), xmem_cuda::error::CudaError> {
        if self.session.process.is_current() {
            Ok(())
        } else {
            Err(xmem_cuda::error::CudaError::Forked)
        }
    }

    /// The connection, which the producer takes the end of for the end of all that this process has of it.
    pub(crate) fn link(&self) -> Arc<Link> {
        self.session.link().clone()
    }

    /// Tells the producer how this process came by the frame's device memory.
    pub(crate) fn say_device(&self, works: bool, how: &str) {
        self.session.say_device(works, how);
    }

    /// Has the producer mark frames when devices are done with them, since its events cannot be opened here.
    pub(crate) fn ask_for_marks(&self) {
        self.session.ask_for_marks();
    }

    /// The lease page, as devices can write it.
    pub(crate) fn device_page(
        &self,
        device: &xmem_cuda::device::Device,
    ) -> Result<Arc<super::device_page::DevicePage>, xmem_cuda::error::CudaError> {
        self.session.device_page(device)
    }

    /// Hands the lease over to a device, which will clear its word. Gives it back if there are other handles.
    pub(crate) fn hand_over(held: Arc<Self>) -> Result<Handed, Arc<Self>> {
        let session = held.session.clone();
        let mut table = session.held.lock();
        // Nobody gets another handle meanwhile: they are handed out under the lock.
        if Arc::strong_count(&held) > 1 {
            drop(table);
            return Err(held);
        }
        // Pairs with the release in `Arc`'s drop: the reads through other handles are over before the device may end the lease.
        fence(Ordering::Acquire);
        let slot = held.place.slot;
        table.leases.remove(&slot);
        let is_over = Arc::<AtomicBool>::default();
        table.handed.push((slot, is_over.clone()));
        session.held.num_handed.fetch_add(1, Ordering::Relaxed);
        drop(table);
        let handed = Handed {
            session: session.clone(),
            _view: held.place.view.clone(),
            slot,
            is_over,
        };
        // It is not in the table any more, so this ends nothing.
        drop(held);
        Ok(handed)
    }
}

/// A lease that a device ends, and what has to stay until then.
#[cfg(feature = "cuda")]
pub(crate) struct Handed {
    session: Arc<Session>,
    _view: Arc<RegionView>,
    slot: u32,
    is_over: Arc<AtomicBool>,
}

#[cfg(feature = "cuda")]
impl Handed {
    /// Whether the device has ended it.
    pub(crate) fn is_over(&self) -> bool {
        let mut table = self.session.held.lock();
        table.sweep_handed(&self.session);
        self.is_over.load(Ordering::Relaxed)
    }

    /// Ends it, if the device has not, and says so to a producer that wants to know.
    pub(crate) fn end(self) {
        if !self.session.process.is_current() {
            return;
        }
        let mut table = self.session.held.lock();
        table.sweep_handed(&self.session);
        let words = self
            .session
            .control
            .slot(self.slot)
            .zip(self.session.page.leases().get(self.slot as usize));
        let mut asked = false;
        if let Some((word, lease_word)) = words {
            if self.is_over.load(Ordering::Relaxed) {
                // By now the word may be another lease's.
                asked = lease::rings(word);
            } else {
                asked = lease::release(word, lease_word);
                table.sweep_handed(&self.session);
            }
        }
        drop(table);
        if asked || self.session.producer_waits() {
            self.session.ring();
        }
    }
}

/// What a frame is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To be held, within the budget. With a budget of 0, one at a time.
    Keep,
    /// To be copied out at once, also past the budget: one at a time.
    CopyOut,
}

/// Why a frame was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The slot holds another frame by now.
    Gone,
    /// As many leases are held as may be.
    OverBudget,
}

#[derive(Debug, Default)]
struct Table {
    /// Few; to hash their keys would take longer than to go through them.
    leases: BTreeMap<u32, (u64, Weak<Held>)>,
    /// Slots whose leases a device ends, by a store that nobody knows the time of. No lease of such a slot is handed out.
    handed: Vec<(u32, Arc<AtomicBool>)>,
    /// The slot of the last lease that was taken past the budget.
    extra: Option<u32>,
    last_token: u64,
}

impl Table {
    fn count(&self) -> u32 {
        (self.leases.len() + self.handed.len()) as u32
    }

    /// Whether one more frame may be taken, and if so, whether it is past the budget. There is one such frame at a time.
    fn is_extra(&self, budget: u32, purpose: Purpose) -> Result<bool, NotTaken> {
        let held = self.count();
        if held < budget {
            return Ok(false);
        }
        let has_extra = self.extra.is_some_and(|slot| {
            let is_handed = |(handed, _): &(u32, _)| *handed == slot;
            self.leases.contains_key(&slot) || self.handed.iter().any(is_handed)
        });
        let is_allowed = purpose == Purpose::CopyOut || held == 0;
        if is_allowed && !has_extra {
            Ok(true)
        } else {
            Err(NotTaken::OverBudget)
        }
    }

    /// Finds the leases that a device has ended.
    fn sweep_handed(&mut self, session: &Session) {
        self.handed.retain(|(slot, is_over)| {
            let word = session.page.leases().get(*slot as usize);
            // Acquire: all that the device read, it read before.
            if word.is_some_and(|word| word.load(Ordering::Acquire) != 0) {
                return true;
            }
            is_over.store(true, Ordering::Relaxed);
            session.held.num_handed.fetch_sub(1, Ordering::Relaxed);
            false
        });
    }
}

/// The leases of one connection, by slot.
#[derive(Debug, Default)]
pub(crate) struct HeldTable {
    table: Mutex<Table>,
    /// How many leases a device ends: none, for who has none.
    num_handed: AtomicU32,
}

/// How often to look again at a slot that the producer looks at.
const CLAIMED_RETRIES: u32 = 1000;
/// How often to look whether a device has ended a lease.
const DEVICE_PAUSE: Duration = Duration::from_micros(100);

impl HeldTable {
    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// Waits until no device is going to end a lease of this slot: its store would end the next one.
    pub(super) fn wait_for_device(
        &self,
        session: &Session,
        slot: u32,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<(), ReceiveError> {
        if self.num_handed.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let limit = Deadline::after(Some(ANSWER_TIME));
        loop {
            let mut table = self.lock();
            table.sweep_handed(session);
            let waits = table.handed.iter().any(|(handed, _)| *handed == slot);
            drop(table);
            // After the limit it will not end it: its kernel hangs, or was never launched. The frame is missed then.
            if !waits || limit.is_over() {
                return Ok(());
            }
            if cancel.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            if deadline.is_over() {
                return Err(ReceiveError::Timeout);
            }
            std::thread::sleep(DEVICE_PAUSE);
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.lock().count()
    }

    /// Takes a lease on a frame, or one more handle to one that is held already.
    pub(super) fn take(
        &self,
        session: &Arc<Session>,
        place: SlotPlace,
        purpose: Purpose,
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
        if !table.handed.is_empty() {
            table.sweep_handed(session);
            if table.handed.iter().any(|(handed, _)| *handed == slot) {
                // The device's store would end the new lease too.
                return Err(NotTaken::Gone);
            }
        }
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
        table.is_extra(session.budget(), purpose)?;
        let mut tries = 0;
        loop {
            match lease::hold(word, lease_word, generation) {
                lease::Hold::Held => break,
                // The producer looks at it, and puts it back if somebody else holds it. It does not look for long.
                lease::Hold::Claimed if tries < CLAIMED_RETRIES => {
                    tries += 1;
                    std::hint::spin_loop();
                }
                lease::Hold::Claimed | lease::Hold::Gone => return Err(NotTaken::Gone),
            }
        }
        // The budget counts as it is now. The fence in `hold` pairs with the one in `State::share_out`: either the producer saw
        // the lease when it made the budget smaller, or the smaller budget is seen here.
        let is_extra = match table.is_extra(session.budget(), purpose) {
            Ok(is_extra) => is_extra,
            Err(refusal) => {
                let asked = lease::release(word, lease_word);
                drop(table);
                if asked || session.producer_waits() {
                    session.ring();
                }
                return Err(refusal);
            }
        };
        // A frame within the budget means that all leases are within it.
        table.extra = is_extra.then_some(slot);
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

    /// The same for a frame to be copied out, but where no lease is left a look at the frame without a lease. It has to be asked afterwards whether the frame
    /// [was still there](Held::is_intact).
    pub(super) fn take_or_glimpse(
        &self,
        session: &Arc<Session>,
        place: SlotPlace,
    ) -> Result<Arc<Held>, NotTaken> {
        let glimpse = SlotPlace {
            view: place.view.clone(),
            ..place
        };
        match self.take(session, place, Purpose::CopyOut) {
            Err(NotTaken::OverBudget) => {}
            taken => return taken,
        }
        let glimpse = Held {
            session: session.clone(),
            token: GLIMPSE,
            place: glimpse,
        };
        if glimpse.is_intact() {
            Ok(Arc::new(glimpse))
        } else {
            Err(NotTaken::Gone)
        }
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
