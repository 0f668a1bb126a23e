// SPDX-License-Identifier: MPL-2.0

//! A buffer that is being read or written.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::entry::FrameInfo;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::lock::lock;

use super::error::{AccessError, WriteAccessError};
use super::number::Number;
use super::writer::Taken;
use super::{BufferPool, Inner};
use crate::error::ReceiveError;
use crate::frame::lease::ReadLease;
use crate::producer::{PublishFailure, Reader, WriteLease};

/// The permitted access to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// It may be read.
    ReadOnly,
    /// It may be read and written; no other guard exists for it.
    ReadWrite,
}

#[derive(Debug)]
pub(super) enum Storage {
    Writing(WriteLease),
    Reading(ReadLease),
    /// Published, or being dropped.
    Gone,
}

/// A buffer of a [`BufferPool`](crate::BufferPool) that is held for reading or writing.
///
/// Dropping a guard for reading releases the buffer. Dropping a guard for writing publishes the buffer for one read less than
/// its count, because the guard counts as one. With a count of 1, the default, the buffer is given back empty. If a panic drops
/// a guard for writing, the buffer is left empty.
pub struct BufferGuard {
    pub(super) pool: Arc<Inner>,
    pub(super) storage: Storage,
    number: Number,
    /// The requested or published size in bytes.
    pub(super) size: usize,
    info: FrameInfo,
    pub(super) meta: FrameMeta,
    /// The timeout for its readers.
    timeout: Option<Duration>,
    /// The readers that it is kept for, by their numbers. `None`: the count applies.
    readers: Option<Arc<[u64]>>,
}

impl fmt::Debug for BufferGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferGuard")
            .field("meta_index", &self.meta_index())
            .field("mode", &self.mode())
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl BufferGuard {
    /// A guard for writing `size` bytes. `None`: as many as the edited publication has, or as the slot has.
    pub(super) fn writing(pool: Arc<Inner>, taken: Taken, size: Option<usize>) -> Self {
        let room = taken.lease.payload_len();
        let (info, mut meta) = taken
            .edited
            .unwrap_or_else(|| (FrameInfo::default(), FrameMeta::new(room)));
        let edited = usize::try_from(meta.size).map_or(room, |size| size.min(room));
        let size = size.unwrap_or(edited);
        (meta.offset, meta.size) = (0, size as u64);
        Self {
            pool,
            storage: Storage::Writing(taken.lease),
            number: taken.number,
            size,
            info,
            meta,
            timeout: None,
            readers: None,
        }
    }

    pub(super) fn reading(pool: Arc<Inner>, lease: ReadLease, number: Number) -> Self {
        Self {
            pool,
            number,
            size: lease.size() as usize,
            info: *lease.info(),
            meta: lease.meta().clone(),
            storage: Storage::Reading(lease),
            timeout: None,
            readers: None,
        }
    }

    /// The permitted access.
    pub fn mode(&self) -> AccessMode {
        match self.storage {
            Storage::Writing(_) => AccessMode::ReadWrite,
            Storage::Reading(_) | Storage::Gone => AccessMode::ReadOnly,
        }
    }

    /// Whether the buffer is in memory that this process made, where it is mapped writable.
    pub fn is_local(&self) -> bool {
        match &self.storage {
            Storage::Writing(_) => true,
            Storage::Reading(lease) => lease.is_local(),
            Storage::Gone => false,
        }
    }

    /// The number of the buffer, with which other processes [get](crate::BufferPool::get) it. It identifies this use of the
    /// buffer. The next use gets another number. An earlier number is then an error, except in one case of 4095.
    pub fn meta_index(&self) -> u32 {
        self.number.pack()
    }

    /// The number of the buffer's memory, which is the same for each use:
    /// [`preallocate_cpu`](crate::BufferPool::preallocate_cpu) returns it. Use it for tables with an entry for each buffer.
    pub fn buffer(&self) -> u32 {
        self.number.of_slot().pack()
    }

    /// The values that the last publication added to the buffer. All zero for an empty buffer.
    pub fn info(&self) -> &FrameInfo {
        &self.info
    }

    /// The metadata of the buffer.
    pub fn meta(&self) -> &FrameMeta {
        &self.meta
    }

    /// Sets the metadata of the buffer: shape, type, content type and so on. Its place and size do not change.
    /// [`reserved`](FrameMeta::reserved) is not kept.
    ///
    /// # Errors
    ///
    /// [`AccessError::ReadOnly`] if it may not be written.
    pub fn set_meta(&mut self, meta: FrameMeta) -> Result<(), AccessError> {
        if self.mode() == AccessMode::ReadOnly {
            return Err(AccessError::ReadOnly);
        }
        self.meta = meta;
        (self.meta.offset, self.meta.size) = (0, self.size as u64);
        Ok(())
    }

    /// Empties the buffer this time after it is published, if its readers did not take it until then
    /// ([`BufferPoolOptions::on_unread`](crate::BufferPoolOptions::on_unread)). A process that holds it keeps it until it
    /// releases it. Default: a buffer is kept for its readers while its process has the pool open.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// # let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let mut buffer = pool.acquire_cpu(4)?;
    /// buffer.set_timeout(Duration::from_millis(1))?;
    /// buffer.forget()?;
    /// pool.wait_until_read(None)?; // nobody reads it
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::NotWriter`] for a buffer that is read.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), WriteAccessError> {
        if self.mode() == AccessMode::ReadOnly {
            return Err(WriteAccessError::NotWriter);
        }
        self.timeout = Some(timeout);
        Ok(())
    }

    /// Keeps the [forgotten](Self::forget) buffer until each of these readers took and released it, instead of using its count.
    /// A reader whose process ends counts as having released it. Other reads do not count.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// # let name = name.to_str().unwrap();
    /// # use xmem_core::BufferPool;
    /// let pool = BufferPool::new(name)?;
    /// let mut buffer = pool.acquire_cpu(4)?;
    /// # let other = BufferPool::new(name)?;
    /// other.connect(buffer.meta_index())?; // another process
    /// buffer.set_readers(&pool.readers())?;
    /// buffer.forget()?;
    /// drop(other); // it never comes
    /// pool.wait_until_read(None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::NotConnected`] if one of them is not connected, [`WriteAccessError::NoReaders`] if the list is
    /// empty, [`WriteAccessError::NotWriter`] for a buffer that is read. On an error nothing changes.
    pub fn set_readers(&mut self, readers: &[Reader]) -> Result<(), WriteAccessError> {
        if self.mode() == AccessMode::ReadOnly {
            return Err(WriteAccessError::NotWriter);
        }
        if readers.is_empty() {
            return Err(WriteAccessError::NoReaders);
        }
        let connected = self.pool().readers();
        if let Some(gone) = readers.iter().find(|reader| !connected.contains(reader)) {
            let reader = gone.to_string();
            return Err(WriteAccessError::NotConnected { reader });
        }
        self.readers = Some(readers.iter().map(Reader::id).collect());
        Ok(())
    }

    /// Whether the buffer is on a CUDA device.
    pub fn is_on_device(&self) -> bool {
        match &self.storage {
            Storage::Writing(lease) => lease.is_on_device(),
            Storage::Reading(lease) => lease.is_on_device(),
            Storage::Gone => false,
        }
    }

    /// A writable copy in this process, in the same kind of memory.
    pub(super) fn copy(&self) -> Result<Self, WriteAccessError> {
        #[cfg(feature = "cuda")]
        if let Some(device) = self.device() {
            return self.copy_to(&device);
        }
        self.copy_to_cpu()
    }

    /// The bytes.
    ///
    /// # Errors
    ///
    /// [`AccessError::OnDevice`] if it is not in host memory.
    pub fn as_cpu_slice(&self) -> Result<&[u8], AccessError> {
        if self.is_on_device() {
            return Err(AccessError::OnDevice);
        }
        Ok(match &self.storage {
            Storage::Writing(lease) => lease.as_slice().get(..self.size).unwrap_or_default(),
            Storage::Reading(lease) => lease.bytes().map_err(|_| AccessError::OnDevice)?,
            Storage::Gone => &[],
        })
    }

    /// The bytes, for writing.
    ///
    /// # Errors
    ///
    /// [`AccessError::ReadOnly`] if the guard is for reading, [`AccessError::OnDevice`] if the buffer is not in
    /// host memory.
    pub fn as_cpu_slice_mut(&mut self) -> Result<&mut [u8], AccessError> {
        if self.is_on_device() {
            return Err(AccessError::OnDevice);
        }
        match &mut self.storage {
            Storage::Writing(lease) => Ok(lease
                .as_mut_slice()
                .get_mut(..self.size)
                .unwrap_or_default()),
            Storage::Reading(_) | Storage::Gone => Err(AccessError::ReadOnly),
        }
    }

    /// Another guard for the same buffer.
    ///
    /// # Errors
    ///
    /// [`AccessError::Writing`] while it is being written.
    pub fn clone_ref(&self) -> Result<Self, AccessError> {
        match &self.storage {
            Storage::Reading(lease) => {
                let pool = self.pool.clone();
                Ok(Self::reading(pool, lease.clone(), self.number))
            }
            _ => Err(AccessError::Writing),
        }
    }

    pub(super) fn pool(&self) -> BufferPool {
        BufferPool {
            inner: self.pool.clone(),
        }
    }

    /// Copies the buffer to host memory, and waits for the copy. The copy is a buffer that this process acquired, with the same
    /// metadata.
    ///
    /// A buffer on a CUDA device that is being written is copied in the order of the default stream, as
    /// [`forget`](Self::forget) publishes it.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Full`] if there is no room, `WriteAccessError::Cuda` if the device fails.
    pub fn copy_to_cpu(&self) -> Result<Self, WriteAccessError> {
        let mut copy = self.pool().acquire_cpu(self.size)?;
        match (self.as_cpu_slice(), copy.as_cpu_slice_mut()) {
            (Ok(from), Ok(to)) => to.copy_from_slice(from),
            #[cfg(feature = "cuda")]
            _ => self.download(&mut copy)?,
            #[cfg(not(feature = "cuda"))]
            _ => {}
        }
        Ok(self.finish(copy))
    }

    /// Completes a copy with the same metadata.
    pub(super) fn finish(&self, mut copy: Self) -> Self {
        copy.meta = self.meta.clone();
        (copy.meta.offset, copy.meta.size) = (0, self.size as u64);
        copy
    }

    /// Consumes the guard and keeps the buffer. Returns its index.
    ///
    /// A buffer that is being written is published, and kept until its count is used up. A buffer that is being read stays held
    /// until [`BufferPool::release`](crate::BufferPool::release).
    ///
    /// A buffer on a CUDA device is published in the order of the default stream, which waits for all streams except
    /// non-blocking ones. So the device's work need not have ended. For non-blocking streams see `forget_on`.
    ///
    /// [`std::mem::forget`] instead leaks the guard, and the buffer stays in use until the process ends.
    ///
    /// # Errors
    ///
    /// If it could not be published. The buffer is then given back.
    pub fn forget(mut self) -> Result<u32, WriteAccessError> {
        #[cfg(feature = "cuda")]
        if self.is_written_on_device() {
            return self.forget_on(crate::cuda::Stream::LEGACY_DEFAULT);
        }
        self.forget_with(|lease, meta| lease.publish(meta))
    }

    /// `forget`, with this function to publish.
    pub(super) fn forget_with(
        &mut self,
        publish: impl FnOnce(WriteLease, FrameMeta) -> Result<ReadLease, PublishFailure>,
    ) -> Result<u32, WriteAccessError> {
        if !self.pool.is_of_this_process() {
            return Err(ReceiveError::Forked.into());
        }
        match std::mem::replace(&mut self.storage, Storage::Gone) {
            Storage::Writing(lease) => self.publish(lease, 0, publish)?,
            Storage::Reading(lease) => lock(&self.pool.loose).push((self.number, lease)),
            Storage::Gone => {}
        }
        Ok(self.meta_index())
    }

    /// Gives the buffer back. A buffer that is being written is then empty, regardless of its count. A buffer that is being
    /// read is released, as when the guard is dropped.
    pub fn discard(mut self) {
        if self.pool.is_of_this_process() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let (Storage::Writing(_), Some(writer)) = (&self.storage, self.pool.writer.get()) {
            // Before another thread can acquire the slot.
            writer.end(self.number);
        }
        self.storage = Storage::Gone;
    }

    /// Publishes the buffer for the reads of its count minus `done`. If none are left, it is given back.
    fn publish(
        &self,
        mut lease: WriteLease,
        done: u32,
        publish: impl FnOnce(WriteLease, FrameMeta) -> Result<ReadLease, PublishFailure>,
    ) -> Result<(), WriteAccessError> {
        let Some(writer) = self.pool.writer.get() else {
            return Ok(());
        };
        let reads = writer.end(self.number).saturating_sub(done);
        match &self.readers {
            // The count applies to dropped guards.
            Some(readers) if done == 0 => lease.keep_for(readers.clone()),
            _ if reads == 0 => return Ok(()),
            _ => lease.keep_until(reads),
        }
        let mut meta = self.meta.clone();
        self.number.tag.put(&mut meta);
        let published = publish(lease, meta).map_err(|failure| WriteAccessError::Denied {
            reason: failure.to_string(),
        })?;
        if let Some(timeout) = self.timeout {
            writer.give_up_after(self.number, published.info(), timeout);
        }
        Ok(())
    }
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        if !self.pool.is_of_this_process() {
            // A forked child inherits the guard, but not the buffer.
            return;
        }
        // A panic may have left the bytes incomplete.
        if std::thread::panicking() {
            return self.give_back();
        }
        if let Storage::Writing(lease) = std::mem::replace(&mut self.storage, Storage::Gone)
            && let Err(error) = self.publish(lease, 1, |lease, meta| lease.publish(meta))
        {
            log::warn!("buffer {} was not published: {error}", self.meta_index());
        }
    }
}
