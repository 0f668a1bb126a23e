// SPDX-License-Identifier: MPL-2.0

//! Slots on CUDA devices: getting one, and publishing what a device is still to write.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Producer;
use super::pool::{Claimed, Pool};
use super::regions::Plan;
use super::slots::Want;
use super::write_lease::{OwnHold, PublishFailure, WriteLease};
use crate::cuda::{CudaError, CudaSlot, Device, Stream, Twin, TwinPlan};
use crate::error::{AcquireError, PublishError};
use crate::fault::{self, Point};
use crate::lease::ReadLease;
use crate::meta::FrameMeta;
use crate::region::Region;
use crate::region::cuda::{Owned, SlotHead};

/// How often is looked whether a device is done, when a pool ends.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

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
        if size == 0 {
            return Err(AcquireError::ZeroSize);
        }
        let claimed = self.inner().acquire_cuda(size, room, device)?;
        Ok(WriteLease::new(self.inner().clone(), claimed))
    }
}

impl Pool {
    /// Claims a slot on a device. Without bytes: for the event of a frame that lies elsewhere.
    fn acquire_cuda(
        &self,
        size: usize,
        room: usize,
        device: &Device,
    ) -> Result<Claimed, AcquireError> {
        let count = u32::from(u16::MAX);
        let ordinal = device.ordinal();
        let ordinal = u16::try_from(ordinal).map_err(|_| CudaError::NoDevice { ordinal, count })?;
        let want = Want {
            size,
            room,
            device: Some(ordinal),
        };
        let make = |plan: Plan| self.make_cuda_region(plan, device);
        match self.acquire_in(want, &make) {
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
        let regions: Vec<Arc<Region>> = {
            let state = self.lock();
            state
                .regions
                .own()
                .filter(|region| region.cuda().is_some())
                .cloned()
                .collect()
        };
        let until = Instant::now() + self.settings.release_timeout;
        for region in regions.iter().filter_map(|region| region.cuda()) {
            for slot in 0..region.header().slots {
                while region.twin.is_done(slot).is_ok_and(|done| !done) {
                    if Instant::now() >= until {
                        log::warn!(
                            "pool {:?}: a device is still writing frames that were published, after release-timeout: \
                             consumers are told that they are not whole",
                            self.name
                        );
                        return;
                    }
                    std::thread::sleep(LOOK_AGAIN);
                }
                if let (Ok(true), Some(head)) = (region.twin.is_done(slot), region.slot_head(slot))
                {
                    head.ready.store(1, Ordering::Release);
                }
            }
        }
        fault::point(Point::DeviceSettled);
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

    /// Whether the device is done with the slot; if not, its event says when.
    pub(super) fn set_ready(&self, ready: bool) {
        let Claimed { place, region, .. } = self.claimed();
        if let (Some(device), Some(cuda)) = (place.device, region.cuda())
            && let Some(head) = cuda.slot_head(device.index)
        {
            // Visible with the slot word, which is stored after this.
            head.ready.store(ready.into(), Ordering::Relaxed);
        }
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
            Some(slot) => slot.twin.record(slot.slot, stream),
        };
        match recorded {
            Ok(was_recorded) => {
                fault::point(Point::EventRecorded);
                self.set_ready(!was_recorded);
                self.publish_as_is(meta)
            }
            Err(error) => Err(PublishFailure {
                lease: self,
                error: PublishError::Cuda(Box::new(error)),
            }),
        }
    }
}

impl OwnHold {
    /// First byte of the slot on its device, and the device.
    pub(crate) fn device_memory(&self) -> Option<(u64, Device)> {
        let (device, twin) = (self.place.device?, &self.region().cuda()?.twin);
        let ptr = twin.ptr()? + u64::from(device.index) * device.len as u64;
        Some((ptr, twin.device().clone()))
    }

    pub(crate) fn slot_head(&self) -> Option<SlotHead<'_>> {
        self.region().cuda()?.slot_head(self.place.device?.index)
    }

    /// Has a stream wait for what was published here.
    pub(crate) fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        let (Some(device), Some(cuda)) = (self.place.device, self.region().cuda()) else {
            return Err(CudaError::NotOnDevice);
        };
        cuda.twin.wait(device.index, stream)
    }
}
