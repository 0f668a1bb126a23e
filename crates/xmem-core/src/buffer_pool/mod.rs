// SPDX-License-Identifier: MPL-2.0

//! Buffers by number: a pool in which processes pass each other indices by other means.
//!
//! The slots and leases are those of [`Producer`] and [`Consumer`]. The process that acquires a buffer sets the number of
//! readers it is for, passes its index on, and forgets it; each reader gets it by its index. Each `get` counts as a reader.
//! A reader that dies with a buffer counts as having released it. A reader that never comes does not count: see
//! [`BufferPool::discard`] and [`BufferGuard::set_timeout`].

mod counts;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod guard;
mod options;
mod private;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cancel::Canceller;
use crate::consumer::Consumer;
use crate::consumer::grants::Grant;
use crate::error::{ConnectError, ReceiveError, WaitError};
use crate::frame::lease::ReadLease;
use crate::producer::{Producer, SlotSpec, WriteLease};
use crate::stats::PoolStats;
use counts::Counts;
pub use error::{AccessError, GetError, OpenError, RefCountError, WriteAccessError};
pub use guard::{AccessMode, BufferGuard};
use guard::{Published, Storage, Written};
pub use options::BufferPoolOptions;
use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::frame_info::FrameInfo;
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::bounds::lie_inside;
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

/// A pool of buffers with numbers.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let name = dir.path().join("my_pool.sock");
/// # let name = name.to_str().unwrap();
/// use xmem_core::BufferPool;
///
/// // One process makes the pool, ...
/// let pool = BufferPool::new(name)?;
/// let mut buffer = pool.acquire_cpu(1024)?;
/// buffer.as_cpu_slice_mut()?[..5].copy_from_slice(b"hello");
/// pool.set_ref_count(buffer.meta_index(), 2)?;
/// let index = buffer.forget()?;
///
/// // ... others connect to it, and read by index.
/// let other = BufferPool::new(name)?;
/// assert!(!other.is_owner());
/// let buffer = other.get(index)?;
/// assert_eq!(&buffer.as_cpu_slice()?[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BufferPool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
enum Role {
    Owner(Producer),
    Peer(Box<Consumer>),
}

#[derive(Debug)]
struct Inner {
    name: String,
    role: Role,
    canceller: Canceller,
    /// The reader counts of buffers that this process wrote.
    counts: Mutex<Counts>,
    /// References without a guard (`forget` of a guard for reading, `add_ref`), by index.
    loose: Mutex<HashMap<u32, Vec<ReadLease>>>,
    /// By index: the newest generation that this process got from another one.
    got: Mutex<HashMap<u32, u32>>,
    /// The slots that another process granted to this one.
    writing: Mutex<Vec<Range<usize>>>,
}

impl BufferPool {
    /// Connects to the pool of this name, or makes it if there is none.
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

    /// Whether this process made the pool. The pool ends with that process.
    pub fn is_owner(&self) -> bool {
        matches!(self.inner.role, Role::Owner(_))
    }

    /// Sets `count` buffers of `size` bytes aside. Returns their indices. If there are some of this size already, these are
    /// among them.
    ///
    /// They stay, with their indices, until they are [given up](Self::give_up), and serve requests for this size only.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p.sock");
    /// let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let indices = pool.preallocate_cpu(1920 * 1080 * 3, 8)?;
    /// assert_eq!(pool.stats()?.set_aside, 8);
    /// let buffer = pool.acquire_cpu(1920 * 1080 * 3)?;
    /// assert!(indices.contains(&buffer.meta_index()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::NotOwner`] in a process that did not make the pool, [`WriteAccessError::Denied`] if there may
    /// not be as many ([`max_buffers`](BufferPoolOptions::max_buffers)); see [`WriteAccessError`] for the others.
    pub fn preallocate_cpu(&self, size: usize, count: usize) -> Result<Vec<u32>, WriteAccessError> {
        self.inner.owner()?.set_aside(&SlotSpec::new(size), count)
    }

    /// Buffers that were [preallocated](Self::preallocate_cpu) may go, or serve other sizes. Returns how many were set aside.
    /// What they hold stays.
    pub fn give_up(&self, indices: &[u32]) -> usize {
        match &self.inner.role {
            Role::Owner(producer) => producer.give_up(indices),
            Role::Peer(_) => 0,
        }
    }

    /// Figures of the pool.
    ///
    /// # Errors
    ///
    /// If this process did not make the pool, and the one that did does not answer; see [`ConnectError`].
    pub fn stats(&self) -> Result<PoolStats, ConnectError> {
        match &self.inner.role {
            Role::Owner(producer) => Ok(producer.stats()),
            Role::Peer(_) => crate::query(&self.inner.name),
        }
    }

    /// Waits until all buffers that this process's pool keeps were read as often as their counts, and nobody holds one: at
    /// most `timeout` (`None`: for ever). The pool ends with the process that made it, so that process calls this first. In
    /// a process that joined, returns at once.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_until_read(&self, timeout: Option<Duration>) -> Result<(), WaitError> {
        match &self.inner.role {
            Role::Owner(producer) => producer.wait_until_read(timeout, &self.inner.canceller),
            Role::Peer(_) => Ok(()),
        }
    }

    /// A buffer of at least `size` bytes, to be written.
    ///
    /// # Errors
    ///
    /// See [`WriteAccessError`].
    pub fn acquire_cpu(&self, size: usize) -> Result<BufferGuard, WriteAccessError> {
        let storage = match &self.inner.role {
            Role::Owner(_) => Storage::Own(self.inner.owner()?.acquire(&SlotSpec::new(size))?),
            Role::Peer(consumer) => {
                let size_asked = size as u64;
                let question = |request| ToProducer::AcquireSlot {
                    request,
                    size: size_asked,
                };
                self.ask_to_write(consumer, question, size)?
            }
        };
        Ok(BufferGuard::writing(self.inner.clone(), storage, size))
    }

    /// A buffer that was published, for reading. Each call counts as one of its readers, also a second one of the same
    /// process.
    ///
    /// # Errors
    ///
    /// [`GetError::Empty`] when nothing is published under that index; see [`GetError`] for the others.
    pub fn get(&self, meta_index: u32) -> Result<BufferGuard, GetError> {
        let lease = self.inner.read(meta_index)?;
        self.inner.count_read(lease.info())?;
        Ok(BufferGuard::reading(self.inner.clone(), lease))
    }

    /// A published buffer, to be edited in place. Fails while any process holds it.
    ///
    /// While the guard exists, no process can get the buffer. When the guard is dropped or
    /// [forgotten](BufferGuard::forget), the buffer is published again, with the edit, its metadata, and the same number
    /// of readers, counted anew. `forget` also returns the error if that fails. [`BufferGuard::discard`] empties the
    /// buffer instead. So does a panic that drops the guard, because the edit may be half done.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p.sock");
    /// # let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let mut buffer = pool.acquire_cpu(4)?;
    /// buffer.as_cpu_slice_mut()?.copy_from_slice(b"abcd");
    /// pool.set_ref_count(buffer.meta_index(), 2)?;
    /// let index = buffer.forget()?;
    ///
    /// let reader = pool.get(index)?;
    /// assert!(pool.get_mut(index).is_err());
    /// drop(reader);
    /// pool.get_mut(index)?.as_cpu_slice_mut()?[0] = b'x';
    /// assert_eq!(pool.get(index)?.as_cpu_slice()?, b"xbcd");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// After the edit a buffer that another process published is for one reader, unless
    /// [`set_ref_count`](Self::set_ref_count) changes that while the guard exists. Of the metadata a process that does
    /// not own the pool can pass on only the size.
    ///
    /// An empty buffer is treated as one that was just acquired, with its last size: it is published when the guard is
    /// forgotten, not when it is dropped.
    ///
    /// # Errors
    ///
    /// [`WriteAccessError::InUse`] while any process holds it; see [`WriteAccessError`] for the others.
    pub fn get_mut(&self, meta_index: u32) -> Result<BufferGuard, WriteAccessError> {
        let storage = match &self.inner.role {
            Role::Owner(producer) => {
                let lease = producer.acquire_index(meta_index);
                Storage::Own(lease.ok_or(WriteAccessError::InUse { index: meta_index })?)
            }
            Role::Peer(consumer) => {
                let question = |request| ToProducer::AcquireIndex {
                    request,
                    slot: meta_index,
                };
                self.ask_to_write(consumer, question, 0)?
            }
        };
        // No other process publishes it now, so this is the last publication.
        let last = self.inner.published(meta_index);
        let inner = self.inner.clone();
        Ok(BufferGuard::editing(inner, storage, last))
    }

    /// Empties a published buffer, whatever its count: it may be reused. For buffers whose readers never come; they would
    /// be kept for as long as the pool lives.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let name = dir.path().join("p.sock");
    /// # let pool = xmem_core::BufferPool::new(name.to_str().unwrap())?;
    /// let index = pool.acquire_cpu(4)?.forget()?;
    /// pool.discard(index)?;
    /// assert!(pool.get(index).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`get_mut`](Self::get_mut).
    pub fn discard(&self, meta_index: u32) -> Result<(), WriteAccessError> {
        self.get_mut(meta_index).map(BufferGuard::discard)
    }

    fn ask_to_write(
        &self,
        consumer: &Consumer,
        question: impl FnOnce(u32) -> ToProducer,
        size: usize,
    ) -> Result<Storage, WriteAccessError> {
        let session = consumer.session();
        let grant = session
            .grants()
            .ask(question, &self.inner.canceller)?
            .map_err(|reason| WriteAccessError::Denied { reason })?;
        // From here on it is given back, whatever fails.
        let mut written = Written::new(&self.inner, session, grant);
        let view = session.regions().get(
            grant.region,
            Deadline::after(Some(ANSWER_TIME)),
            &self.inner.canceller,
        )?;
        let corrupt = |what| WriteAccessError::Owner(ReceiveError::Corrupt(what));
        let outside = || corrupt("a slot lies outside its region");
        let view = view.ok_or_else(outside)?;
        if !view.is_writable() {
            return Err(corrupt(
                "a slot was granted in a pool that other processes may not write",
            ));
        }
        let Grant { offset, len, .. } = grant;
        if !lie_inside(offset, len, view.len() as u64) || len < size as u64 {
            return Err(outside());
        }
        let (offset, len) = (offset as usize, len as usize);
        let start = view.ptr().addr() + offset;
        if !written.begin(start..start + len) {
            return Err(corrupt("a slot was granted that is written here already"));
        }
        Ok(Storage::Granted {
            written,
            view,
            offset,
            len,
        })
    }

    /// Sets how many readers a buffer is for: it is kept until it was [got](Self::get) and released this often, by
    /// whichever processes. For a buffer that this process writes, or that it published as the pool's owner. Default: 1. A buffer whose readers never come is kept
    /// until [`discard`](Self::discard).
    ///
    /// # Errors
    ///
    /// See [`RefCountError`].
    pub fn set_ref_count(&self, meta_index: u32, count: i32) -> Result<(), RefCountError> {
        let wanted = u32::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or(RefCountError::BadCount(count))?;
        if !self.inner.is_of_this_process() {
            return Err(RefCountError::NotYours(meta_index));
        }
        if lock(&self.inner.counts).set_of_written(meta_index, wanted) {
            return Ok(());
        }
        match &self.inner.role {
            Role::Owner(producer) if producer.keep_until(meta_index, wanted) => {
                if let Some((entry, _)) = self.inner.record(meta_index) {
                    let generation = entry.generation();
                    let mut counts = lock(&self.inner.counts);
                    counts.set_of_published(meta_index, generation, wanted);
                }
                Ok(())
            }
            _ => Err(RefCountError::NotYours(meta_index)),
        }
    }

    /// Adds a reference of this process, without a guard, until [`release`](Self::release). It does not count as a reader,
    /// unless this process joined the pool and never [gets](Self::get) the buffer.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn add_ref(&self, meta_index: u32) -> Result<(), GetError> {
        let lease = self.inner.read(meta_index)?;
        lock(&self.inner.loose)
            .entry(meta_index)
            .or_default()
            .push(lease);
        Ok(())
    }

    /// Gives back one reference without a guard. Returns whether there was one.
    pub fn release(&self, meta_index: u32) -> bool {
        if !self.inner.is_of_this_process() {
            return false;
        }
        let mut loose = lock(&self.inner.loose);
        let lease = loose.get_mut(&meta_index).and_then(Vec::pop);
        if loose.get(&meta_index).is_some_and(Vec::is_empty) {
            loose.remove(&meta_index);
        }
        drop(loose);
        lease.is_some()
    }
}

/// The pool of this process itself.
struct Own<'a>(&'a Producer);

impl Own<'_> {
    fn acquire(&self, spec: &SlotSpec) -> Result<WriteLease, WriteAccessError> {
        Ok(self.0.acquire_buffer(spec)?)
    }

    /// A request that cannot succeed fails before any memory of other sizes is given up for it.
    fn set_aside(&self, spec: &SlotSpec, count: usize) -> Result<Vec<u32>, WriteAccessError> {
        let before = self.0.stats();
        // A forked child has no figures, and acquires nothing.
        if self.0.is_of_this_process() && count > self.0.room_to_set_aside(spec)? {
            let (most, held, aside) = (before.max_slots, before.slots_held, before.set_aside);
            return Err(WriteAccessError::Denied {
                reason: format!(
                    "{count} buffers were asked for, and there may be {most} at most (max_buffers), of which {held} are in use \
                     and {aside} are set aside (give_up)"
                ),
            });
        }
        let slots = self.0.set_aside(spec, count);
        if slots.is_err() && self.0.stats().slots > before.slots {
            // Frees the buffers of the failed request.
            self.0.collect();
        }
        Ok(slots?)
    }
}

impl Inner {
    /// The pool, in the process that made it.
    fn owner(&self) -> Result<Own<'_>, WriteAccessError> {
        match &self.role {
            Role::Owner(producer) => Ok(Own(producer)),
            Role::Peer(_) => Err(WriteAccessError::NotOwner),
        }
    }

    /// Whether this process can acquire buffers in host memory.
    fn may_write(&self) -> bool {
        match &self.role {
            Role::Owner(_) => true,
            Role::Peer(consumer) => consumer.may_write(),
        }
    }

    /// Counts a read of a buffer that this process holds.
    fn count_read(&self, info: &FrameInfo) -> Result<(), ReceiveError> {
        let (slot, generation) = (info.slot, info.generation);
        match &self.role {
            Role::Owner(producer) => producer.count_read(slot, generation),
            // The first read of a process shows in its lease page.
            Role::Peer(consumer) => {
                let before = lock(&self.got).insert(slot, generation);
                if before == Some(generation) {
                    let message = ToProducer::ReadAgain { slot, generation };
                    let link = consumer.session().link();
                    let sent = link.send_before(&message, Deadline::after(Some(ANSWER_TIME)));
                    // Where the pool has ended nothing counts any more.
                    if sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                        return Err(ReceiveError::Timeout);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether this was not inherited through fork: a child may inherit a lock that is never released.
    fn is_of_this_process(&self) -> bool {
        match &self.role {
            Role::Owner(producer) => producer.is_of_this_process(),
            Role::Peer(consumer) => consumer.session().is_of_this_process(),
        }
    }

    fn control(&self) -> &Control {
        match &self.role {
            Role::Owner(producer) => producer.control(),
            Role::Peer(consumer) => consumer.control(),
        }
    }

    /// The newest entry of a buffer, and its description.
    fn record(&self, index: u32) -> Option<(Entry, FrameMeta)> {
        let (entry, extension) = self.control().read_record(index)?;
        let meta = extension.describe(&entry).ok()?;
        (entry.slot() == index).then_some((entry, meta))
    }

    /// The last publication in a buffer that is being written.
    fn published(&self, index: u32) -> Option<Published> {
        let (entry, meta) = self.record(index)?;
        let place = self.control().place(index)?;
        Some(Published {
            info: entry.info(place.storage, place.device_id),
            meta,
            attached: entry.attached(),
        })
    }

    fn read(&self, index: u32) -> Result<ReadLease, GetError> {
        let empty = GetError::Empty { index };
        // The newest entry may be replaced during the look; the next one serves as well.
        let record = (0..3).find_map(|_| self.record(index));
        let Some((entry, meta)) = record else {
            return Err(empty);
        };
        match &self.role {
            Role::Owner(producer) => producer.read_index(&entry, meta).ok_or(empty),
            Role::Peer(consumer) => match consumer.take_index(&entry, meta) {
                Ok(Some(lease)) => Ok(lease),
                Ok(None) => Err(empty),
                Err(ReceiveError::OverBudget { budget }) => Err(GetError::OverBudget { budget }),
                Err(error) => Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_waits_for_no_lock_that_another_thread_had() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p.sock");
        let options = || BufferPool::options(name.to_str().unwrap()).peers_may_write(true);
        let owner = options().open().unwrap();
        let peer = options().open().unwrap();
        for pool in [&owner, &peer] {
            let [mut first, mut second] =
                [10, 20].map(|size| Some(pool.acquire_cpu(size).unwrap()));
            let index = second.as_ref().unwrap().meta_index();
            pool.set_ref_count(index, 2).unwrap();
            let does_nothing = || {
                // Of a count of two, one is for other processes.
                drop(second.take());
                first.take().unwrap().forget().is_err()
                    && pool.acquire_cpu(10).is_err()
                    && pool.get(index).is_err()
                    && pool.get_mut(index).is_err()
                    && pool.add_ref(index).is_err()
                    && pool.set_ref_count(index, 3).is_err()
                    && !pool.release(index)
            };
            let Inner {
                counts,
                loose,
                writing,
                ..
            } = &*pool.inner;
            let lock = || (lock(counts), lock(loose), lock(writing));
            assert!(is_so_in_a_child_without(lock, does_nothing), "it hung");
            // In this process all is as it was.
            first.unwrap().forget().unwrap();
        }
    }

    #[test]
    fn only_readers_that_did_not_come_by_the_timeout_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p.sock");
        let name = name.to_str().unwrap();
        let (sender, reports) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let options = BufferPool::options(name);
        let owner = options.on_unread(move |unread| lock(&sender).send(unread.clone()).unwrap());
        let owner = owner.open().unwrap();
        let readers = [(); 2].map(|()| BufferPool::new(name).unwrap());
        let Role::Owner(producer) = &owner.inner.role else {
            panic!("the pool was there");
        };
        let publish = || {
            let buffer = owner.acquire_cpu(4).unwrap();
            owner.set_ref_count(buffer.meta_index(), 2).unwrap();
            buffer.forget().unwrap()
        };
        let give_up = |index: u32| {
            let generation = owner.inner.record(index).unwrap().0.generation();
            producer.give_up_after(index, generation, Duration::ZERO);
        };
        let next = || reports.recv_timeout(Duration::from_secs(60)).unwrap();

        // Nothing of a buffer that both have; what they hold stays.
        let index = publish();
        let held = [0, 1].map(|at| readers[at].get(index).unwrap());
        give_up(index);
        // One of two has this one.
        let one = publish();
        let held_too = readers[0].get(one).unwrap();
        give_up(one);
        let report = next();
        assert_eq!((report.index, report.count, report.missing), (one, 2, 1));
        assert_eq!(report.readers.len(), 1);
        assert!(owner.get_mut(one).is_err() && owner.get_mut(index).is_err());
        drop((held, held_too));
        owner.wait_until_read(None).unwrap();

        // Nor of what a buffer holds by then.
        let before = publish();
        let generation = owner.inner.record(before).unwrap().0.generation();
        owner.discard(before).unwrap();
        owner.get_mut(before).unwrap().forget().unwrap();
        producer.give_up_after(before, generation, Duration::ZERO);
        let last = publish();
        give_up(last);
        assert_eq!(next().index, last);
        owner.get(before).unwrap();
    }
}
