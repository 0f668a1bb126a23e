// SPDX-License-Identifier: MPL-2.0

//! Slots on CUDA devices: getting one, and publishing what a device is still to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::reaper::{LOOK, SUSPICIOUS};
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::header_len;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::protocol::slot::SlotWord;

use super::Producer;
use super::import::ImportedMemory;
use super::own_hold::OwnHold;
use super::peer::Peer;
use super::plan::Plan;
use super::pool::{Claimed, Pool};
use super::regions::Taken;
use super::slots::Want;
use super::state::Effects;
use super::write_lease::{PublishFailure, WriteLease};
use crate::cancel::Canceller;
use crate::error::{AcquireError, ImportError, PublishError};
use crate::frame::lease::ReadLease;
use crate::region::Region;
use crate::region::device::owned::{FAILED, Owned, PENDING, READY, SlotHead};
use crate::region::device::slot::CudaSlot;
use crate::region::device::twin::{Twin, TwinPlan};

impl Producer {
    /// A slot on a device, for a frame of `size` bytes. Never waits for a consumer.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`AcquireError::Cuda`] with what is wrong with the device.
    pub fn acquire_cuda(&self, size: usize, device: &Device) -> Result<WriteLease, AcquireError> {
        self.acquire_cuda_with_room(size, 0, device)
    }

    /// The same, with room for [attachments](FrameMeta::attachments) of `room` bytes, in host memory.
    ///
    /// # Errors
    ///
    /// As [`acquire_cuda`](Self::acquire_cuda).
    pub fn acquire_cuda_with_room(
        &self,
        size: usize,
        room: usize,
        device: &Device,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_payload(Want::on_host(size, room), device)
    }

    /// The same for a frame that is still to be made, as [`acquire_ahead`](Self::acquire_ahead).
    ///
    /// # Errors
    ///
    /// As [`acquire_cuda`](Self::acquire_cuda).
    pub fn acquire_cuda_ahead(
        &self,
        size: usize,
        room: usize,
        device: &Device,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_payload(Want::on_host(size, room).ahead(), device)
    }

    fn acquire_payload(&self, want: Want, device: &Device) -> Result<WriteLease, AcquireError> {
        if want.size == 0 {
            return Err(AcquireError::ZeroSize);
        }
        self.acquire_on(want, device)
    }

    fn acquire_on(&self, want: Want, device: &Device) -> Result<WriteLease, AcquireError> {
        let claimed = self.inner().acquire_cuda(want.on(device)?, device)?;
        Ok(WriteLease::new(self.inner().clone(), claimed, want.size))
    }

    /// The same; waits for a slot if all are in use. For lossless pools.
    ///
    /// # Errors
    ///
    /// As [`acquire_cuda`](Self::acquire_cuda), but [`AcquireError::Timeout`] or [`AcquireError::Cancelled`] instead of
    /// `Exhausted`.
    pub fn acquire_cuda_wait_with_room(
        &self,
        size: usize,
        room: usize,
        device: &Device,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_wait_by(timeout, cancel, || {
            self.acquire_cuda_with_room(size, room, device)
        })
    }
}

impl Producer {
    /// Takes in device memory that somebody else allocated in this process, so that frames may lie in it
    /// ([`Parts::add_imported`](super::Parts::add_imported)): consumers open its legacy handle once. `released` runs when
    /// nobody has it open any more after the last handle to it is gone, at the latest when the pool is gone. Frames in it are
    /// published in slots of [`acquire_cuda_event`](Self::acquire_cuda_event).
    ///
    /// # Errors
    ///
    /// [`ImportError::Cuda`] if it has no legacy handle or lies elsewhere, and others as [`ImportError`] says.
    ///
    /// # Safety
    ///
    /// The memory is not freed before `released` runs.
    #[allow(unsafe_code)] // a promise
    pub unsafe fn import_cuda(
        &self,
        ptr: u64,
        size: usize,
        device: &Device,
        released: impl FnOnce() + Send + 'static,
    ) -> Result<ImportedMemory, ImportError> {
        if size == 0 {
            return Err(CudaError::NotImportable {
                why: "it has no bytes".into(),
            }
            .into());
        }
        let pool = self.inner();
        let (twin, header) = Twin::borrow(device, ptr, size)?;
        let region = Owned::create(header_len(0), header, twin)?;
        let memory = Taken::Borrowed(Arc::new(Region::Cuda(region)));
        pool.take_in(memory, size, Some(Box::new(released)))
    }

    /// A slot for a frame that lies in [imported device memory](Self::import_cuda): the slot has the event for which
    /// consumers' streams wait, and room for attachments of `room` bytes, [those](super::Parts::room) of its pieces included.
    ///
    /// # Errors
    ///
    /// As [`acquire_cuda`](Self::acquire_cuda).
    pub fn acquire_cuda_event(
        &self,
        room: usize,
        device: &Device,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_on(Want::on_host(0, room), device)
    }
}

impl Want {
    fn on(self, device: &Device) -> Result<Self, AcquireError> {
        let count = u32::from(u16::MAX);
        let ordinal = device.ordinal();
        let ordinal = u16::try_from(ordinal).map_err(|_| CudaError::NoDevice { ordinal, count })?;
        Ok(Self {
            device: Some(ordinal),
            ..self
        })
    }
}

impl Pool {
    /// Claims a slot on a device. Without bytes: for the event of a frame that lies elsewhere.
    fn acquire_cuda(&self, want: Want, device: &Device) -> Result<Claimed, AcquireError> {
        let make = |plan: Plan| self.make_cuda_region(plan, device);
        let acquired = self.acquire_in(want, &make);
        if let Err(AcquireError::Cuda(error)) = &acquired {
            self.heed(error);
        }
        match acquired {
            Err(AcquireError::Cuda(CudaError::OutOfMemory { .. })) => {
                // Regions that are only kept in case they are needed go first.
                self.collect();
                self.acquire_in(want, &make)
            }
            result => result,
        }
    }

    fn make_cuda_region(&self, plan: Plan, device: &Device) -> Result<Region, AcquireError> {
        let (_, host_stride) = plan.device.ok_or(CudaError::NotOnDevice)?;
        let (twin, header) = Twin::create(&TwinPlan {
            device: device.clone(),
            mode: self.settings.cuda_mode,
            slots: plan.slots,
            device_stride: plan.slot_len,
            host_stride,
        })?;
        let region = Owned::create(plan.len(), header, twin)?;
        Ok(Region::Cuda(region))
    }

    /// Waits until devices are done with what was published, and marks it so: consumers cannot ask this process any more.
    pub(super) fn settle_devices(&self) {
        let regions = self.cuda_regions();
        let until = Deadline::after(Some(self.settings.release_timeout));
        let mut late = false;
        for region in regions.iter().filter_map(|region| region.cuda()) {
            for slot in 0..region.header().slots {
                let done = loop {
                    let done = region.twin.is_done(slot);
                    if done != Ok(false) || until.is_over() {
                        break done;
                    }
                    std::thread::sleep(LOOK);
                };
                // What is late is left: consumers look at its event.
                late |= done == Ok(false);
                if let (true, Some(head)) = (done != Ok(false), region.slot_head(slot)) {
                    settle(&head, done.is_ok());
                }
            }
        }
        if late {
            log::warn!(
                "pool {:?}: a device is still writing frames that were published, after release-timeout: \
                 consumers are told that they are not whole",
                self.name
            );
        }
        fault::point(Point::DeviceSettled);
    }

    /// Tells consumers what never ends any more, if a context is in error.
    fn heed(&self, error: &CudaError) {
        if matches!(error, CudaError::ContextInError { .. }) {
            self.settle_ended(false);
        }
    }

    /// Tells consumers which frames will never be done, and which are if they cannot ask the events. Whether some may still be,
    /// and are not.
    fn settle_ended(&self, done_too: bool) -> bool {
        let mut waits = false;
        for region in self.cuda_regions() {
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

    /// Has it looked now and then whether devices may still finish what was published: nobody may call anything that would show
    /// it, and consumers wait for it.
    fn watch_devices(self: &Arc<Self>) {
        self.look_again(
            SUSPICIOUS,
            |pool| &pool.watches_devices,
            |pool| pool.settle_ended(false),
        );
        if self.marks_devices[0].load(Ordering::Acquire) {
            self.mark_devices_now();
        }
    }

    /// A consumer that cannot open events has come: it waits for marks.
    pub(super) fn mark_devices(self: &Arc<Self>) {
        self.marks_devices[0].store(true, Ordering::Release);
        self.mark_devices_now();
    }

    fn mark_devices_now(self: &Arc<Self>) {
        let look = |pool: &Self| {
            // Before the look: who comes after it says so again.
            pool.marks_devices[0].store(false, Ordering::Release);
            let peers = pool.lock().peers.clone();
            if !peers
                .iter()
                .any(|peer| peer.wants_marks.load(Ordering::Acquire))
            {
                return false;
            }
            pool.marks_devices[0].store(true, Ordering::Release);
            pool.settle_ended(true)
        };
        self.look_again(LOOK, |pool| &pool.marks_devices[1], look);
    }

    /// Looks again and again, for as long as that is wanted. There is one who does, which the flag says.
    fn look_again(
        self: &Arc<Self>,
        pause: Duration,
        flag: fn(&Self) -> &AtomicBool,
        look: fn(&Self) -> bool,
    ) {
        if flag(self).swap(true, Ordering::AcqRel) {
            return;
        }
        let pool = Arc::downgrade(self);
        xmem_cuda::reaper::watch(pause, move || {
            let Some(pool) = pool.upgrade() else {
                return true;
            };
            // Before the look: who publishes after it begins anew. An exchange: who found the flag set before it has its say
            // seen by the look.
            flag(&pool).swap(false, Ordering::AcqRel);
            let goes_on = look(&pool) && !flag(&pool).swap(true, Ordering::AcqRel);
            // Perhaps it was the last to have it, and hooks run with it.
            xmem_cuda::reaper::elsewhere(move || drop(pool));
            !goes_on
        });
    }

    fn cuda_regions(&self) -> Vec<Arc<Region>> {
        let state = self.lock();
        let own = state.regions.own();
        own.filter(|region| region.cuda().is_some())
            .cloned()
            .collect()
    }
}

/// Says how a device's work on a frame ended whose event was to say so.
fn settle(head: &SlotHead<'_>, well: bool) {
    let now = if well { READY } else { FAILED };
    let _ = head
        .ready
        .compare_exchange(PENDING, now, Ordering::Release, Ordering::Relaxed);
}

/// What keeps a pool from ending whose device memory ends with this process.
#[derive(Debug, PartialEq, Eq)]
enum Out {
    Nothing,
    /// Consumers that hold frames, have not taken them yet, or have the memory open.
    Consumers(Vec<String>),
}

impl Pool {
    /// Waits until no consumer uses device memory that ends with this process, but no longer than `release-timeout`; says
    /// who does after that. Only where consumers can be answered meanwhile.
    pub(super) fn wait_for_devices(&self) {
        let until = Deadline::after(Some(self.settings.release_timeout));
        loop {
            let out = self.what_is_out();
            match out {
                Out::Nothing => return,
                Out::Consumers(names) if until.is_over() => {
                    log::warn!(
                        "pool {:?} ends, and after release-timeout ({:?}) its device memory is still used by {}: frames that \
                         these hold may change now",
                        self.name,
                        self.settings.release_timeout,
                        names.join(", ")
                    );
                    self.lock().regions.leak_lasting();
                    return;
                }
                Out::Consumers(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// Where consumers cannot be waited for, what they may have open is left alone.
    pub(super) fn leak_devices(&self) {
        self.lock().regions.leak_lasting();
    }

    fn what_is_out(&self) -> Out {
        let mut effects = Effects::default();
        let mut state = self.lock();
        let (own, borrowed) = state.regions.ending_with_producer();
        if own.is_empty() && borrowed.is_empty() && state.regions.lasting().next().is_none() {
            return Out::Nothing;
        }
        let head = self.control.head();
        let lossless = self.lossless();
        let is_behind = |peer: &Peer| peer.cursor().is_some_and(|cursor| cursor < head);
        // Regions that consumers still come for frames of stay; from the others nobody takes any more.
        if !state.peers.iter().any(|peer| is_behind(peer)) {
            for id in own {
                state.retire_region(&self.control, id, lossless, &mut effects);
            }
            for id in borrowed {
                // Small: upstream's memory is no mapping of this pool.
                drop(state.regions.retire_borrowed(id));
                effects.retired.push(id);
            }
            state.show_regions(&self.control);
        }
        state.forget_retired(&mut effects);
        let open: Vec<u64> = state.regions.lasting().flatten().copied().collect();
        let on_device: Vec<u32> = state
            .slots
            .iter()
            .filter(|(_, info)| info.place.is_some_and(|place| place.device.is_some()))
            .map(|(slot, _)| slot)
            .collect();
        let uses = |peer: &Peer| {
            let holds = |slot: &u32| {
                let word = self
                    .control
                    .slot(*slot)
                    .map_or(0, |word| word.load(Ordering::Relaxed));
                let generation = SlotWord(word).generation();
                // A slot that was never used looks like a lease that is none.
                generation != 0 && peer.holds(*slot, generation)
            };
            is_behind(peer) || open.contains(&peer.id) || on_device.iter().any(holds)
        };
        let names: Vec<String> = state
            .peers
            .iter()
            .filter(|peer| uses(peer))
            .map(|peer| {
                format!(
                    "consumer {} ({:?}, process {})",
                    peer.id, peer.name, peer.pid
                )
            })
            .collect();
        drop(state);
        self.run(effects, None);
        if names.is_empty() {
            Out::Nothing
        } else {
            Out::Consumers(names)
        }
    }
}

impl WriteLease {
    /// The slot on its device; `None` if it lies in host memory.
    pub fn cuda(&self) -> Option<CudaSlot<'_>> {
        let Claimed { place, region, .. } = self.claimed();
        let (device, twin) = (place.device?, &region.cuda()?.twin);
        Some(CudaSlot {
            twin,
            slot: device.index,
            ptr: twin
                .ptr()
                .map_or(0, |ptr| ptr + u64::from(device.index) * device.len as u64),
            len: device.len,
        })
    }

    /// Has devices reach the slot in host memory by themselves, if they can.
    pub(crate) fn pin(&self, device: &Device) {
        self.claimed().region.pin(device);
    }

    /// Whether the device is done with the slot; if not, its event says when.
    pub(super) fn set_ready(&self, ready: bool) {
        let Claimed { place, region, .. } = self.claimed();
        if let (Some(device), Some(cuda)) = (place.device, region.cuda())
            && let Some(head) = cuda.slot_head(device.index)
        {
            // Visible with the slot word, which is stored after this.
            let ready = if ready { READY } else { PENDING };
            head.ready.store(ready, Ordering::Relaxed);
        }
    }

    /// Says that the device is done with the slot; or, if it is still at what was published there before, that it is not.
    pub(super) fn look_if_ready(&self) -> Result<(), PublishError> {
        if let Some(slot) = self.cuda() {
            match slot.twin.is_done(slot.slot) {
                Ok(done) => self.set_ready(done),
                // Nobody is at it any more.
                Err(CudaError::Unfinished) => self.set_ready(true),
                Err(error) => {
                    self.pool().heed(&error);
                    return Err(PublishError::Cuda(Box::new(error)));
                }
            }
        }
        Ok(())
    }

    /// Makes the frame visible to consumers now, although a device is still to write it: consumers' streams wait until this
    /// stream has got where it is now. No CPU waits.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish), and [`PublishError::Cuda`](crate::PublishError::Cuda).
    pub fn publish_on(self, stream: Stream, meta: FrameMeta) -> Result<ReadLease, PublishFailure> {
        let recorded = match self.cuda() {
            None => Err(CudaError::NotOnDevice),
            Some(slot) => {
                let _settling = slot.twin.settling();
                let recorded = slot.twin.record(slot.slot, stream);
                recorded.inspect(|was_recorded| self.set_ready(!was_recorded))
            }
        };
        match recorded {
            Ok(was_recorded) => {
                fault::point(Point::EventRecorded);
                if was_recorded {
                    self.pool().watch_devices();
                }
                self.publish_as_is(meta)
            }
            Err(error) => {
                self.pool().heed(&error);
                Err(PublishFailure {
                    lease: self,
                    error: PublishError::Cuda(Box::new(error)),
                })
            }
        }
    }
}

impl OwnHold {
    /// First byte of the slot on its device, the device, and the number of the memory.
    pub(crate) fn device_memory(&self) -> Option<(u64, Device, u128)> {
        let (device, twin) = (self.place.device?, &self.region().cuda()?.twin);
        let ptr = twin.ptr()? + u64::from(device.index) * device.len as u64;
        Some((ptr, twin.device().clone(), twin.number()))
    }

    pub(crate) fn slot_head(&self) -> Option<SlotHead<'_>> {
        self.region().cuda()?.slot_head(self.place.device?.index)
    }

    /// Whether what was published here has been done.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        let (Some(device), Some(cuda)) = (self.place.device, self.region().cuda()) else {
            return Err(CudaError::NotOnDevice);
        };
        cuda.twin.is_done(device.index)
    }

    /// Has a stream wait for what was published here.
    pub(crate) fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        let (Some(device), Some(cuda)) = (self.place.device, self.region().cuda()) else {
            return Err(CudaError::NotOnDevice);
        };
        cuda.twin.wait(device.index, stream)
    }
}
