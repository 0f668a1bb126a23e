// SPDX-License-Identifier: MPL-2.0

//! Pools of origin. A forwarded frame is in a slot of another pool. A consumer that takes it needs a lease there too, because
//! the lease of the forwarding process ends with that process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::parts::Origin;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::connection::Connection;
use super::leases::{Leases, Purpose, TakeError};
use crate::cancel::Canceller;
use crate::error::{ConnectError, ReceiveError};
use crate::frame::hold::{Hold, Memory, SlotPlace};
use crate::region::RegionView;

/// The maximum number of pools of origin that a consumer joins.
const MAX_JOINED: usize = 8;
/// The maximum number of pools that are recorded as unreachable.
const MAX_OUT_OF_REACH: usize = 16;

enum Progress {
    Joining,
    Joined(Arc<Leases>),
    OutOfReach,
}

struct Known {
    pool_id: u64,
    progress: Progress,
}

impl Known {
    fn is_out_of_reach(&self) -> bool {
        matches!(self.progress, Progress::OutOfReach)
    }

    fn is_lost(&self) -> bool {
        let Progress::Joined(leases) = &self.progress else {
            return false;
        };
        let connection = leases.connection();
        connection.is_lost() || connection.link().is_disconnected()
    }
}

/// Joins the pool with its socket at this path, to hold frames there.
pub(super) type Join = dyn Fn(&str) -> Result<Arc<Leases>, ConnectError> + Send + Sync;

/// The pools of origin of one connection.
pub(super) struct Origins {
    connection: Arc<Connection>,
    /// `None`: this consumer takes no frames, so it needs to hold none elsewhere.
    join: Option<Arc<Join>>,
    known: Mutex<Vec<Known>>,
}

impl Origins {
    pub(super) fn new(connection: &Arc<Connection>, join: Option<Arc<Join>>) -> Self {
        Self {
            connection: connection.clone(),
            join,
            known: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        lock(&self.known)
    }

    /// The leases in a pool of origin; `Some(None)` if it is unreachable. `None`: it is unknown, or is being joined.
    fn settled(&self, pool_id: u64) -> Option<Option<Arc<Leases>>> {
        let known = self.lock();
        let known = known.iter().find(|known| known.pool_id == pool_id)?;
        match &known.progress {
            Progress::Joining => None,
            Progress::Joined(leases) => Some(Some(leases.clone())),
            Progress::OutOfReach => Some(None),
        }
    }

    /// Whether to join it now. `false`: it is already known, or there are too many.
    fn begin(&self, pool_id: u64) -> bool {
        let mut known = self.lock();
        if known.iter().any(|known| known.pool_id == pool_id) {
            return false;
        }
        let joined = |known: &[Known]| {
            known
                .iter()
                .filter(|known| !known.is_out_of_reach())
                .count()
        };
        let mut gone = Vec::new();
        if joined(&known) >= MAX_JOINED {
            // Held frames keep their connection.
            gone = known.extract_if(.., |known| known.is_lost()).collect();
        }
        let is_room = joined(&known) < MAX_JOINED;
        known.push(Known {
            pool_id,
            progress: Progress::Joining,
        });
        drop(known);
        drop(gone);
        if !is_room {
            log::debug!("a pool of origin is not joined: there are {MAX_JOINED} already");
            self.set_progress(pool_id, Progress::OutOfReach);
        }
        is_room
    }

    fn set_progress(&self, pool_id: u64, progress: Progress) {
        let mut known = self.lock();
        if let Some(known) = known.iter_mut().find(|known| known.pool_id == pool_id) {
            known.progress = progress;
        }
        let out_of_reach = known.iter().filter(|known| known.is_out_of_reach()).count();
        if out_of_reach > MAX_OUT_OF_REACH
            && let Some(oldest) = known.iter().position(Known::is_out_of_reach)
        {
            known.remove(oldest);
        }
    }

    /// Frames of this pool may be forwarded. Joins it, and reports whether that succeeded.
    pub(super) fn join_and_report(self: &Arc<Self>, pool_id: u64, path: &str) {
        let Some(join) = &self.join else {
            return;
        };
        if !self.begin(pool_id) {
            // The producer asks again, so it may not have received the report.
            if let Some(leases) = self.settled(pool_id) {
                self.report(pool_id, leases.is_some());
            }
            return;
        }
        fault::point(Point::OriginMet);
        if !Path::new(path).is_absolute() {
            return self.settle(pool_id, None);
        }
        let (join, path) = (join.clone(), path.to_owned());
        let origins = Arc::downgrade(self);
        // Joining can take long, and this thread must read other messages.
        let thread = std::thread::Builder::new().name("xmem-origin".into());
        let spawned = thread.spawn(move || {
            let joined = join_origin(&*join, &path, pool_id);
            if let Some(origins) = origins.upgrade() {
                origins.settle(pool_id, joined);
            }
        });
        if let Err(error) = spawned {
            log::warn!("a pool of origin cannot be joined: {error}");
            self.settle(pool_id, None);
        }
    }

    /// Called when the producer has no path for this pool.
    pub(super) fn miss(&self, pool_id: u64) {
        if self.begin(pool_id) {
            self.settle(pool_id, None);
        }
    }

    fn settle(&self, pool_id: u64, joined: Option<Arc<Leases>>) {
        let is_reached = joined.is_some();
        fault::point(Point::OriginJoined);
        let progress = joined.map_or(Progress::OutOfReach, Progress::Joined);
        self.set_progress(pool_id, progress);
        self.report(pool_id, is_reached);
        fault::point(Point::OriginSaid);
        // `hold` may be waiting for this.
        self.connection.link().notify();
    }

    fn report(&self, pool_id: u64, yes: bool) {
        let message = ToProducer::Reaches { pool_id, yes };
        let _ = self.connection.link().send(&message);
    }

    /// A lease on a frame in its pool of origin. Waits until that pool is joined. If the budget there is used up, a frame that
    /// is to be copied is read without a lease: the forwarding process has one, while it lives and this consumer's lease in its
    /// pool lasts.
    pub(super) fn hold(
        &self,
        origin: Origin,
        view: &Arc<RegionView>,
        purpose: Purpose,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Result<Hold, TakeError>, ReceiveError> {
        let pool_id = origin.pool_id;
        let leases = match self.settled(pool_id) {
            Some(settled) => settled,
            None => {
                let question = ToProducer::GetOrigin { pool_id };
                let check = || self.settled(pool_id);
                let answer = self.connection.ask(&question, deadline, cancel, check)?;
                answer.flatten()
            }
        };
        let Some(leases) = leases else {
            return Ok(Err(TakeError::Gone));
        };
        let place = SlotPlace {
            slot: origin.slot,
            generation: origin.generation,
            memory: Memory::Received(view.clone()),
            offset: 0,
            len: view.len(),
        };
        let held = match purpose {
            // This lease may end slightly after the lease of the previous frame, so one past the budget is allowed.
            Purpose::Keep | Purpose::KeepWithinBudget => leases.take(place, Purpose::CopyOut),
            Purpose::CopyOut => leases.take_or_read_unleased(place),
        };
        fault::point(Point::OriginHeld);
        Ok(held)
    }
}

/// `None`: it is unreachable.
fn join_origin(join: &Join, path: &str, pool_id: u64) -> Option<Arc<Leases>> {
    match join(path) {
        Ok(leases) if leases.connection().pool_id() == pool_id => Some(leases),
        Ok(_) => {
            log::debug!("the pool of origin has another producer by now");
            None
        }
        // The producer then copies frames for this consumer.
        Err(error @ ConnectError::NotFound { .. }) => {
            log::debug!("a pool of origin cannot be joined: {error}");
            None
        }
        Err(error) => {
            log::info!("a pool of origin cannot be joined: {error}");
            None
        }
    }
}
