// SPDX-License-Identifier: MPL-2.0

//! The pools that frames of a pool come from. A frame that was forwarded lies in a slot of another pool, so whoever takes
//! it needs a lease there: the one that the forwarding process has ends with that process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::parts::Origin;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::Consumer;
use super::held::{Held, NotTaken, Purpose, SlotPlace};
use super::session::Session;
use crate::cancel::Canceller;
use crate::error::{ConnectError, ReceiveError};
use crate::region::RegionView;

/// The most pools of origin that a consumer joins.
const MAX_JOINED: usize = 8;
/// The most that it remembers not to reach.
const MAX_OUT_OF_REACH: usize = 16;

#[derive(Debug, Clone)]
enum Progress {
    Joining,
    Joined(Arc<Session>),
    OutOfReach,
}

#[derive(Debug)]
struct Known {
    pool_id: u64,
    path: String,
    progress: Progress,
}

impl Known {
    fn is_out_of_reach(&self) -> bool {
        matches!(self.progress, Progress::OutOfReach)
    }

    fn is_lost(&self) -> bool {
        matches!(&self.progress, Progress::Joined(session) if session.is_lost() || session.is_disconnected())
    }
}

/// The pools of origin that a consumer heard of.
#[derive(Debug, Default)]
pub(super) struct Origins(Mutex<Vec<Known>>);

impl Origins {
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        lock(&self.0)
    }

    /// The socket of a pool of origin.
    pub(super) fn path(&self, pool_id: u64) -> Option<String> {
        let known = self.lock();
        let known = known.iter().find(|known| known.pool_id == pool_id)?;
        Some(known.path.clone())
    }

    /// The connection to a pool of origin, `Some(None)` if it is out of reach. `None`: it is not known yet, or is being
    /// joined.
    fn settled(&self, pool_id: u64) -> Option<Option<Arc<Session>>> {
        let known = self.lock();
        let known = known.iter().find(|known| known.pool_id == pool_id)?;
        match &known.progress {
            Progress::Joining => None,
            Progress::Joined(session) => Some(Some(session.clone())),
            Progress::OutOfReach => Some(None),
        }
    }

    /// Whether it is to be joined now. `false`: it is known already, or there are too many.
    fn begin(&self, pool_id: u64, path: &str) -> bool {
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
            // Frames that are held keep their session.
            gone = known.extract_if(.., |known| known.is_lost()).collect();
        }
        let is_room = joined(&known) < MAX_JOINED;
        known.push(Known {
            pool_id,
            path: path.to_owned(),
            progress: Progress::Joining,
        });
        drop(known);
        drop(gone);
        if !is_room {
            log::debug!("a pool of origin is not joined: there are {MAX_JOINED} already");
            self.settle(pool_id, Progress::OutOfReach);
        }
        is_room
    }

    fn settle(&self, pool_id: u64, progress: Progress) {
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
}

impl Session {
    /// The producer says that frames may come from another pool. Joins that one, to hold frames there, and says so.
    pub(super) fn meet_origin(self: &Arc<Self>, pool_id: u64, path: &str) {
        // Who takes no frames there needs to hold none elsewhere.
        if self.holds_only {
            return;
        }
        if !self.origins.begin(pool_id, path) {
            // Asked again, it is said again: the producer may not have heard it.
            if let Some(session) = self.origins.settled(pool_id) {
                self.say_reaches(pool_id, session.is_some());
            }
            return;
        }
        fault::point(Point::OriginMet);
        if !Path::new(path).is_absolute() {
            return self.origin_settled(pool_id, None);
        }
        let join = Consumer::builder(path)
            .max_held(self.granted)
            .name(&self.name)
            .holds_only_for(self.pool_name());
        let session = Arc::downgrade(self);
        // Joining takes as long as the other producer likes, and this thread has others to serve.
        let thread = std::thread::Builder::new().name("xmem-origin".into());
        let spawned = thread.spawn(move || {
            let joined = join_origin(&join, pool_id);
            if let Some(session) = session.upgrade() {
                session.origin_settled(pool_id, joined);
            }
        });
        if let Err(error) = spawned {
            log::warn!("a pool of origin cannot be joined: {error}");
            self.origin_settled(pool_id, None);
        }
    }

    /// The producer does not know where that pool is.
    pub(super) fn miss_origin(&self, pool_id: u64) {
        if self.origins.begin(pool_id, "") {
            self.origin_settled(pool_id, None);
        }
    }

    fn origin_settled(&self, pool_id: u64, joined: Option<Arc<Session>>) {
        let yes = joined.is_some();
        fault::point(Point::OriginJoined);
        let progress = joined.map_or(Progress::OutOfReach, Progress::Joined);
        self.origins.settle(pool_id, progress);
        self.say_reaches(pool_id, yes);
        fault::point(Point::OriginSaid);
        // Who has such a frame in hand waits for this.
        self.bell.ring();
    }

    fn say_reaches(&self, pool_id: u64, yes: bool) {
        let _ = self.send(&ToProducer::Reaches { pool_id, yes });
    }

    /// A lease on a frame where it lies, in the pool that it came from. Waits until that pool is joined. Past the budget
    /// there, what is to be copied out is left to the lease of whoever forwarded it, which our own lease there makes last as
    /// long as that process.
    pub(super) fn hold_at_origin(
        &self,
        origin: Origin,
        view: &Arc<RegionView>,
        purpose: Purpose,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Result<Arc<Held>, NotTaken>, ReceiveError> {
        let pool_id = origin.pool_id;
        let session = match self.origins.settled(pool_id) {
            Some(settled) => settled,
            None => {
                let question = ToProducer::GetOrigin { pool_id };
                let look = |_: &mut _| self.origins.settled(pool_id);
                self.ask(&question, true, deadline, cancel, look)?
            }
        };
        let Some(session) = session else {
            return Ok(Err(NotTaken::Gone));
        };
        let place = SlotPlace {
            slot: origin.slot,
            generation: origin.generation,
            view: view.clone(),
            offset: 0,
            len: view.len(),
        };
        let held = match purpose {
            // A lease here ends an instant after the one of the frame that it was taken for, so one more than the budget.
            Purpose::Keep => session.held.take(&session, place, Purpose::CopyOut),
            Purpose::CopyOut => session.held.take_or_glimpse(&session, place),
        };
        fault::point(Point::OriginHeld);
        Ok(held)
    }
}

/// `None`: it is out of reach.
fn join_origin(join: &super::ConsumerBuilder, pool_id: u64) -> Option<Arc<Session>> {
    match join.connect() {
        Ok(origin) if origin.session().control.constants().pool_id == pool_id => {
            // It takes no frames there, it only holds some. Dropping the consumer says so.
            Some(origin.session().clone())
        }
        Ok(_) => {
            log::debug!("the pool of origin has another producer by now");
            None
        }
        // Then frames are copied for us.
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
