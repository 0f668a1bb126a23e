// SPDX-License-Identifier: MPL-2.0

//! Buffers on CUDA devices, and copies between them and host memory.

use xmem_shm::lock::lock;

use super::error::WriteAccessError;
use super::guard::Storage;
use super::private::PrivateCopy;
use super::{BufferGuard, BufferPool};
use crate::cuda::{self, CudaError, CudaFrame, Device, PrivateMemory, Source, Stream};
use crate::error::ReceiveError;
use crate::producer::SlotSpec;

fn device(device_id: i32) -> Result<Device, CudaError> {
    match u32::try_from(device_id) {
        Ok(ordinal) => Device::new(ordinal),
        Err(_) => Err(CudaError::NoDevice {
            ordinal: u32::MAX,
            count: 0,
        }),
    }
}

impl BufferPool {
    /// As [`preallocate_cpu`](Self::preallocate_cpu), on a device.
    ///
    /// Only the process that made the pool makes and writes its buffers on devices; other processes have its device memory
    /// for reading only. If a process were killed while its kernel writes a buffer, the end of that work would not be
    /// known, and so not when the buffer may be reused. A process that joined [copies](BufferGuard::copy_to_device) buffers
    /// into memory of its own.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::NotOwner`] in a process that did not make the pool, [`WriteAccessError::Denied`] if there may
    /// not be as many, [`WriteAccessError::Cuda`] if the device fails; see [`WriteAccessError`] for the others.
    pub fn preallocate_cuda(
        &self,
        size: usize,
        count: usize,
        device_id: i32,
    ) -> Result<Vec<u32>, WriteAccessError> {
        let owner = self.inner.owner()?;
        owner.set_aside(&SlotSpec::new(size).on(&device(device_id)?), count)
    }

    /// A buffer of at least `size` bytes on a device, to be written.
    ///
    /// When it is [forgotten](BufferGuard::forget) or dropped, the device must be done with it. If it is not, use
    /// [`forget_on`](BufferGuard::forget_on).
    ///
    /// # Errors
    ///
    /// As [`preallocate_cuda`](Self::preallocate_cuda).
    pub fn acquire_cuda(
        &self,
        size: usize,
        device_id: i32,
    ) -> Result<BufferGuard, WriteAccessError> {
        let owner = self.inner.owner()?;
        let lease = owner.acquire(&SlotSpec::new(size).on(&device(device_id)?))?;
        Ok(BufferGuard::writing(
            self.inner.clone(),
            Storage::Own(lease),
            size,
        ))
    }
}

impl BufferGuard {
    /// First byte of the buffer on its device. For a buffer that is read, waits until it is written; [`cuda`](Self::cuda)
    /// does not wait.
    ///
    /// # Errors
    ///
    /// [`CudaError::NotOnDevice`] if it lies in host memory; see [`CudaError`] for the others.
    pub fn as_cuda_ptr(&self) -> Result<u64, CudaError> {
        match &self.storage {
            Storage::Own(lease) => Ok(lease.cuda().ok_or(CudaError::NotOnDevice)?.ptr()),
            Storage::Reading(lease) => {
                let frame = lease.cuda()?;
                frame.synchronize()?;
                Ok(frame.ptr())
            }
            Storage::Private(copy) => Ok(copy.on_device().ok_or(CudaError::NotOnDevice)?.ptr()),
            Storage::Granted { .. } => Err(CudaError::NotOnDevice),
            Storage::Gone => Err(CudaError::Gone),
        }
    }

    /// As [`as_cuda_ptr`](Self::as_cuda_ptr), for writing.
    ///
    /// # Errors
    ///
    /// As [`as_cuda_ptr`](Self::as_cuda_ptr), and [`CudaError::ReadOnly`] if the buffer was got for reading.
    pub fn as_cuda_ptr_mut(&mut self) -> Result<u64, CudaError> {
        match &self.storage {
            Storage::Reading(lease) if lease.is_on_device() => Err(CudaError::ReadOnly),
            _ => self.as_cuda_ptr(),
        }
    }

    /// The device of the buffer. `None`: it lies in host memory.
    pub fn device(&self) -> Option<Device> {
        match &self.storage {
            Storage::Own(lease) => Some(lease.cuda()?.device().clone()),
            Storage::Reading(lease) => Some(lease.cuda().ok()?.device().clone()),
            Storage::Private(copy) => Some(copy.on_device()?.device().clone()),
            Storage::Granted { .. } | Storage::Gone => None,
        }
    }

    /// A buffer that is read, as a frame that streams can wait for and release.
    ///
    /// # Errors
    ///
    /// As [`as_cuda_ptr`](Self::as_cuda_ptr), and [`CudaError::Writing`] if it is being written.
    pub fn cuda(&self) -> Result<CudaFrame, CudaError> {
        match &self.storage {
            Storage::Reading(lease) => lease.cuda(),
            Storage::Gone => Err(CudaError::Gone),
            _ if self.is_on_device() => Err(CudaError::Writing),
            _ => Err(CudaError::NotOnDevice),
        }
    }

    /// As [`forget`](Self::forget), for a buffer that a device is still to write: readers wait until this stream has
    /// reached its current end.
    ///
    /// # Errors
    ///
    /// As [`forget`](Self::forget); [`WriteAccessError::Cuda`] if it does not lie on a device.
    pub fn forget_on(mut self, stream: Stream) -> Result<u32, WriteAccessError> {
        if !self.pool.is_of_this_process() {
            return Err(ReceiveError::Forked.into());
        }
        if matches!(self.storage, Storage::Private(_)) {
            return Err(WriteAccessError::Private);
        }
        if !matches!(&self.storage, Storage::Own(lease) if lease.is_on_device()) {
            return Err(CudaError::NotOnDevice.into());
        }
        let index = self.meta_index();
        let count = lock(&self.pool.counts).publish(index);
        if let Storage::Own(mut lease) = std::mem::replace(&mut self.storage, Storage::Gone) {
            lease.keep_until(count);
            let published = lease.publish_on(stream, self.meta.clone());
            let published = published.map_err(|failure| WriteAccessError::Denied {
                reason: failure.to_string(),
            })?;
            self.begin_timeout(published.info());
        }
        Ok(index)
    }

    /// The source of a copy, if it lies on a device.
    fn source<T>(
        &self,
        copy: impl FnOnce(Source<'_>) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match &self.storage {
            Storage::Own(lease) => {
                let slot = lease.cuda().ok_or(CudaError::NotOnDevice)?;
                copy(Source::Slot(slot))
            }
            Storage::Reading(lease) => copy(Source::Frame(&lease.cuda()?)),
            Storage::Private(own) => {
                let memory = own.on_device().ok_or(CudaError::NotOnDevice)?;
                copy(Source::Private(memory))
            }
            Storage::Granted { .. } => Err(CudaError::NotOnDevice),
            Storage::Gone => Err(CudaError::Gone),
        }
    }

    /// Memory for a copy on a device: a buffer of the pool in the process that made it, else this process's own.
    fn room_on(&self, device_id: i32) -> Result<Self, WriteAccessError> {
        if self.pool.owner().is_ok() {
            return self.pool().acquire_cuda(self.size, device_id);
        }
        let memory = PrivateMemory::new(&device(device_id)?, self.size)?;
        let copy = PrivateCopy::Device(memory);
        Ok(Self::private(self.pool.clone(), copy, self.size))
    }

    /// Copies a buffer in host memory to a device. The host memory is registered with CUDA first, so that the device reads it
    /// where it lies. Waits for the copy. It is made as that of [`copy_to_cpu`](Self::copy_to_cpu).
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Full`] if the pool has no room, [`WriteAccessError::Cuda`] if the device fails, or it lies on a
    /// device.
    pub fn copy_to_cuda(&self, device_id: i32) -> Result<Self, WriteAccessError> {
        if self.is_on_device() {
            return Err(CudaError::OnDevice.into());
        }
        let mut copy = self.room_on(device_id)?;
        let device = device(device_id)?;
        match &self.storage {
            Storage::Own(lease) => lease.pin(&device),
            Storage::Granted { view, .. } => view.pin(&device),
            Storage::Reading(lease) => cuda::pin(lease, &device),
            Storage::Private(_) | Storage::Gone => {}
        }
        let bytes = self.as_cpu_slice().map_err(|_| CudaError::OnDevice)?;
        xmem_cuda::copy::upload(&device, copy.as_cuda_ptr_mut()?, bytes)?;
        Ok(self.finish(copy))
    }

    /// Copies a buffer on a device to that or another device. Waits for the copy. It is made as that of
    /// [`copy_to_cpu`](Self::copy_to_cpu).
    ///
    /// # Errors
    ///
    /// As [`copy_to_cuda`](Self::copy_to_cuda), but if it lies in host memory.
    pub fn copy_to_device(&self, device_id: i32) -> Result<Self, WriteAccessError> {
        if !self.is_on_device() {
            return Err(CudaError::NotOnDevice.into());
        }
        let mut copy = self.room_on(device_id)?;
        let (to_device, to) = (device(device_id)?, copy.as_cuda_ptr_mut()?);
        self.source(|source| cuda::between(&source, (&to_device, to), self.size))?;
        Ok(self.finish(copy))
    }

    /// Copies the bytes of a buffer on a device into host memory.
    pub(super) fn download(&self, to: &mut Self) -> Result<(), CudaError> {
        self.source(|source| {
            if let Storage::Own(lease) = &to.storage {
                lease.pin(source.device());
            }
            let to = to.as_cpu_slice_mut().map_err(|_| CudaError::OnDevice)?;
            cuda::download(&source, to)
        })
    }
}
