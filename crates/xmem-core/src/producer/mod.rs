// SPDX-License-Identifier: MPL-2.0

//! The producer of a pool.

mod access;
mod acquire;
mod answers;
mod builder;
mod commands;
mod control;
#[cfg(feature = "cuda")]
mod cuda;
mod event;
mod forward;
mod history;
mod import;
mod in_flight;
mod join;
mod listener;
mod lock_file;
mod own_hold;
mod peer;
mod piece_lease;
mod plan;
mod pool;
mod publish;
mod regions;
mod retired;
mod settings;
mod share;
mod slots;
mod stale;
mod state;
mod stats;
mod sticky_log;
mod wait;
mod write_lease;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use builder::ProducerBuilder;
pub use event::{ConsumerEvent, Departure};
pub use import::{ImportedMemory, Parts};
pub(crate) use own_hold::OwnHold;

pub use piece_lease::PieceLease;
pub use stale::remove_stale;
pub use write_lease::{PublishFailure, WriteLease};

use crate::cancel::Canceller;
use crate::delivery::Delivery;
use crate::error::{
    AcquireError, EventError, ForwardError, ImportError, PublishError, RegionError, WaitError,
};
use crate::frame::hold;
use crate::frame::lease::{Malformed, ReadLease, SLOT};
use crate::stats::PoolStats;
use commands::Command;
use pool::Pool;
use slots::Want;
use state::Effects;
use xmem_shm::abi::entry::{Entry, EntryWords};
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Sticky;
use xmem_shm::lock::lock;
use xmem_shm::os::thread::Thread;

/// A slot has at least one byte, also for an event.
const EVENT_SIZE: usize = 1;

fn publish_event(pool: &Pool, lease: WriteLease, meta: FrameMeta) -> Result<u64, EventError> {
    let meta = FrameMeta {
        event: true,
        offset: 0,
        size: 0,
        ..meta
    };
    pool.counters.events.fetch_add(1, Ordering::Relaxed);
    match lease.publish(meta) {
        Ok(published) => Ok(published.meta().sequence),
        Err(failure) => {
            pool.counters.events.fetch_sub(1, Ordering::Relaxed);
            Err(PublishError::from(failure).into())
        }
    }
}

/// The producer of a pool. Clones are handles to the same one; the last to go closes the pool.
///
/// No method waits for a consumer, but those that say so. All may be called from any thread.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use xmem_core::{FrameMeta, Producer};
///
/// let producer = Producer::builder(pool).history(4).build()?;
/// for number in 0..10u8 {
///     let mut slot = producer.acquire(1920 * 1080)?;
///     slot.as_mut_slice().fill(number);
///     slot.publish(FrameMeta::new(1920 * 1080))?;
/// }
/// assert_eq!(producer.stats().published, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Producer {
    owner: Arc<Owner>,
}

/// What the clones of a producer share. Frames that are out keep the pool, not this.
#[derive(Debug)]
struct Owner {
    pool: Arc<Pool>,
    thread: Mutex<Option<Thread>>,
}

impl Owner {
    fn new(pool: Arc<Pool>, thread: Thread) -> Self {
        Self {
            pool,
            thread: Mutex::new(Some(thread)),
        }
    }

    fn close(&self) {
        if !self.pool.process.is_current() {
            // Inherited through fork: the pool is the parent's.
            return;
        }
        self.pool.close();
        #[cfg(feature = "cuda")]
        {
            self.pool.settle_devices();
            let thread = lock(&self.thread);
            // On the control thread itself consumers could not be answered.
            let is_elsewhere = thread.as_ref().is_some_and(|thread| !thread.is_current());
            drop(thread);
            if is_elsewhere {
                self.pool.wait_for_devices();
            } else {
                self.pool.leak_devices();
            }
        }
        self.pool.commands.send(Command::Stop);
        let thread = lock(&self.thread).take();
        // Called on the control thread itself, by `on_consumer`, there is nothing to wait for: it ends by itself.
        if let Some(mut thread) = thread {
            thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Producer {
    /// Whether this was not inherited through fork.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.inner().process.is_current()
    }

    /// How to make the pool of this name, or with its socket at this path.
    pub fn builder(pool: &(impl AsRef<OsStr> + ?Sized)) -> ProducerBuilder {
        ProducerBuilder::new(pool.as_ref())
    }

    fn inner(&self) -> &Arc<Pool> {
        &self.owner.pool
    }

    /// A slot for a frame of `size` bytes. Never waits.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Exhausted`] when all slots are in use and the pool may not grow, and others as
    /// [`AcquireError`] says.
    pub fn acquire(&self, size: usize) -> Result<WriteLease, AcquireError> {
        self.acquire_with_room(size, 0)
    }

    /// A slot for a frame of `size` bytes, with room behind it for [attachments](FrameMeta::attachments) of `room` bytes.
    /// Never waits.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_with_room(&self, size: usize, room: usize) -> Result<WriteLease, AcquireError> {
        self.acquire_on_host(Want::on_host(size, room))
    }

    /// The same for a frame that is still to be made, by who has other memory if there is no slot: the frames of that size
    /// that are kept for consumers are not given up for it, as they are for a frame that is there. Never waits.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_ahead(&self, size: usize, room: usize) -> Result<WriteLease, AcquireError> {
        self.acquire_on_host(Want::on_host(size, room).ahead())
    }

    fn acquire_on_host(&self, want: Want) -> Result<WriteLease, AcquireError> {
        let claimed = self.inner().acquire(want)?;
        Ok(WriteLease::new(self.inner().clone(), claimed, want.size))
    }

    /// A slot for a frame of `size` bytes; waits for one if all are in use. For lossless pools.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but [`AcquireError::Timeout`] or [`AcquireError::Cancelled`] instead of
    /// `Exhausted`.
    pub fn acquire_wait(
        &self,
        size: usize,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_wait_with_room(size, 0, timeout, cancel)
    }

    /// Both: waits, and has [room](Self::acquire_with_room).
    ///
    /// # Errors
    ///
    /// As [`acquire_wait`](Self::acquire_wait).
    pub fn acquire_wait_with_room(
        &self,
        size: usize,
        room: usize,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<WriteLease, AcquireError> {
        self.acquire_wait_by(timeout, cancel, || self.acquire_with_room(size, room))
    }

    /// The same for whichever call gets a slot, as one on a device.
    ///
    /// # Errors
    ///
    /// As [`acquire_wait`](Self::acquire_wait), and the call's own.
    pub fn acquire_wait_by(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
        acquire: impl Fn() -> Result<WriteLease, AcquireError>,
    ) -> Result<WriteLease, AcquireError> {
        let look = || match acquire() {
            Err(AcquireError::Exhausted { .. }) => None,
            result => Some(result),
        };
        match self.inner().wait_lossless(timeout, cancel, look) {
            Ok(result) => result,
            Err(WaitError::Timeout) => Err(AcquireError::Timeout),
            Err(WaitError::Cancelled) => Err(AcquireError::Cancelled),
            Err(WaitError::Closed) => Err(AcquireError::Closed),
            Err(WaitError::Forked) => Err(AcquireError::Forked),
        }
    }

    /// Publishes a frame of this producer once more, in the same slot with other metadata. Returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::OtherPool`] if it is not this producer's frame, and others as [`PublishError`] says.
    pub fn republish(&self, frame: &ReadLease, meta: FrameMeta) -> Result<u64, PublishError> {
        let Some(hold) = hold::downcast_ref::<OwnHold>(&**frame.hold()) else {
            return Err(PublishError::OtherPool);
        };
        if !Arc::ptr_eq(&hold.pool, self.inner()) {
            return Err(PublishError::OtherPool);
        }
        let pool = self.inner();
        let sequence = pool.republish(hold, meta)?;
        // The reference that publishing adds for its caller.
        pool.dereference(hold.slot);
        Ok(sequence)
    }

    /// Takes in memory that somebody else made, so that frames may lie in it ([`Parts`]): a DMA buffer, or a memfd that is
    /// sealed against shrinking. Consumers may be able to write it, if its maker did not prevent that.
    ///
    /// # Errors
    ///
    /// [`ImportError::Memory`] if a reader could lose it, and others as [`ImportError`] says.
    pub fn import(&self, fd: OwnedFd) -> Result<ImportedMemory, ImportError> {
        self.inner().import(fd)
    }

    /// A frame that was received from another pool, to be published in this one where it lies
    /// ([`WriteLease::set_parts`]). It stays held until the last consumer of this pool is done with it; each of them also
    /// holds it in the pool that it comes from, so that it is safe when this process is killed.
    ///
    /// Never waits. What a consumer of a live pool has not said yet counts as said: it waits for itself when it takes the
    /// frame, and misses it if it cannot reach that pool after all.
    ///
    /// # Errors
    ///
    /// [`ForwardError::NotReached`] if a consumer cannot join that pool too, or, in a lossless pool, has not done so yet;
    /// [`ForwardError::EndsWithProducer`] for device memory that is shared by legacy handle; and others as
    /// [`ForwardError`] says. Copy the frame then.
    pub fn forward(&self, frame: &ReadLease) -> Result<Parts, ForwardError> {
        self.inner().forward(frame, |number| number != SLOT)
    }

    /// The same for some of a frame's [pieces](ReadLease::parts), by their numbers, in their order. A frame that lies in its
    /// slot is one piece, number 0. Of one that lies elsewhere, [`SLOT`] is the slot that it was published with: nothing of it is
    /// passed on, but consumers hold it too, and with it what its publisher keeps as long.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_pieces(
        &self,
        frame: &ReadLease,
        pieces: &[usize],
    ) -> Result<Parts, ForwardError> {
        self.inner()
            .forward(frame, |number| pieces.contains(&number))
    }

    /// The same, but waits a few seconds at the most for consumers of a lossless pool that have not said yet whether they can
    /// join that pool too.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`ForwardError::Cancelled`].
    pub fn forward_wait(
        &self,
        frame: &ReadLease,
        cancel: &Canceller,
    ) -> Result<Parts, ForwardError> {
        let wanted = |number| number != SLOT;
        self.inner()
            .forward_wait(frame, wanted, Duration::MAX, cancel)
    }

    /// The same for some of a frame's pieces, and no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// As [`forward_wait`](Self::forward_wait).
    pub fn forward_pieces_wait(
        &self,
        frame: &ReadLease,
        pieces: &[usize],
        timeout: Duration,
        cancel: &Canceller,
    ) -> Result<Parts, ForwardError> {
        let wanted = |number| pieces.contains(&number);
        self.inner().forward_wait(frame, wanted, timeout, cancel)
    }

    /// Publishes an event between two frames, for consumers that ask for
    /// [`events`](crate::ConsumerBuilder::events). Of the metadata, times, flags and attachments count. Returns its
    /// sequence. Never waits.
    ///
    /// # Errors
    ///
    /// [`EventError::Acquire`] when there is no slot for it, and others as [`EventError`] says.
    pub fn publish_event(&self, meta: FrameMeta) -> Result<u64, EventError> {
        let lease = self.acquire_with_room(EVENT_SIZE, meta.attachments.encoded_len())?;
        publish_event(self.inner(), lease, meta)
    }

    /// The same, but waits for a slot if all are in use. For lossless pools.
    ///
    /// # Errors
    ///
    /// As [`publish_event`](Self::publish_event) and [`acquire_wait`](Self::acquire_wait).
    pub fn publish_event_wait(
        &self,
        meta: FrameMeta,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<u64, EventError> {
        let room = meta.attachments.encoded_len();
        let lease = self.acquire_wait_with_room(EVENT_SIZE, room, timeout, cancel)?;
        publish_event(self.inner(), lease, meta)
    }

    /// The right to write this very slot, with the frame that is in it, if nobody holds it.
    pub(crate) fn acquire_index(&self, slot: u32) -> Option<WriteLease> {
        let claimed = self.inner().acquire_index(slot)?;
        let len = claimed.place.len;
        Some(WriteLease::new(self.inner().clone(), claimed, len))
    }

    /// A reference to the frame that an entry of this slot describes, if it is still there.
    pub(crate) fn read_index(&self, slot: u32, entry: Entry) -> Option<ReadLease> {
        let (hold, sticky) = self.inner().read_index(slot, entry.meta.generation)?;
        // Frames in pieces are for who follows the stream.
        ReadLease::new(Arc::new(hold), entry, sticky, &|_| Ok::<_, Malformed>(None)).ok()?
    }

    pub(crate) fn slot_record(&self, slot: u32) -> Option<EntryWords> {
        self.inner().control.read_slot_record(slot)
    }

    /// Keeps the published frame of a slot until so many consumers took and released it.
    pub(crate) fn keep_until(&self, slot: u32, consumers: u32) -> bool {
        self.inner().set_keep(slot, consumers)
    }

    /// Whether a slot is of this pool.
    pub fn owns(&self, lease: &WriteLease) -> bool {
        Arc::ptr_eq(lease.pool(), self.inner())
    }

    /// Whether a slot that is a piece is of this pool.
    pub fn owns_piece(&self, lease: &PieceLease) -> bool {
        lease.pool().as_ptr() == Arc::as_ptr(self.inner())
    }

    /// Whether memory was imported into this pool.
    pub fn owns_import(&self, memory: &ImportedMemory) -> bool {
        memory.is_of(self.inner())
    }

    /// Whether a frame was published by this producer, and this is its own reference.
    pub fn owns_frame(&self, lease: &ReadLease) -> bool {
        hold::downcast_ref::<OwnHold>(&**lease.hold())
            .is_some_and(|hold| Arc::ptr_eq(&hold.pool, self.inner()))
    }

    /// What it does when a consumer is slow.
    pub fn delivery(&self) -> Delivery {
        Delivery::of(self.inner().lossless())
    }

    /// Lossless: waits until the slowest consumer is at most a few frames behind. Live: returns at once.
    ///
    /// # Errors
    ///
    /// [`WaitError::Cancelled`] or [`WaitError::Closed`].
    pub fn wait_for_room(&self, cancel: &Canceller) -> Result<(), WaitError> {
        self.wait_for_room_timeout(None, cancel)
    }

    /// The same, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_for_room_timeout(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<(), WaitError> {
        let pool = self.inner();
        if !pool.lossless() {
            return Ok(());
        }
        let max = pool.max_backlog();
        pool.wait_lossless(timeout, cancel, || {
            (pool.backlog(&pool.lock()) < max).then_some(())
        })
    }

    /// Lossless: who has so much left to take that the next frame waits for it, in words.
    pub fn held_up_by(&self) -> Vec<String> {
        let pool = self.inner();
        if !pool.lossless() {
            return Vec::new();
        }
        let Some(state) = pool.lock_here() else {
            return Vec::new();
        };
        let max = pool.max_backlog();
        let (behind, slowest) = pool.slowest(&state);
        drop(state);
        let slowest = slowest.iter().filter(|_| behind >= max);
        slowest
            .map(|peer| format!("{} (process {})", peer.name, peer.pid))
            .collect()
    }

    /// Lossless: waits until every connected consumer took everything. Live: returns at once.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn drain(&self, timeout: Option<Duration>, cancel: &Canceller) -> Result<(), WaitError> {
        let pool = self.inner();
        if !pool.lossless() {
            return Ok(());
        }
        pool.wait_lossless(timeout, cancel, || {
            (pool.backlog(&pool.lock()) == 0).then_some(())
        })
    }

    /// Waits until a consumer is connected.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_for_consumer(
        &self,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<(), WaitError> {
        self.wait_for_consumers(1, timeout, cancel)
    }

    /// Waits until so many consumers are connected.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_for_consumers(
        &self,
        count: usize,
        timeout: Option<Duration>,
        cancel: &Canceller,
    ) -> Result<(), WaitError> {
        self.inner().wait(timeout, cancel, || {
            (self.num_consumers() >= count).then_some(())
        })
    }

    /// The sticky state (caps and so on) of the frames that are published from here on. Returns its version.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if there is no room for it.
    pub fn set_sticky(&self, sticky: &Sticky) -> Result<u64, RegionError> {
        self.inner().set_sticky(sticky)
    }

    /// The sticky state now. Nothing is known of it in a forked child.
    pub fn sticky(&self) -> Arc<Sticky> {
        match self.inner().lock_here() {
            Some(state) => state.sticky.current(),
            None => Arc::default(),
        }
    }

    /// Says that the stream is over after the last published frame, or that it is not.
    pub fn set_eos(&self, eos: bool) {
        self.inner().set_eos(eos);
    }

    /// Reserves slots for buffers that upstream keeps to itself, such as a decoder's reference frames.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Exhausted`] if there may not be as many, and [`AcquireError::Forked`].
    pub fn set_upstream_need(&self, slots: u32) -> Result<(), AcquireError> {
        let settings = &self.inner().settings;
        let mut state = self.inner().lock_here().ok_or(AcquireError::Forked)?;
        if slots.saturating_add(settings.history.saturating_add(2)) > settings.max_slots {
            return Err(AcquireError::Exhausted {
                pool: self.pool().to_owned(),
                slots,
                max_slots: settings.max_slots,
                max_bytes: settings.max_bytes,
            });
        }
        state.upstream_need = Some(slots);
        let mut effects = Effects::default();
        state.share_out(&self.inner().control, settings, &mut effects);
        drop(state);
        self.inner().run(effects, None);
        Ok(())
    }

    /// Counts a frame that had to be copied into its slot.
    pub fn note_copied(&self) {
        self.inner().counters.copied.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that could not be published.
    pub fn note_dropped(&self) {
        self.inner()
            .counters
            .dropped
            .fetch_add(1, Ordering::Relaxed);
    }

    /// How many consumers are connected and take frames. In a forked child there are none.
    pub fn num_consumers(&self) -> usize {
        let Some(state) = self.inner().lock_here() else {
            return 0;
        };
        state
            .peers
            .iter()
            .filter(|peer| peer.takes_frames())
            .count()
    }

    /// Figures. In a forked child, the name only.
    pub fn stats(&self) -> PoolStats {
        self.inner().stats()
    }

    /// Gives back the regions that are not needed now. Returns how many went.
    pub fn collect(&self) -> usize {
        self.inner().collect()
    }

    /// The pool's name. Where that is a path, which need not be UTF-8, other bytes are replaced; see
    /// [`socket_path`](Self::socket_path).
    pub fn pool(&self) -> &str {
        &self.inner().name
    }

    /// The path of the pool's socket.
    pub fn socket_path(&self) -> &Path {
        &self.inner().socket_path
    }

    /// Closes the pool: no frame comes any more, nobody can join. What is held stays as it is.
    ///
    /// Consumers that have frames to take yet get 50 ms to ask for what they need for that. Frames with a release hook or
    /// a count are given up: their hooks run, whether or not somebody holds them.
    pub fn close(&self) {
        self.owner.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Consumer, StartFrom};
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_waits_for_no_lock_that_another_thread_had() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let first = Producer::builder(&path("a.sock")).build().unwrap();
        drop(first.acquire(10).unwrap().publish(FrameMeta::new(10)));
        let consumer = Consumer::builder(first.pool()).start_from(StartFrom::Oldest);
        let mut consumer = consumer.connect().unwrap();
        let frame = consumer.receive(Some(Duration::from_secs(60))).unwrap();
        let producer = Producer::builder(&path("b.sock")).delivery(Delivery::Lossless);
        let producer = producer.build().unwrap();
        let does_nothing = || {
            producer.stats().slots == 0
                && producer.num_consumers() == 0
                && producer.sticky().is_empty()
                && producer.set_upstream_need(2).is_err()
                && producer.forward(&frame).is_err()
                && producer.held_up_by().is_empty()
        };
        let lock = || producer.inner().lock();
        assert!(is_so_in_a_child_without(lock, does_nothing), "it hung");
    }
}
