// SPDX-License-Identifier: MPL-2.0

//! The device side of a pool: claims slots on devices, marks frames that devices have finished, and waits at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::reaper::{CHECK_INTERVAL, ERROR_CHECK_INTERVAL};
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::protocol::lease::SlotWord;

use super::claim::Search;
use super::slot::Slot;
use crate::error::{AcquireError, PublishError};
use crate::producer::pool::Pool;
use crate::producer::pool::consumer::ConsumerRecord;
use crate::producer::pool::plan::Plan;
use crate::producer::pool::slots::{self, Want};
use crate::region::Region;
use crate::region::device::owned::{FAILED, Owned, PENDING, READY, SlotHead};
use crate::region::device::twin::{Twin, TwinPlan};

/// The number of a device in this process.
pub(super) fn ordinal(device: &Device) -> Result<u16, AcquireError> {
    let (ordinal, count) = (device.ordinal(), u32::from(u16::MAX));
    let number = u16::try_from(ordinal).map_err(|_| CudaError::NoDevice { ordinal, count })?;
    Ok(number)
}

/// Claims a slot on a device. If the spec has no bytes, the slot holds only the event of a frame in other memory.
pub(super) fn claim_on(
    pool: &Arc<Pool>,
    want: Want,
    device: &Device,
) -> Result<Slot, AcquireError> {
    let make = |plan: Plan| make_region(pool, plan, device);
    let make = &make;
    let search = Search { pool, want, make };
    let acquired = search.run();
    if let Err(AcquireError::Cuda(error)) = &acquired {
        note_context_error(pool, error);
    }
    let acquired = match acquired {
        Err(AcquireError::Cuda(CudaError::OutOfMemory { .. })) => {
            // First remove regions that are kept only for later use.
            pool.collect();
            search.run()
        }
        result => result,
    };
    acquired.or_else(|error| search.unable_to_grow(error))
}

fn make_region(pool: &Pool, plan: Plan, device: &Device) -> Result<Region, AcquireError> {
    let (_, host_stride) = plan.device.ok_or(CudaError::NotOnDevice)?;
    let (twin, header) = Twin::create(&TwinPlan {
        device: device.clone(),
        mode: pool.settings().cuda_mode,
        slots: plan.slots,
        device_stride: plan.slot_len,
        host_stride,
    })?;
    let region = Owned::create(plan.len(), header, twin)?;
    Ok(Region::Cuda(region))
}

/// Marks whether the device has finished with a slot. If not, consumers wait for the slot's event.
pub(super) fn set_ready(slot: &Slot, ready: bool) {
    if let (Some(device), Some(cuda)) = (slot.at().place.device, slot.region().cuda())
        && let Some(head) = cuda.slot_head(device.index)
    {
        // Made visible by the slot word, which is stored later.
        let ready = if ready { READY } else { PENDING };
        head.ready.store(ready, Ordering::Relaxed);
    }
}

/// Marks whether the device has finished with a slot. It may still work on the previous frame there.
pub(super) fn update_ready(slot: &Slot) -> Result<(), PublishError> {
    if let (Some(device), Some(cuda)) = (slot.at().place.device, slot.region().cuda()) {
        match cuda.twin.is_done(device.index) {
            Ok(done) => set_ready(slot, done),
            // No device works on it any more.
            Err(CudaError::Unfinished) => set_ready(slot, true),
            Err(error) => {
                note_context_error(slot.pool(), &error);
                return Err(PublishError::Cuda(Box::new(error)));
            }
        }
    }
    Ok(())
}

/// Waits at the end of a pool, at most `release-timeout` each: for devices, and if consumers can be answered meanwhile, until they do
/// not use device memory that ends with this process. If they cannot, or still use it, the memory stays until the process ends.
pub(super) fn finish(pool: &Pool, is_answering: bool) {
    wait_until_done(pool);
    if !(is_answering && wait_until_unused(pool))
        && let Some(mut guard) = pool.lock()
    {
        guard.regions.leak_lasting();
    }
}

/// Waits until devices have finished published frames, and marks them. After this process has ended, consumers cannot ask for
/// that.
fn wait_until_done(pool: &Pool) {
    let regions = cuda_regions(pool);
    let until = Deadline::after(Some(pool.settings().release_timeout));
    let mut late = false;
    for region in regions.iter().filter_map(|region| region.cuda()) {
        for slot in 0..region.header().slots {
            let done = loop {
                let done = region.twin.is_done(slot);
                if done != Ok(false) || until.is_over() {
                    break done;
                }
                std::thread::sleep(CHECK_INTERVAL);
            };
            // A late frame stays unmarked. Consumers refuse it unless its event, which outlives the work, shows its end.
            late |= done == Ok(false);
            if let (true, Some(head)) = (done != Ok(false), region.slot_head(slot)) {
                settle(&head, done.is_ok());
            }
        }
    }
    if late {
        log::warn!(
            "pool {:?}: a device is still writing frames that were published, after release-timeout: \
             consumers refuse them as incomplete",
            pool.name()
        );
    }
    fault::point(Point::DeviceSettled);
}

/// If a context is in error, marks the frames that will never be finished.
pub(super) fn note_context_error(pool: &Pool, error: &CudaError) {
    if matches!(error, CudaError::ContextInError { .. }) {
        mark_ended(pool, false);
    }
}

/// Marks the frames that will never be finished, and with `done_too` also those that are. Returns whether some may still be
/// finished later.
fn mark_ended(pool: &Pool, done_too: bool) -> bool {
    let mut waits = false;
    for region in cuda_regions(pool) {
        let Some(cuda) = region.cuda() else { continue };
        for slot in 0..cuda.header().slots {
            let Some(head) = cuda.slot_head(slot) else {
                continue;
            };
            let _settling = cuda.twin.settling();
            if head.ready.load(Ordering::Relaxed) != PENDING {
                continue;
            }
            match cuda.twin.is_done(slot) {
                Ok(true) if done_too => settle(&head, true),
                Ok(done) => waits |= !done,
                Err(CudaError::ContextInError { .. } | CudaError::Unfinished) => {
                    settle(&head, false);
                }
                Err(_) => {}
            }
        }
    }
    waits
}

/// Starts a thread that checks at intervals of `ERROR_CHECK_INTERVAL` whether devices can still finish published frames, because
/// consumers wait for these frames, and no other call may detect a failure.
pub(super) fn watch(pool: &Arc<Pool>) {
    check_periodically(
        pool,
        ERROR_CHECK_INTERVAL,
        |pool| &pool.device_checks().watches,
        |pool| mark_ended(pool, false),
    );
    if pool.device_checks().marks_wanted.load(Ordering::Acquire) {
        mark_now(pool);
    }
}

/// Starts to mark frames, for a consumer that cannot open events.
pub(super) fn mark(pool: &Arc<Pool>) {
    let wanted = &pool.device_checks().marks_wanted;
    wanted.store(true, Ordering::Release);
    mark_now(pool);
}

fn mark_now(pool: &Arc<Pool>) {
    let check = |pool: &Pool| {
        // Before the check: a consumer that joins during it sets the flag again.
        let wanted = &pool.device_checks().marks_wanted;
        wanted.store(false, Ordering::Release);
        let guard = pool.lock_on_own_thread();
        let is_wanted = guard
            .consumers
            .iter()
            .any(|consumer| consumer.wants_marks());
        drop(guard);
        if !is_wanted {
            return false;
        }
        wanted.store(true, Ordering::Release);
        mark_ended(pool, true)
    };
    check_periodically(
        pool,
        CHECK_INTERVAL,
        |pool| &pool.device_checks().marks,
        check,
    );
}

/// Repeats `check` on a thread while it returns true. The flag ensures that there is only one thread.
fn check_periodically(
    pool: &Arc<Pool>,
    pause: Duration,
    flag: fn(&Pool) -> &AtomicBool,
    check: fn(&Pool) -> bool,
) {
    if flag(pool).swap(true, Ordering::AcqRel) {
        return;
    }
    let pool = Arc::downgrade(pool);
    xmem_cuda::reaper::watch(pause, move || {
        let Some(pool) = pool.upgrade() else {
            return true;
        };
        // Cleared before the check, so that a frame published later starts another one. An exchange, so that the check sees
        // frames of a thread that found the flag set.
        flag(&pool).swap(false, Ordering::AcqRel);
        let is_repeated = check(&pool) && !flag(&pool).swap(true, Ordering::AcqRel);
        // This may be the last reference, and dropping it runs hooks.
        xmem_cuda::reaper::elsewhere(move || drop(pool));
        !is_repeated
    });
}

/// Empty in a forked child.
fn cuda_regions(pool: &Pool) -> Vec<Arc<Region>> {
    let Some(guard) = pool.lock() else {
        return Vec::new();
    };
    let own = guard.regions.own();
    own.filter(|region| region.cuda().is_some())
        .cloned()
        .collect()
}

/// Marks how the device's work on a frame ended, instead of its event.
fn settle(head: &SlotHead<'_>, well: bool) {
    let now = if well { READY } else { FAILED };
    let _ = head
        .ready
        .compare_exchange(PENDING, now, Ordering::Release, Ordering::Relaxed);
}

/// Waits until no consumer uses device memory that ends with this process. `false`: after `release-timeout` some still do, which this
/// logs.
fn wait_until_unused(pool: &Pool) -> bool {
    let timeout = pool.settings().release_timeout;
    let until = Deadline::after(Some(timeout));
    loop {
        let users = users(pool);
        if users.is_empty() {
            return true;
        }
        if until.is_over() {
            log::warn!(
                "pool {:?} ends, and after release-timeout ({timeout:?}) its device memory is still used by {}: frames that \
                 these hold may change now",
                pool.name(),
                users.join(", ")
            );
            return false;
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// The consumers because of which the device memory of the pool must not be freed yet: they hold frames in it, have not taken
/// them yet, or have the memory open.
fn users(pool: &Pool) -> Vec<String> {
    let Some(mut guard) = pool.lock() else {
        return Vec::new();
    };
    let (own, borrowed) = guard.regions.ending_with_producer();
    if own.is_empty() && borrowed.is_empty() && guard.regions.lasting().next().is_none() {
        return Vec::new();
    }
    let control = pool.control();
    let head = control.head();
    let is_behind =
        |consumer: &ConsumerRecord| consumer.cursor().is_some_and(|cursor| cursor < head);
    // Regions of frames that consumers have not taken yet stay. From the other regions no consumer takes frames any more.
    if !guard.consumers.iter().any(|consumer| is_behind(consumer)) {
        for id in own {
            guard.retire_region(id);
        }
        for id in borrowed {
            // Dropping it is cheap: this pool has no mapping of upstream's memory.
            drop(guard.regions.retire_borrowed(id));
            guard.announce_gone(id);
        }
        guard.show_regions();
    }
    guard.forget_retired();
    let open: Vec<u64> = guard.regions.lasting().flatten().copied().collect();
    let on_device: Vec<u32> = guard
        .slots
        .iter()
        .filter(|(_, info)| info.place.is_some_and(|place| place.device.is_some()))
        .map(|(slot, _)| slot)
        .collect();
    let uses = |consumer: &ConsumerRecord| {
        let holds = |slot: &u32| {
            let generation = slots::word(control, *slot).map_or(0, SlotWord::generation);
            // A slot that was never used has generation 0. In a lease word, 0 means no lease.
            generation != 0 && consumer.holds(*slot, generation)
        };
        is_behind(consumer) || open.contains(&consumer.id()) || on_device.iter().any(holds)
    };
    let consumers = guard.consumers.iter();
    consumers
        .filter(|consumer| uses(consumer))
        .map(ToString::to_string)
        .collect()
}
