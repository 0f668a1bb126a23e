// SPDX-License-Identifier: MPL-2.0

//! Buffers by number: a pool whose processes exchange indices by other means.
//!
//! All processes that open a pool are equal. Each process that writes has its own [`Producer`], created when it acquires its
//! first buffer. Each process that reads has a [`Consumer`] for each writer, created when it gets the first buffer of that
//! writer. An index identifies the writer and its slot. The writer sets the number of reads for a buffer, sends its index to
//! others, and forgets it. Each reader gets it by its index, and each `get` counts as a read. A reader that dies with a buffer
//! counts as having released it. A reader that never gets it does not count: see [`BufferPool::discard`] and
//! [`BufferGuard::set_timeout`].

mod connections;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod guard;
mod number;
mod options;
mod writer;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use crate::cancel::{Canceller, Wait};
use crate::error::{ReceiveError, WaitError};
use crate::frame::lease::ReadLease;
use crate::producer::{Reader, SlotSpec};
use crate::stats::PoolStats;
use connections::{Connection, Connections};
pub use error::{AccessError, GetError, OpenError, RefCountError, WriteAccessError};
pub use guard::{AccessMode, BufferGuard};
use number::Number;
pub use options::BufferPoolOptions;
use writer::Writer;

/// A pool of buffers with numbers.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let name = dir.path().join("my_pool");
/// # let name = name.to_str().unwrap();
/// use xmem_core::BufferPool;
///
/// // One process writes, ...
/// let pool = BufferPool::new(name)?;
/// let mut buffer = pool.acquire_cpu(1024)?;
/// buffer.as_cpu_slice_mut()?[..5].copy_from_slice(b"hello");
/// pool.set_ref_count(buffer.meta_index(), 2)?;
/// let index = buffer.forget()?;
///
/// // ... others read by index.
/// let other = BufferPool::new(name)?;
/// let buffer = other.get(index)?;
/// assert_eq!(&buffer.as_cpu_slice()?[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BufferPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: BufferPoolOptions,
    process: ProcessId,
    /// Created with the first acquired buffer.
    writer: OnceLock<Writer>,
    /// Held by the thread that creates the writer.
    making: Mutex<()>,
    connections: Connections,
    canceller: Canceller,
    /// References without a guard (from `forget` of a guard for reading, and `add_ref`).
    loose: Mutex<Vec<(Number, ReadLease)>>,
}

/// The process that wrote a buffer.
enum Source<'a> {
    Own(&'a Writer),
    Other(Arc<Connection>),
}

impl Source<'_> {
    /// Counts a read of a buffer that this process holds.
    fn count_read(&self, lease: &ReadLease) {
        match self {
            Self::Own(writer) => writer.count_read(lease),
            Self::Other(connection) => connection.count_read(lease),
        }
    }
}

impl BufferPoolOptions {
    /// Opens the pool. Nothing is created before a buffer is acquired.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(self) -> Result<BufferPool, OpenError> {
        self.check()?;
        Ok(BufferPool {
            inner: Arc::new(Inner::new(self)),
        })
    }
}

impl BufferPool {
    /// Opens the pool of this name.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn new(name: &str) -> Result<Self, OpenError> {
        Self::options(name).open()
    }

    /// Options for opening the pool of this name.
    pub fn options(name: &str) -> BufferPoolOptions {
        BufferPoolOptions::new(name)
    }

    /// The name that it was opened with.
    pub fn name(&self) -> &str {
        self.inner.options.name()
    }

    /// The name of the buffer pool, from the name of the pool of one of its processes.
    ///
    /// ```
    /// assert_eq!(xmem_core::BufferPool::name_of_writer("my_pool.b3f"), Some("my_pool"));
    /// assert_eq!(xmem_core::BufferPool::name_of_writer("my_pool"), None);
    /// ```
    pub fn name_of_writer(pool: &str) -> Option<&str> {
        number::name_of(pool)
    }

    /// The names of the pools of the processes that write buffers of this pool, for [`query_all`](crate::discovery::query_all). Some of
    /// these processes may have been killed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// # let name = name.to_str().unwrap();
    /// # use xmem_core::BufferPool;
    /// let pool = BufferPool::new(name)?;
    /// pool.acquire_cpu(4)?;
    /// let writers = BufferPool::writers(name);
    /// assert_eq!(writers.len(), 1);
    /// assert_eq!(BufferPool::name_of_writer(&writers[0]), Some(name));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn writers(name: &str) -> Vec<String> {
        let mut pools = number::pools_with_files(name);
        pools.retain(|pool| number::has_socket(pool));
        pools
    }

    /// Sets `count` buffers of `size` bytes aside. Returns their indices. If some buffers of this size are already set aside,
    /// they are included.
    ///
    /// They keep their memory and their indices until [`give_up`](Self::give_up), and are used only for requests of this
    /// process with this size. Such an index identifies the memory, with any content: see [`BufferGuard::buffer`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let indices = pool.preallocate_cpu(1920 * 1080 * 3, 8)?;
    /// assert_eq!(pool.stats().set_aside, 8);
    /// let buffer = pool.acquire_cpu(1920 * 1080 * 3)?;
    /// assert!(indices.contains(&buffer.buffer()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::Denied`] if the limits do not allow as many ([`max_buffers`](BufferPoolOptions::max_buffers)); see
    /// [`WriteAccessError`] for the others.
    pub fn preallocate_cpu(&self, size: usize, count: usize) -> Result<Vec<u32>, WriteAccessError> {
        self.inner.writer()?.set_aside(&SlotSpec::new(size), count)
    }

    /// Allows that [preallocated](Self::preallocate_cpu) buffers are freed or used for other sizes. Returns how many were set
    /// aside. Their content stays.
    pub fn give_up(&self, indices: &[u32]) -> usize {
        let writer = self.inner.writer.get();
        writer.map_or(0, |writer| writer.give_up(indices))
    }

    /// Figures of the buffers that this process writes. All zero before the first.
    pub fn stats(&self) -> PoolStats {
        let writer = self.inner.writer.get();
        writer.map_or_else(PoolStats::default, |writer| writer.producer().stats())
    }

    /// Waits until all buffers that this process published were read as often as their counts, and no process holds one: at
    /// most `timeout` (`None`: no limit). A buffer that a guard of this process writes or edits is not published. Call it before
    /// the process ends, because its buffers end with it, except those that other processes hold.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_until_read(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        let Some(writer) = self.inner.writer.get() else {
            return Ok(());
        };
        let producer = writer.producer();
        producer.wait_until_read(Wait::from(timeout).unless(&self.inner.canceller))
    }

    /// Acquires a buffer of at least `size` bytes, for writing.
    ///
    /// # Errors
    ///
    /// See [`WriteAccessError`].
    pub fn acquire_cpu(&self, size: usize) -> Result<BufferGuard, WriteAccessError> {
        self.acquire(&SlotSpec::new(size), size)
    }

    fn acquire(&self, spec: &SlotSpec, size: usize) -> Result<BufferGuard, WriteAccessError> {
        let taken = self.inner.writer()?.acquire(spec)?;
        Ok(BufferGuard::writing(self.inner.clone(), taken, Some(size)))
    }

    /// Joins the process that wrote this buffer, so that this process is among its [readers](Self::readers). The first
    /// [`get`](Self::get) does that too.
    ///
    /// # Errors
    ///
    /// [`GetError::NoWriter`] if there is no such process; see [`GetError`] for the others.
    pub fn connect(&self, meta_index: u32) -> Result<(), GetError> {
        if self.inner.own(meta_index).is_some() {
            return Ok(());
        }
        let number = self.inner.number(meta_index)?;
        self.inner.connections.connect(&self.inner.options, number)
    }

    /// The processes that are connected to this one and can read its buffers, for [`BufferGuard::set_readers`].
    pub fn readers(&self) -> Vec<Reader> {
        let writer = self.inner.writer.get();
        writer.map_or_else(Vec::new, |writer| writer.producer().readers())
    }

    /// Gets a published buffer for reading. Each call counts as one read, also a second call in the same process. Right after the
    /// last counted read has ended, a call may still succeed, until the writer has handled the release.
    ///
    /// # Errors
    ///
    /// [`GetError::Empty`] when nothing is published under that index; see [`GetError`] for the others.
    pub fn get(&self, meta_index: u32) -> Result<BufferGuard, GetError> {
        let (lease, number, source) = self.inner.read(meta_index)?;
        source.count_read(&lease);
        Ok(BufferGuard::reading(self.inner.clone(), lease, number))
    }

    /// A published buffer, to be edited.
    ///
    /// A buffer that this process wrote is edited in place. That fails while any process holds it. While the guard exists, no
    /// process can get the buffer. [Forgetting](BufferGuard::forget) the guard publishes the buffer again with the same index,
    /// with the edit and its metadata, for the missing reads. Dropping the guard counts as one of them; if none are left, the
    /// buffer is empty. [`BufferGuard::discard`] empties it always. So does a panic that drops the guard, because the edit may
    /// be incomplete.
    ///
    /// A buffer of another process is copied, because its memory cannot be written here. That counts as a read. The guard has
    /// the copy, a buffer that this process acquired, with the same metadata. Send the index that `forget` returns to others.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// # let name = name.to_str().unwrap();
    /// # use xmem_core::BufferPool;
    /// let pool = BufferPool::new(name)?;
    /// let mut buffer = pool.acquire_cpu(4)?;
    /// buffer.as_cpu_slice_mut()?.copy_from_slice(b"abcd");
    /// pool.set_ref_count(buffer.meta_index(), 2)?;
    /// let index = buffer.forget()?;
    ///
    /// let mut edit = pool.get_mut(index)?;
    /// edit.as_cpu_slice_mut()?[0] = b'x';
    /// assert_eq!(edit.forget()?, index);
    ///
    /// let other = BufferPool::new(name)?;
    /// let mut copy = other.get_mut(index)?;
    /// copy.as_cpu_slice_mut()?[1] = b'y';
    /// let copy = copy.forget()?;
    /// assert_eq!(pool.get(copy)?.as_cpu_slice()?, b"xycd");
    /// assert_eq!(pool.get(index)?.as_cpu_slice()?, b"xbcd");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The index of an empty [preallocated](Self::preallocate_cpu) buffer returns that buffer, as if it was just acquired.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::InUse`] while any process holds it; see [`WriteAccessError`] for the others.
    pub fn get_mut(&self, meta_index: u32) -> Result<BufferGuard, WriteAccessError> {
        let Some((writer, number)) = self.inner.own(meta_index) else {
            let (lease, number, source) = self.inner.read(meta_index)?;
            let buffer = BufferGuard::reading(self.inner.clone(), lease.clone(), number);
            let copy = buffer.copy()?;
            // A copy that was not made is no read.
            source.count_read(&lease);
            return Ok(copy);
        };
        let taken = writer.edit(number)?;
        Ok(BufferGuard::writing(self.inner.clone(), taken, None))
    }

    /// Empties a buffer that this process published, regardless of its count, so that it can be reused. Use it for buffers
    /// whose readers never get them. Otherwise they are kept while this process has the pool open.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p");
    /// # let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let index = pool.acquire_cpu(4)?.forget()?;
    /// pool.discard(index)?;
    /// assert!(pool.get(index).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::NotWriter`] if another process wrote it, and as [`get_mut`](Self::get_mut).
    pub fn discard(&self, meta_index: u32) -> Result<(), WriteAccessError> {
        if self.inner.own(meta_index).is_none() {
            return Err(WriteAccessError::NotWriter);
        }
        self.get_mut(meta_index).map(BufferGuard::discard)
    }

    /// Sets the number of reads for a buffer: it is kept until processes [got](Self::get) and released it this often. For a
    /// buffer that this process writes, or has published; then only missing reads count. Default: 1. A buffer whose readers
    /// never get it is kept until [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// See [`RefCountError`].
    pub fn set_ref_count(&self, meta_index: u32, count: i32) -> Result<(), RefCountError> {
        let wanted = u32::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or(RefCountError::BadCount(count))?;
        let own = self.inner.own(meta_index);
        match own.is_some_and(|(writer, number)| writer.set_count(number, wanted)) {
            true => Ok(()),
            false => Err(RefCountError::NotYours(meta_index)),
        }
    }

    /// Adds a reference of this process without a guard, until [`release`](Self::release). It does not count as a read.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn add_ref(&self, meta_index: u32) -> Result<(), GetError> {
        let (lease, number, _) = self.inner.read(meta_index)?;
        lock(&self.inner.loose).push((number, lease));
        Ok(())
    }

    /// Drops one reference without a guard. Returns whether there was one.
    pub fn release(&self, meta_index: u32) -> bool {
        let Some(number) = Number::unpack(meta_index).filter(|_| self.inner.is_of_this_process())
        else {
            return false;
        };
        let mut loose = lock(&self.inner.loose);
        let at = loose.iter().rposition(|(held, _)| number.means(*held));
        let released = at.map(|at| loose.swap_remove(at));
        drop(loose);
        released.is_some()
    }
}

impl Inner {
    fn new(options: BufferPoolOptions) -> Self {
        Self {
            options,
            process: ProcessId::current(),
            writer: OnceLock::new(),
            making: Mutex::default(),
            connections: Connections::default(),
            canceller: Canceller::new(),
            loose: Mutex::default(),
        }
    }

    /// Whether this was not inherited through fork. A child may inherit a lock that is never released.
    fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// The writer of this process. Created if there is none.
    fn writer(&self) -> Result<&Writer, WriteAccessError> {
        if !self.is_of_this_process() {
            return Err(ReceiveError::Forked.into());
        }
        if let Some(writer) = self.writer.get() {
            return Ok(writer);
        }
        let _making = lock(&self.making);
        match self.writer.get() {
            Some(writer) => Ok(writer),
            None => {
                let made = Writer::make(&self.options)?;
                Ok(self.writer.get_or_init(|| made))
            }
        }
    }

    /// The writer of a buffer, if it is this process.
    fn own(&self, index: u32) -> Option<(&Writer, Number)> {
        let writer = self.writer.get().filter(|_| self.is_of_this_process())?;
        let number = Number::unpack(index)?;
        (number.writer == writer.number()).then_some((writer, number))
    }

    fn number(&self, index: u32) -> Result<Number, GetError> {
        if !self.is_of_this_process() {
            return Err(ReceiveError::Forked.into());
        }
        Number::unpack(index).ok_or(GetError::Empty { index })
    }

    fn read(&self, index: u32) -> Result<(ReadLease, Number, Source<'_>), GetError> {
        let number = self.number(index)?;
        if let Some((writer, number)) = self.own(index) {
            let (lease, number) = writer.read(number).ok_or(GetError::Empty { index })?;
            return Ok((lease, number, Source::Own(writer)));
        }
        let (lease, number, connection) = self.connections.read(&self.options, number)?;
        Ok((lease, number, Source::Other(connection)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use writer::Record;
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_does_not_wait_for_locks_of_other_threads() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p");
        let [pool, other] = [(); 2].map(|()| BufferPool::new(name.to_str().unwrap()).unwrap());
        let of_other = other.acquire_cpu(10).unwrap().forget().unwrap();
        let mut read = Some(pool.get(of_other).unwrap());
        let [mut first, mut second] = [10, 20].map(|size| Some(pool.acquire_cpu(size).unwrap()));
        let index = second.as_ref().unwrap().meta_index();
        pool.set_ref_count(index, 2).unwrap();
        let does_nothing = || {
            // The count is two, and one read is missing.
            drop((second.take(), read.take()));
            first.take().unwrap().forget().is_err()
                && pool.acquire_cpu(10).is_err()
                && [index, of_other].iter().all(|index| {
                    pool.get(*index).is_err()
                        && pool.get_mut(*index).is_err()
                        && pool.discard(*index).is_err()
                        && pool.add_ref(*index).is_err()
                        && pool.set_ref_count(*index, 3).is_err()
                        && !pool.release(*index)
                })
        };
        let inner = &*pool.inner;
        let writer = inner.writer.get().unwrap();
        let locks = || {
            let own = (lock(&inner.loose), lock(&inner.making));
            (own, writer.lock(), inner.connections.lock())
        };
        assert!(is_so_in_a_child_without(locks, does_nothing), "it hung");
        // In this process nothing has changed.
        first.unwrap().forget().unwrap();
    }

    #[test]
    fn only_readers_that_missed_the_timeout_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p");
        let name = name.to_str().unwrap();
        let (sender, reports) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let options = BufferPool::options(name);
        let owner = options.on_unread(move |unread| lock(&sender).send(unread.clone()).unwrap());
        let owner = owner.open().unwrap();
        let readers = [(); 2].map(|()| BufferPool::new(name).unwrap());
        let publish = || {
            let buffer = owner.acquire_cpu(4).unwrap();
            owner.set_ref_count(buffer.meta_index(), 2).unwrap();
            buffer.forget().unwrap()
        };
        let generation = |index: u32| {
            let (writer, number) = owner.inner.own(index).unwrap();
            let record = Record::read(writer.producer().control(), number.slot).unwrap();
            record.entry.generation()
        };
        let give_up_of = |index: u32, generation: u32| {
            let (writer, number) = owner.inner.own(index).unwrap();
            let now = Duration::ZERO;
            let producer = writer.producer();
            producer.give_up_after(number.slot, generation, index, now);
        };
        let give_up = |index: u32| give_up_of(index, generation(index));
        let next = || reports.recv_timeout(Duration::from_secs(60)).unwrap();

        // A buffer that both readers hold is not reported, and stays held.
        let index = publish();
        let held = [0, 1].map(|at| readers[at].get(index).unwrap());
        give_up(index);
        // One of two readers holds this buffer.
        let one = publish();
        let held_too = readers[0].get(one).unwrap();
        give_up(one);
        let report = next();
        assert_eq!((report.index, report.count, report.missing), (one, 2, 1));
        assert_eq!(report.readers.len(), 1);
        assert!(owner.get_mut(one).is_err() && owner.get_mut(index).is_err());
        drop((held, held_too));
        owner.wait_until_read(None).unwrap();

        // A buffer that was used again is not reported.
        let before = publish();
        let then = generation(before);
        owner.get_mut(before).unwrap().forget().unwrap();
        give_up_of(before, then);
        let last = publish();
        give_up(last);
        assert_eq!(next().index, last);
        owner.get(before).unwrap();
    }

    #[test]
    fn a_number_of_an_earlier_use_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p");
        let [pool, other] = [(); 2].map(|()| BufferPool::new(name.to_str().unwrap()).unwrap());
        let first = pool.acquire_cpu(4).unwrap().forget().unwrap();
        drop(other.get(first).unwrap());
        let again = pool.acquire_cpu(4).unwrap();
        assert_eq!(
            Number::unpack(again.buffer()),
            Number::unpack(first).map(Number::of_slot)
        );
        let second = again.forget().unwrap();
        for pool in [&pool, &other] {
            assert!(matches!(pool.get(first), Err(GetError::Empty { index }) if index == first));
            assert!(pool.get_mut(first).is_err());
        }
        assert!(pool.set_ref_count(first, 2).is_err() && pool.discard(first).is_err());
        other.get(second).unwrap();
    }
}
