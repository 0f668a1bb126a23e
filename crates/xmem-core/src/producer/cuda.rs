// SPDX-License-Identifier: MPL-2.0

//! Slots on CUDA devices: acquiring one, and publishing before the device has written it.

use std::sync::Arc;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::stream::Stream;
use xmem_shm::abi::device_header::header_len;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::fault::{self, Point};

use super::Producer;
use super::devices::{note_context_error, set_ready, watch};
use super::lease::{PublishFailure, WriteLease};
use super::parts::{ImportedMemory, add_foreign};
use super::pool::regions::ForeignMemory;
use crate::error::{ImportError, PublishError};
use crate::frame::lease::ReadLease;
use crate::region::Region;
use crate::region::device::owned::Owned;
use crate::region::device::slot::CudaSlot;
use crate::region::device::twin::Twin;

impl Producer {
    /// Imports device memory that other code of this process allocated, so that frames may use it
    /// ([`Parts::add_imported`](super::Parts::add_imported)): consumers open its legacy handle once. `released` runs when
    /// the last handle to it is gone and no consumer has it open, at the latest when the pool is gone. Frames in it are
    /// published in slots of [`SlotSpec::device_event`](super::SlotSpec::device_event).
    ///
    /// # Errors
    ///
    /// [`ImportError::Cuda`] if it has no legacy handle or is not on `device`; see [`ImportError`] for the others.
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
        let memory = ForeignMemory::Borrowed(Arc::new(Region::Cuda(region)));
        add_foreign(pool, memory, size, Some(Box::new(released)))
    }
}

impl WriteLease {
    /// The slot on its device; `None` if it is in host memory.
    pub fn cuda(&self) -> Option<CudaSlot<'_>> {
        let slot = self.of_slot();
        let (device, twin) = (slot.at().place.device?, &slot.region().cuda()?.twin);
        Some(CudaSlot {
            twin,
            slot: device.index,
            ptr: twin
                .ptr()
                .map_or(0, |ptr| ptr + u64::from(device.index) * device.len as u64),
            len: device.len,
        })
    }

    /// Lets devices access the slot in host memory directly, if they can.
    pub(crate) fn pin(&self, device: &Device) {
        self.of_slot().region().pin(device);
    }

    /// Makes the frame visible to consumers now, although a device is still to write it: consumers' streams wait until
    /// this stream has reached its current end. No CPU waits.
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
                recorded.inspect(|was_recorded| set_ready(self.of_slot(), !was_recorded))
            }
        };
        match recorded {
            Ok(was_recorded) => {
                fault::point(Point::EventRecorded);
                if was_recorded {
                    watch(self.of_slot().pool());
                }
                self.publish_as_is(meta)
            }
            Err(error) => {
                note_context_error(self.of_slot().pool(), &error);
                Err(PublishFailure {
                    lease: self,
                    error: PublishError::Cuda(Box::new(error)),
                })
            }
        }
    }
}
