// SPDX-License-Identifier: MPL-2.0

//! The pools that frames of a pool come from. A frame that was forwarded lies in a slot of another pool, so whoever takes
//! it needs a lease there: the one that the forwarding process has ends with that process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Consumer;
use super::held::{Held, NotTaken, SlotPlace};
use super::session::Session;
use crate::parts::Origin;
use crate::region::RegionView;
use crate::wire::ToProducer;

/// The most pools of origin that a consumer joins.
const MAX_ORIGINS: usize = 8;

#[derive(Debug, Clone)]
struct Known {
    pool_id: u64,
    path: String,
    /// `None`: not joined yet, or not to be joined.
    session: Option<Arc<Session>>,
}

/// The pools of origin that a consumer heard of.
#[derive(Debug, Default)]
pub(super) struct Origins(Mutex<Vec<Known>>);

impl Origins {
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket of a pool of origin.
    pub(super) fn path(&self, pool_id: u64) -> Option<String> {
        let known = self.lock();
        let known = known.iter().find(|known| known.pool_id == pool_id)?;
        Some(known.path.clone())
    }

    fn session(&self, pool_id: u64) -> Option<Arc<Session>> {
        let known = self.lock();
        let known = known.iter().find(|known| known.pool_id == pool_id)?;
        known.session.clone()
    }

    /// `false`: it is known already, or there are too many.
    fn add(&self, pool_id: u64, path: &str) -> bool {
        let mut gone = Vec::new();
        let mut known = self.lock();
        if known.iter().any(|known| known.pool_id == pool_id) {
            return false;
        }
        if known.len() >= MAX_ORIGINS {
            // Frames that are held keep their session.
            gone = known
                .extract_if(.., |known| {
                    known
                        .session
                        .as_ref()
                        .is_none_or(|session| session.is_lost())
                })
                .collect();
        }
        let room = known.len() < MAX_ORIGINS;
        if room {
            known.push(Known {
                pool_id,
                path: path.to_owned(),
                session: None,
            });
        }
        drop(known);
        drop(gone);
        room
    }

    fn joined(&self, pool_id: u64, session: Arc<Session>) {
        let mut known = self.lock();
        if let Some(known) = known.iter_mut().find(|known| known.pool_id == pool_id) {
            known.session = Some(session);
        }
    }
}

impl Session {
    /// The producer says that frames may come from another pool. Joins that one, to hold frames there, and says so.
    pub(super) fn meet_origin(self: &Arc<Self>, pool_id: u64, path: &str) {
        // Who takes no frames there needs to hold none elsewhere.
        if self.holds_only || !Path::new(path).is_absolute() || !self.origins.add(pool_id, path) {
            return;
        }
        let name = format!("{} via {}", self.name, self.pool_name());
        let join = Consumer::builder(path)
            .max_held(self.budget)
            .name(&name)
            .holds_only();
        let session = Arc::downgrade(self);
        // Joining takes as long as the other producer likes, and this thread has others to serve.
        let thread = std::thread::Builder::new().name("xmem-origin".into());
        let spawned = thread.spawn(move || {
            let joined = join.connect();
            let Some(session) = session.upgrade() else {
                return;
            };
            match joined {
                Ok(origin) if origin.session().control.constants().pool_id == pool_id => {
                    // It takes no frames there, it only holds some. Dropping the consumer says so.
                    let held_there = origin.session().clone();
                    drop(origin);
                    session.origins.joined(pool_id, held_there);
                    let _ = session.say_written(&ToProducer::Reaches { pool_id });
                }
                Ok(_) => log::debug!("the pool of origin has another producer by now"),
                // Then frames are copied for us.
                Err(error) => log::debug!("a pool of origin cannot be joined: {error}"),
            }
        });
        if let Err(error) = spawned {
            log::warn!("a pool of origin cannot be joined: {error}");
        }
    }

    /// A lease on a frame where it lies, in the pool that it came from.
    pub(super) fn hold_at_origin(
        &self,
        origin: Origin,
        view: &Arc<RegionView>,
    ) -> Result<Arc<Held>, NotTaken> {
        let session = self.origins.session(origin.pool_id).ok_or(NotTaken::Gone)?;
        let place = SlotPlace {
            slot: origin.slot,
            generation: origin.generation,
            view: view.clone(),
            offset: 0,
            len: view.len(),
        };
        // One more than the budget, as for frames that are copied out.
        session
            .held
            .take(&session, place, session.budget.saturating_add(1))
    }
}
