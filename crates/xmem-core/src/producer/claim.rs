// SPDX-License-Identifier: MPL-2.0

//! Claims a slot to write: selects the slot, and which frame to drop if none is free.

use std::sync::Arc;

use xmem_shm::fault::{self, Point};

use super::slot::Slot;
use crate::error::AcquireError;
use crate::producer::pool::Pool;
use crate::producer::pool::event::Command;
use crate::producer::pool::guard::Guard;
use crate::producer::pool::guard::State;
use crate::producer::pool::history::Span;
use crate::producer::pool::plan::Plan;
use crate::producer::pool::regions::{Cold, Full};
use crate::producer::pool::slots::{Use, Want};
use crate::producer::pool::wait::CHECK_INTERVAL;
use crate::region::{Region, RegionSettings};

/// A search for a slot. Waits for no consumer.
pub(super) struct Search<'a> {
    pub(super) pool: &'a Arc<Pool>,
    pub(super) want: Want,
    /// Allocates a planned region. Called without a lock.
    pub(super) make: &'a dyn Fn(Plan) -> Result<Region, AcquireError>,
}

enum Found {
    Slot(Slot),
    Room(Plan),
    /// Nothing yet: another thread allocates a region.
    Growing,
}

/// Claims a slot in host memory. Waits for no consumer.
pub(super) fn on_host(pool: &Arc<Pool>, want: Want) -> Result<Slot, AcquireError> {
    let make = |plan: Plan| make_region(pool, plan);
    let make = &make;
    let search = Search { pool, want, make };
    search.run().or_else(|error| search.unable_to_grow(error))
}

fn make_region(pool: &Pool, plan: Plan) -> Result<Region, AcquireError> {
    let udmabuf = pool.settings().udmabuf.as_deref();
    let settings = RegionSettings {
        backing: pool.settings().backing,
        shm_prefix: pool.shm_prefix(),
        udmabuf: udmabuf.map(|device| (device, plan.slot_len)),
    };
    Ok(Region::create(plan.len(), settings)?)
}

impl<'a> Search<'a> {
    /// Claims a slot.
    pub(super) fn run(&self) -> Result<Slot, AcquireError> {
        let mut guard = self.pool.guard()?;
        check_open(&guard)?;
        match self.idle(&mut guard) {
            Some(slot) => Ok(slot),
            None => self.in_new_region(guard),
        }
    }

    /// Continues `run` if no slot is idle. It may allocate a new region, with fewer slots if memory is short.
    #[cold]
    fn in_new_region(&self, mut guard: Guard<'a>) -> Result<Slot, AcquireError> {
        let pool = self.pool;
        let mut limit = u32::MAX;
        loop {
            let plan = match self.find(&mut guard, limit)? {
                Found::Slot(slot) => return Ok(slot),
                Found::Room(plan) => plan,
                Found::Growing => {
                    // The plan ends under the lock, so its notification comes after this count.
                    let seen = pool.notifier().count();
                    drop(guard);
                    pool.notifier().wait(seen, CHECK_INTERVAL);
                    guard = self.guard()?;
                    continue;
                }
            };
            if guard.has_rare_effects() {
                // Hooks run without a plan, because they may acquire a slot, or wait for a thread that does.
                guard.regions.abandon(plan);
                drop(guard);
                guard = self.guard()?;
                continue;
            }
            let shortage = guard.regions.recent_shortage();
            if let Some(shortage) = shortage.filter(|_| self.has_slots(&guard)) {
                guard.regions.abandon(plan);
                return self.without_growing(&mut guard, shortage);
            }
            drop(guard);
            // Allocating memory takes milliseconds, so the lock is not held.
            let region = (self.make)(plan);
            fault::point(Point::RegionMade);
            guard = pool.guard()?;
            // For threads in `Found::Growing`. They search again when this thread releases the lock.
            pool.notifier().notify();
            check_open(&guard)?;
            match region {
                Ok(region) => return self.install(guard, plan, region),
                Err(error) => {
                    guard.regions.abandon(plan);
                    guard.history.set_short(true);
                    guard.trim_history(Span::Promised);
                    if let Some(slot) = self.idle(&mut guard) {
                        return Ok(slot);
                    }
                    if plan.slots == 1 {
                        return Err(error);
                    }
                    // Slots of other sizes may take the memory.
                    let want = self.want;
                    if self.has_slots(&guard) || guard.retire(Cold::UnfitFor(want)) == 0 {
                        limit = plan.slots / 2;
                    }
                }
            }
            drop(guard);
            guard = self.guard()?;
        }
    }

    /// As `run` begins, in rare code.
    #[cold]
    fn guard(&self) -> Result<Guard<'a>, AcquireError> {
        let guard = self.pool.guard()?;
        check_open(&guard)?;
        Ok(guard)
    }

    fn install(
        &self,
        mut guard: Guard<'a>,
        plan: Plan,
        region: Region,
    ) -> Result<Slot, AcquireError> {
        let State {
            regions,
            slots,
            history,
            ..
        } = &mut *guard;
        let id = regions.install(plan, region, slots);
        history.set_short(false);
        guard.show_places(id);
        guard.show_regions();
        guard.share_out();
        // If another thread took the new slots, its own plan added as many.
        let slot = self.idle(&mut guard).ok_or_else(|| exhausted(&guard, None));
        drop(guard);
        log::debug!(
            "pool {:?} has a new region of {} slots of {} bytes",
            self.pool.name(),
            plan.slots,
            plan.slot_len
        );
        slot
    }

    /// A slot that becomes free by dropping history or regions of other sizes, otherwise room for a new region of at most so many
    /// slots.
    fn find(&self, guard: &mut Guard<'_>, limit: u32) -> Result<Found, AcquireError> {
        let want = self.want;
        // Before the pool grows: the last consumer of a frame may have released it without a message, and a consumer may hold slots
        // beyond its budget.
        guard.finalize_watched();
        guard.audit();
        if let Some(slot) = self.idle(guard) {
            return Ok(Found::Slot(slot));
        }
        if want.is_ahead && !guard.has_slot_ahead(want) {
            return Err(exhausted(guard, None));
        }
        guard.retire(Cold::ByNow);
        let settings = guard.pool().settings();
        let first = guard.shares.upstream_need() + settings.history + 2;
        let first = first.max(settings.min_slots);
        let plan = |guard: &mut Guard<'_>| {
            let State { regions, slots, .. } = &mut **guard;
            let max_slots = settings.most_slots(want.slot_size());
            regions.plan(slots, want, first, limit, max_slots)
        };
        let mut result = plan(guard);
        if matches!(result, Err(Full::Limit)) && guard.regions.is_growing() {
            return Ok(Found::Growing);
        }
        while matches!(result, Err(Full::Limit)) && guard.forget_spare(Span::Promised) {
            if let Some(slot) = self.idle(guard) {
                return Ok(Found::Slot(slot));
            }
        }
        // First remove slots of other sizes without a frame. Then drop the history, which is for late joiners, and remove single
        // slots of a region, so that one held frame does not keep the whole region.
        for when in [Cold::UnfitFor(want), Cold::PartlyUnfitFor(want)] {
            if !matches!(result, Err(Full::Limit)) {
                break;
            }
            if matches!(when, Cold::PartlyUnfitFor(_)) {
                guard.forget_history(|slots, kept| {
                    let place = slots.get(kept.slot).and_then(|info| info.place);
                    place.is_some_and(|place| !want.fits(place))
                });
            }
            guard.retire(when);
            result = plan(guard);
        }
        // Fail for this frame instead of dropping an earlier one: `max_slots` has room for both, `max_bytes` may not.
        if matches!(result, Err(Full::Limit))
            && guard.slots.assigned() < settings.most_slots(want.slot_size())
            && let Some(slot) = self.in_history(guard)
        {
            return Ok(Found::Slot(slot));
        }
        let plan = result.map_err(|full| match full {
            Full::TooLarge => AcquireError::TooLarge {
                size: want.slot_size(),
                slot_size: want.slot_bytes(),
                max_bytes: settings.max_bytes,
            },
            Full::Limit => exhausted(guard, None),
        })?;
        Ok(Found::Room(plan))
    }

    /// Claims the slot of the oldest frame that only the history keeps. Slots that upstream asks for ahead of a frame displace none.
    fn in_history(&self, guard: &mut Guard<'_>) -> Option<Slot> {
        let want = self.want;
        if want.is_ahead {
            return None;
        }
        let can_be_had = |slot: u32| {
            let times = guard.history.iter().filter(|kept| kept.slot == slot);
            let only_here = Use::Referenced(times.count() as u64);
            guard.slots.get(slot).is_some_and(|info| {
                info.used == only_here && info.place.is_some_and(|place| want.fits(place))
            }) && guard.looks_free(slot)
        };
        let oldest = guard.history.iter().find(|kept| can_be_had(kept.slot));
        let slot = oldest?.slot;
        guard.forget_history(|_, kept| kept.slot == slot);
        self.idle(guard)
    }

    /// Called when no region could be allocated. If memory is lacking, and the pool has slots for such frames, it is exhausted: a slot
    /// becomes free when a frame is released.
    #[cold]
    pub(super) fn unable_to_grow(&self, error: AcquireError) -> Result<Slot, AcquireError> {
        let pool = self.pool;
        if !error.is_shortage() {
            return Err(error);
        }
        let mut guard = pool.guard()?;
        check_open(&guard)?;
        if !self.has_slots(&guard) {
            return Err(error);
        }
        let error = Arc::new(error);
        let is_new = guard.regions.note_shortage(error.clone());
        let result = self.without_growing(&mut guard, error.clone());
        drop(guard);
        if is_new {
            log::warn!("pool {:?} cannot grow: {error}", pool.name());
            pool.commands().send(Command::CannotGrow);
        }
        result
    }

    /// Claims the slot of a frame that only the history keeps. Otherwise the pool is exhausted.
    fn without_growing(
        &self,
        guard: &mut Guard<'_>,
        shortage: Arc<AcquireError>,
    ) -> Result<Slot, AcquireError> {
        if let Some(slot) = self.in_history(guard) {
            return Ok(slot);
        }
        Err(exhausted(guard, Some(shortage)))
    }

    /// Whether the pool has slots for such a frame.
    fn has_slots(&self, guard: &Guard<'_>) -> bool {
        let mut places = guard.slots.iter().filter_map(|(_, info)| info.place);
        places.any(|place| self.want.fits(place))
    }

    /// Claims an idle slot that fits such a frame.
    fn idle(&self, guard: &mut Guard<'_>) -> Option<Slot> {
        let want = self.want;
        if want.is_ahead && !guard.has_slot_ahead(want) {
            return None;
        }
        let fits = |slot: &u32| {
            guard.slots.get(*slot).is_some_and(|info| {
                info.can_be_claimed() && info.place.is_some_and(|place| want.fits(place))
            })
        };
        let (slot, word) = guard
            .slots
            .idle()
            .filter(fits)
            .find_map(|slot| Some((slot, guard.claim(slot)?)))?;
        Slot::claimed(self.pool, guard, slot, word, want.filled())
    }
}

/// Checks that no `close` came before the lock was taken. After it, the leases of consumers are on no list, so no slot may be
/// claimed.
fn check_open(guard: &Guard<'_>) -> Result<(), AcquireError> {
    if guard.pool().is_closed() {
        return Err(AcquireError::Closed);
    }
    Ok(())
}

fn exhausted(guard: &Guard<'_>, shortage: Option<Arc<AcquireError>>) -> AcquireError {
    let settings = guard.pool().settings();
    AcquireError::Exhausted {
        pool: guard.pool().name().to_owned(),
        slots: guard.slots.assigned(),
        max_slots: settings.max_slots,
        max_bytes: settings.max_bytes,
        shortage,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::error::RegionError;
    use crate::producer::pool::retain::Hook;
    use crate::{Consumer, FrameMeta, Producer, WriteLease};

    const WANT: Want = Want {
        size: 64,
        room: 0,
        device: None,
        is_ahead: false,
    };

    fn search<'a>(
        pool: &'a Arc<Pool>,
        make: &'a dyn Fn(Plan) -> Result<Region, AcquireError>,
    ) -> Search<'a> {
        let want = WANT;
        Search { pool, want, make }
    }

    /// The first region of this pool has all its slots.
    fn pool_of_one_region() -> (tempfile::TempDir, Producer) {
        let dir = tempfile::tempdir().unwrap();
        let producer = Producer::builder(dir.path().join("p.sock")).max_slots(6);
        (dir, producer.build().unwrap())
    }

    /// Claims a slot on another thread while a region is allocated, and does `meanwhile` with what that thread sends.
    fn claim_during_growth(
        producer: &Producer,
        meanwhile: impl Fn(&mpsc::Receiver<Result<(), AcquireError>>),
    ) -> (
        Result<(), AcquireError>,
        mpsc::Receiver<Result<(), AcquireError>>,
    ) {
        let pool = producer.inner();
        let (sender, other) = mpsc::channel();
        let claimed = thread::scope(|scope| {
            let make = |plan: Plan| {
                let sender = sender.clone();
                scope.spawn(move || sender.send(on_host(pool, WANT).map(drop)));
                meanwhile(&other);
                make_region(pool, plan)
            };
            search(pool, &make).run().map(drop)
        });
        (claimed, other)
    }

    #[test]
    fn a_thread_waits_for_the_region_that_another_allocates() {
        let (_dir, producer) = pool_of_one_region();
        let (claimed, other) = claim_during_growth(&producer, |other| {
            // Time in which the other thread could fail.
            if let Ok(result) = other.recv_timeout(Duration::from_millis(200)) {
                panic!("{result:?}");
            }
        });
        claimed.unwrap();
        other.recv().unwrap().unwrap();
    }

    #[test]
    fn a_region_has_fewer_slots_if_memory_is_short() {
        let (_dir, producer) = pool_of_one_region();
        let pool = producer.inner();
        let make = |plan: Plan| match plan.slots {
            1..=3 => make_region(pool, plan),
            _ => Err(AcquireError::Region(RegionError::NoSpace {
                size: plan.len(),
                error: rustix::io::Errno::NOSPC.into(),
            })),
        };
        search(pool, &make).run().unwrap();
        assert_eq!(producer.stats().slots, 3);
    }

    #[test]
    fn a_closed_pool_ends_the_wait_for_a_region() {
        let (_dir, producer) = pool_of_one_region();
        let (claimed, _) = claim_during_growth(&producer, |other| {
            producer.close();
            let result = other.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(matches!(result, Err(AcquireError::Closed)), "{result:?}");
        });
        assert!(matches!(claimed, Err(AcquireError::Closed)), "{claimed:?}");
    }

    /// A wait for the plan of the thread that runs the hook would have no end.
    #[test]
    fn a_hook_that_runs_before_a_region_is_allocated_can_claim_a_slot() {
        let (_dir, producer) = pool_of_one_region();
        let pool = producer.inner();
        let (sender, results) = mpsc::channel();
        let hook = {
            let pool = pool.clone();
            move || sender.send(on_host(&pool, WANT).map(drop)).unwrap()
        };
        let (done, is_done) = mpsc::channel();
        thread::spawn({
            let pool = pool.clone();
            move || {
                let mut guard = pool.lock().unwrap();
                guard.run_later([Box::new(hook) as Hook]);
                let make = |plan: Plan| make_region(&pool, plan);
                let _ = done.send(search(&pool, &make).in_new_region(guard).map(drop));
            }
        });
        let claimed = is_done.recv_timeout(Duration::from_secs(60));
        claimed.expect("it hung").unwrap();
        results.recv().unwrap().unwrap();
    }

    /// The pool is closed while a region is allocated.
    #[test]
    fn a_closed_pool_has_no_slot_that_a_consumer_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let producer = Producer::builder(&path).build().unwrap();
        let mut consumer = Consumer::builder(&path).connect().unwrap();
        let pool = producer.inner();
        let mut held = Vec::new();
        let mut claimed = None;
        // Until all slots are held, and a region is needed.
        while claimed.is_none() {
            let make = |plan: Plan| {
                if !held.is_empty() {
                    producer.close();
                }
                make_region(pool, plan)
            };
            let result = search(pool, &make).run();
            if pool.is_closed() {
                claimed = Some(result);
            } else {
                let lease = WriteLease::new(result.unwrap(), WANT.size);
                lease.publish(FrameMeta::new(WANT.size)).unwrap();
                held.push(consumer.receive(None).unwrap());
            }
        }
        assert!(
            matches!(claimed, Some(Err(AcquireError::Closed))),
            "{claimed:?}"
        );
    }
}
