// SPDX-License-Identifier: MPL-2.0

//! A buffer that is being read or written.
#![allow(unsafe_code)] // a slice over a slot that the owner granted

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::frame_info::FrameInfo;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Attachments;
use xmem_shm::lock::lock;
use xmem_shm::protocol::slot::{SlotState, SlotWord};

use super::error::{AccessError, WriteAccessError};
use super::private::PrivateCopy;
use super::{BufferPool, Inner, Role};
use crate::consumer::grants::Grant;
use crate::consumer::session::Session;
use crate::error::ReceiveError;
use crate::frame::lease::ReadLease;
use crate::producer::WriteLease;
use crate::region::RegionView;

/// The record of a published buffer.
pub(super) struct Published {
    pub(super) info: FrameInfo,
    pub(super) meta: FrameMeta,
    /// Where the attachments lie.
    pub(super) attached: (u64, u64),
}

/// The permitted access to a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// It may be read.
    ReadOnly,
    /// It may be read and written; no other guard exists for it.
    ReadWrite,
}

/// A slot that the pool's owner granted to this process for writing. Given back when dropped.
#[derive(Debug)]
pub(super) struct Written {
    pool: Arc<Inner>,
    session: Arc<Session>,
    pub(super) grant: Grant,
    /// Its bytes, once they are known.
    bytes: Option<Range<usize>>,
    /// The owner was notified that the slot is written.
    is_reported: bool,
}

impl Written {
    pub(super) fn new(pool: &Arc<Inner>, session: &Arc<Session>, grant: Grant) -> Self {
        Self {
            pool: pool.clone(),
            session: session.clone(),
            grant,
            bytes: None,
            is_reported: false,
        }
    }

    /// Records where it is written. `false`: another granted slot lies there, which only an owner that breaks the
    /// protocol grants.
    pub(super) fn begin(&mut self, bytes: Range<usize>) -> bool {
        let mut writing = lock(&self.pool.writing);
        let overlaps = |other: &Range<usize>| other.start < bytes.end && bytes.start < other.end;
        if writing.iter().any(overlaps) {
            return false;
        }
        writing.push(bytes.clone());
        self.bytes = Some(bytes);
        true
    }

    /// Ends the writing here, before the owner is notified: it may grant the slot anew at once.
    fn end(&mut self) {
        if let Some(bytes) = self.bytes.take()
            && self.pool.is_of_this_process()
        {
            lock(&self.pool.writing).retain(|other| *other != bytes);
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.end();
        if !self.is_reported {
            let _ = self.session.link().send(&self.grant.written(0, None));
        }
    }
}

#[derive(Debug)]
pub(super) enum Storage {
    /// A slot of this process's own pool, being written.
    Own(WriteLease),
    /// A slot of another process's pool, being written.
    Granted {
        written: Written,
        view: Arc<RegionView>,
        offset: usize,
        len: usize,
    },
    Reading(ReadLease),
    Private(PrivateCopy),
    /// Published, or being dropped.
    Gone,
}

impl Storage {
    /// The generation of a slot that is being written.
    fn generation(&self) -> u32 {
        match self {
            Self::Own(lease) => lease.generation(),
            Self::Granted { written, .. } => written.grant.generation,
            Self::Reading(_) | Self::Private(_) | Self::Gone => 0,
        }
    }
}

/// A buffer of a [`BufferPool`](crate::BufferPool), for as long as this lives.
///
/// When a guard is dropped, a buffer that is read is released; one that is [edited](crate::BufferPool::get_mut) is
/// published again; and one that was acquired is given back empty, unless its count is more than one: the writer has one
/// reference of the count, and the others find the buffer published. If a panic drops a guard for writing, the buffer is
/// left empty.
pub struct BufferGuard {
    pub(super) pool: Arc<Inner>,
    pub(super) storage: Storage,
    /// Bytes that were asked for, or published.
    pub(super) size: usize,
    info: FrameInfo,
    pub(super) meta: FrameMeta,
    /// It was published when it was taken for writing, and is published again.
    edits: bool,
    /// How long it waits for its readers.
    timeout: Option<Duration>,
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
    pub(super) fn writing(pool: Arc<Inner>, storage: Storage, size: usize) -> Self {
        Self::begin(pool, storage, FrameMeta::new(size), None)
    }

    /// A guard for writing a buffer that was taken by its index; `last` is its last publication.
    pub(super) fn editing(pool: Arc<Inner>, storage: Storage, last: Option<Published>) -> Self {
        let room = match &storage {
            Storage::Own(lease) => lease.payload_len(),
            Storage::Granted { len, .. } => *len,
            Storage::Reading(_) | Storage::Private(_) | Storage::Gone => 0,
        };
        let Some(last) = last else {
            return Self::begin(pool, storage, FrameMeta::new(room), None);
        };
        let size = usize::try_from(last.meta.size).unwrap_or(room).min(room);
        // Every claim increases the generation. If this claim directly follows the publication, the slot was not emptied
        // in between.
        let then = SlotWord::new(last.info.generation, SlotState::Published);
        if then.next(SlotState::Claimed).generation() != storage.generation() {
            return Self::begin(pool, storage, FrameMeta::new(size), None);
        }
        let attachments = match &storage {
            Storage::Own(lease) => lease.attachments(last.attached).unwrap_or_default(),
            // A process that does not own the pool can pass on the size only.
            _ => Attachments::new(),
        };
        let mut meta = last.meta;
        (meta.offset, meta.size) = (0, size as u64);
        meta.attachments = attachments;
        Self::begin(pool, storage, meta, Some(last.info))
    }

    fn begin(
        pool: Arc<Inner>,
        storage: Storage,
        meta: FrameMeta,
        edited: Option<FrameInfo>,
    ) -> Self {
        let guard = Self {
            pool,
            size: meta.size as usize,
            storage,
            info: edited.unwrap_or_default(),
            meta,
            edits: edited.is_some(),
            timeout: None,
        };
        let generation = guard.storage.generation();
        let edited = edited.map(|info| info.generation);
        lock(&guard.pool.counts).begin(guard.meta_index(), generation, edited);
        guard
    }

    /// A copy of a buffer that is this process's own.
    pub(super) fn private(pool: Arc<Inner>, copy: PrivateCopy, size: usize) -> Self {
        Self {
            pool,
            storage: Storage::Private(copy),
            size,
            info: FrameInfo::default(),
            meta: FrameMeta::new(size),
            edits: false,
            timeout: None,
        }
    }

    pub(super) fn reading(pool: Arc<Inner>, lease: ReadLease) -> Self {
        Self {
            pool,
            size: if lease.is_on_device() {
                lease.meta().size as usize
            } else {
                lease.len()
            },
            info: *lease.info(),
            meta: lease.meta().clone(),
            storage: Storage::Reading(lease),
            edits: false,
            timeout: None,
        }
    }

    /// Whether the buffer may be written.
    pub fn mode(&self) -> AccessMode {
        match self.storage {
            Storage::Own(_) | Storage::Granted { .. } | Storage::Private(_) => {
                AccessMode::ReadWrite
            }
            Storage::Reading(_) | Storage::Gone => AccessMode::ReadOnly,
        }
    }

    /// The buffer's number in its pool; `u32::MAX` for a copy that is this process's own.
    pub fn meta_index(&self) -> u32 {
        match &self.storage {
            Storage::Own(lease) => lease.slot(),
            Storage::Granted { written, .. } => written.grant.slot,
            Storage::Reading(lease) => lease.info().slot,
            Storage::Private(_) | Storage::Gone => u32::MAX,
        }
    }

    /// The description that the last publication added to the buffer. All zero for an empty buffer.
    pub fn info(&self) -> &FrameInfo {
        &self.info
    }

    /// The metadata of the buffer.
    pub fn meta(&self) -> &FrameMeta {
        &self.meta
    }

    /// Sets the metadata of the buffer: shape, type, content type and so on. Its place and size stay. A process that does
    /// not own the pool can pass on the size only.
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

    /// Empties the buffer this time after it is published, if its readers did not come by then
    /// ([`BufferPoolOptions::on_unread`](crate::BufferPoolOptions::on_unread)). A process that has it then keeps it until it
    /// is done. Default: a buffer waits for its readers for as long as the pool lives.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p.sock");
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
    /// [`WriteAccessError::NotOwner`] in a process that did not make the pool, and for a buffer that is read.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), WriteAccessError> {
        if !matches!(self.storage, Storage::Own(_)) {
            return Err(WriteAccessError::NotOwner);
        }
        self.timeout = Some(timeout);
        Ok(())
    }

    /// The buffer was published.
    pub(super) fn begin_timeout(&self, info: &FrameInfo) {
        if let (Some(timeout), Role::Owner(producer)) = (self.timeout, &self.pool.role) {
            producer.give_up_after(info.slot, info.generation, timeout);
        }
    }

    /// Whether it lies on a CUDA device.
    pub fn is_on_device(&self) -> bool {
        match &self.storage {
            Storage::Own(lease) => lease.is_on_device(),
            Storage::Reading(lease) => lease.is_on_device(),
            Storage::Private(copy) => copy.is_on_device(),
            Storage::Granted { .. } | Storage::Gone => false,
        }
    }

    /// The bytes.
    ///
    /// # Errors
    ///
    /// [`AccessError::OnDevice`] if it does not lie in host memory.
    pub fn as_cpu_slice(&self) -> Result<&[u8], AccessError> {
        if self.is_on_device() {
            return Err(AccessError::OnDevice);
        }
        Ok(match &self.storage {
            Storage::Own(lease) => lease.as_slice().get(..self.size).unwrap_or_default(),
            Storage::Granted {
                view, offset, len, ..
            } => {
                // SAFETY: the slot lies inside the region, which the guard keeps and which has memory of its own that is
                // mapped for writing, and no other guard has it (checked by `ask_to_write`). An owner that follows the
                // protocol grants it to no other writer until the guard is gone, and here that takes `&mut self`; bytes
                // have no invalid values.
                unsafe {
                    std::slice::from_raw_parts(
                        view.ptr().wrapping_add(*offset),
                        self.size.min(*len),
                    )
                }
            }
            Storage::Reading(lease) => lease.data(),
            Storage::Private(copy) => copy.bytes(),
            Storage::Gone => &[],
        })
    }

    /// The bytes, to be written.
    ///
    /// # Errors
    ///
    /// [`AccessError::ReadOnly`] if the guard is for reading, [`AccessError::OnDevice`] if the buffer does not lie in
    /// host memory.
    pub fn as_cpu_slice_mut(&mut self) -> Result<&mut [u8], AccessError> {
        if self.is_on_device() {
            return Err(AccessError::OnDevice);
        }
        match &mut self.storage {
            Storage::Own(lease) => Ok(lease
                .as_mut_slice()
                .get_mut(..self.size)
                .unwrap_or_default()),
            Storage::Granted {
                view, offset, len, ..
            } => {
                // SAFETY: as in `as_cpu_slice`.
                Ok(unsafe {
                    std::slice::from_raw_parts_mut(
                        view.ptr().wrapping_add(*offset),
                        self.size.min(*len),
                    )
                })
            }
            Storage::Private(copy) => Ok(copy.bytes_mut()),
            Storage::Reading(_) | Storage::Gone => Err(AccessError::ReadOnly),
        }
    }

    /// One more guard for the same buffer.
    ///
    /// # Errors
    ///
    /// [`AccessError::Writing`] while it is being written, and for a copy that is this process's own.
    pub fn clone_ref(&self) -> Result<Self, AccessError> {
        match &self.storage {
            Storage::Reading(lease) => Ok(Self::reading(self.pool.clone(), lease.clone())),
            _ => Err(AccessError::Writing),
        }
    }

    pub(super) fn pool(&self) -> BufferPool {
        BufferPool {
            inner: self.pool.clone(),
        }
    }

    /// Copies the buffer into host memory. Waits for the copy, which has the same metadata.
    ///
    /// In the process that made the pool, and where [peers may write](crate::BufferPoolOptions::peers_may_write), the copy is
    /// a buffer that was acquired, and can be published. Elsewhere it is in memory of this process's own: it has no number,
    /// and ends with its guard.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Full`] if the pool has no room, [`WriteAccessError::Cuda`] if the device fails.
    pub fn copy_to_cpu(&self) -> Result<Self, WriteAccessError> {
        let mut copy = if self.pool.may_write() {
            self.pool().acquire_cpu(self.size)?
        } else {
            let bytes = PrivateCopy::Host(vec![0; self.size]);
            Self::private(self.pool.clone(), bytes, self.size)
        };
        match (self.as_cpu_slice(), copy.as_cpu_slice_mut()) {
            (Ok(from), Ok(to)) => to.copy_from_slice(from),
            #[cfg(feature = "cuda")]
            _ => self.download(&mut copy)?,
            #[cfg(not(feature = "cuda"))]
            _ => {}
        }
        Ok(self.finish(copy))
    }

    /// Completes a copy: it has the same metadata.
    pub(super) fn finish(&self, mut copy: Self) -> Self {
        copy.meta = self.meta.clone();
        (copy.meta.offset, copy.meta.size) = (0, self.size as u64);
        copy
    }

    /// Consumes the guard and keeps the buffer. Returns its index.
    ///
    /// A buffer that is being written is published, and kept until it was read as often as its count. A buffer that is
    /// being read stays held until [`BufferPool::release`](crate::BufferPool::release).
    ///
    /// # Errors
    ///
    /// If it could not be published. The buffer is then given back. [`WriteAccessError::Private`] for a copy that no other
    /// process can get.
    pub fn forget(mut self) -> Result<u32, WriteAccessError> {
        if !self.pool.is_of_this_process() {
            return Err(ReceiveError::Forked.into());
        }
        if matches!(self.storage, Storage::Private(_)) {
            return Err(WriteAccessError::Private);
        }
        let index = self.meta_index();
        match std::mem::replace(&mut self.storage, Storage::Gone) {
            Storage::Reading(lease) => {
                lock(&self.pool.loose).entry(index).or_default().push(lease);
            }
            storage => {
                let count = lock(&self.pool.counts).publish(index);
                self.publish(storage, count)?;
            }
        }
        Ok(index)
    }

    /// Gives the buffer back. A buffer that is being written or [edited](crate::BufferPool::get_mut) is empty then,
    /// whatever its count is. A buffer that is being read is released, as when the guard is dropped.
    pub fn discard(mut self) {
        if self.pool.is_of_this_process() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if self.mode() == AccessMode::ReadWrite {
            // Before another process can get the slot.
            lock(&self.pool.counts).forget(self.meta_index());
        }
        self.storage = Storage::Gone;
    }

    fn publish(&self, storage: Storage, count: u32) -> Result<(), WriteAccessError> {
        let denied = |reason: String| WriteAccessError::Denied { reason };
        match storage {
            Storage::Own(mut lease) => {
                lease.keep_until(count);
                let published = lease.publish(self.meta.clone());
                let published = published.map_err(|failure| denied(failure.to_string()))?;
                self.begin_timeout(published.info());
            }
            Storage::Granted { mut written, .. } => {
                written.end();
                // Wait for the answer, so that a reader that gets the index finds the buffer.
                let size = self.size as u64;
                let answer = written.session.grants().ask(
                    |request| written.grant.written(request, Some((count, size))),
                    &self.pool.canceller,
                );
                written.is_reported = true;
                answer
                    .map_err(|error| match error {
                        ReceiveError::ProducerLost => denied("it is gone".into()),
                        error => WriteAccessError::Owner(error),
                    })?
                    .map_err(denied)?;
            }
            Storage::Reading(_) | Storage::Private(_) | Storage::Gone => {}
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
        // A panic may have left the bytes half written.
        let is_published = matches!(self.storage, Storage::Own(_) | Storage::Granted { .. });
        if !is_published || std::thread::panicking() {
            return self.give_back();
        }
        let index = self.meta_index();
        let count = lock(&self.pool.counts).publish(index);
        // An acquired buffer has one reference of the count, which ends here; an edited one has none.
        let readers = if self.edits { count } else { count - 1 };
        if readers == 0 {
            return self.give_back();
        }
        let storage = std::mem::replace(&mut self.storage, Storage::Gone);
        if let Err(error) = self.publish(storage, readers) {
            log::warn!("buffer {index} was not published: {error}");
        }
    }
}
