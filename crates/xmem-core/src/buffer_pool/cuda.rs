// SPDX-License-Identifier: MPL-2.0

//! Buffers on CUDA devices, and copies between them and host memory.

use super::error::WriteAccessError;
use super::guard::Storage;
use super::{BufferGuard, BufferPool};
use crate::cuda::{self, CudaError, CudaFrame, Device, Source, Stream};
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
    /// Like [`preallocate_cpu`](Self::preallocate_cpu), on a device.
    ///
    /// Each process writes only its own device memory, and other processes can only read it, because if a process were killed
    /// while its kernel writes a buffer, nothing would report the end of that work, and so when the buffer can be reused.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Denied`] if the limits do not allow as many, [`WriteAccessError::Cuda`] if the device fails; see
    /// [`WriteAccessError`] for the others.
    pub fn preallocate_cuda(
        &self,
        size: usize,
        count: usize,
        device_id: i32,
    ) -> Result<Vec<u32>, WriteAccessError> {
        let spec = SlotSpec::new(size).on(&device(device_id)?);
        self.inner.writer()?.set_aside(&spec, count)
    }

    /// Acquires a buffer of at least `size` bytes on a device, for writing.
    ///
    /// It is [published](BufferGuard::forget) in the order of the default stream. If a non-blocking stream writes it, use
    /// [`forget_on`](BufferGuard::forget_on). When the guard is dropped, the device's work must have ended.
    ///
    /// # Errors
    ///
    /// As [`preallocate_cuda`](Self::preallocate_cuda).
    pub fn acquire_cuda(
        &self,
        size: usize,
        device_id: i32,
    ) -> Result<BufferGuard, WriteAccessError> {
        self.acquire(&SlotSpec::new(size).on(&device(device_id)?), size)
    }
}

impl BufferGuard {
    /// The first byte of the buffer on its device. For a buffer that is read, waits until it is written; [`cuda`](Self::cuda)
    /// does not wait.
    ///
    /// # Errors
    ///
    /// [`CudaError::NotOnDevice`] if the buffer is in host memory; see [`CudaError`] for the others.
    pub fn as_cuda_ptr(&self) -> Result<u64, CudaError> {
        match &self.storage {
            Storage::Writing(lease) => Ok(lease.cuda().ok_or(CudaError::NotOnDevice)?.ptr()),
            Storage::Reading(lease) => {
                let frame = lease.cuda()?;
                frame.synchronize()?;
                Ok(frame.ptr())
            }
            Storage::Gone => Err(CudaError::Gone),
        }
    }

    /// Like [`as_cuda_ptr`](Self::as_cuda_ptr), for writing.
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

    /// The device of the buffer. `None`: it is in host memory.
    pub fn device(&self) -> Option<Device> {
        match &self.storage {
            Storage::Writing(lease) => Some(lease.cuda()?.device().clone()),
            Storage::Reading(lease) => Some(lease.cuda().ok()?.device().clone()),
            Storage::Gone => None,
        }
    }

    /// A buffer that is read, as a frame. Streams can wait for it and release it.
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

    /// Like [`forget`](Self::forget), for a buffer that this stream still writes: readers wait until the stream has reached its
    /// current end.
    ///
    /// # Errors
    ///
    /// As [`forget`](Self::forget); [`WriteAccessError::Cuda`] if the buffer is not on a device.
    pub fn forget_on(mut self, stream: Stream) -> Result<u32, WriteAccessError> {
        if self.is_written_on_device() {
            self.forget_with(|lease, meta| lease.publish_on(stream, meta))
        } else {
            Err(CudaError::NotOnDevice.into())
        }
    }

    pub(super) fn is_written_on_device(&self) -> bool {
        matches!(&self.storage, Storage::Writing(lease) if lease.is_on_device())
    }

    /// The source of a copy, if the buffer is on a device.
    fn source<T>(
        &self,
        copy: impl FnOnce(Source<'_>) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match &self.storage {
            Storage::Writing(lease) => {
                let slot = lease.cuda().ok_or(CudaError::NotOnDevice)?;
                copy(Source::Slot(slot))
            }
            Storage::Reading(lease) => copy(Source::Frame(&lease.cuda()?)),
            Storage::Gone => Err(CudaError::Gone),
        }
    }

    /// Copies a buffer in host memory to a device, and waits for the copy. The host memory is registered with CUDA first, so
    /// that the device reads it in place. The copy is created as by [`copy_to_cpu`](Self::copy_to_cpu).
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Full`] if the pool has no room, [`WriteAccessError::Cuda`] if the device fails or the buffer
    /// is on a device.
    pub fn copy_to_cuda(&self, device_id: i32) -> Result<Self, WriteAccessError> {
        if self.is_on_device() {
            return Err(CudaError::OnDevice.into());
        }
        let mut copy = self.pool().acquire_cuda(self.size, device_id)?;
        let device = device(device_id)?;
        match &self.storage {
            Storage::Writing(lease) => lease.pin(&device),
            Storage::Reading(lease) => cuda::pin(lease, &device),
            Storage::Gone => {}
        }
        let bytes = self.as_cpu_slice().map_err(|_| CudaError::OnDevice)?;
        xmem_cuda::copy::upload(&device, copy.as_cuda_ptr_mut()?, bytes)?;
        Ok(self.finish(copy))
    }

    /// Copies a buffer on a device to the same or another device, and waits for the copy. The copy is created as by
    /// [`copy_to_cpu`](Self::copy_to_cpu).
    ///
    /// # Errors
    ///
    /// As [`copy_to_cuda`](Self::copy_to_cuda), but for a buffer in host memory.
    pub fn copy_to_device(&self, device_id: i32) -> Result<Self, WriteAccessError> {
        if !self.is_on_device() {
            return Err(CudaError::NotOnDevice.into());
        }
        self.copy_to(&device(device_id)?)
    }

    pub(super) fn copy_to(&self, device: &Device) -> Result<Self, WriteAccessError> {
        let spec = SlotSpec::new(self.size).on(device);
        let mut copy = self.pool().acquire(&spec, self.size)?;
        let to = copy.as_cuda_ptr_mut()?;
        self.source(|source| cuda::between(&source, (device, to), self.size))?;
        Ok(self.finish(copy))
    }

    /// Copies the bytes of a buffer on a device to host memory.
    pub(super) fn download(&self, to: &mut Self) -> Result<(), CudaError> {
        self.source(|source| {
            if let Storage::Writing(lease) = &to.storage {
                lease.pin(source.device());
            }
            let to = to.as_cpu_slice_mut().map_err(|_| CudaError::OnDevice)?;
            cuda::download(&source, to)
        })
    }
}
