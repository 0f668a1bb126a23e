// SPDX-License-Identifier: MPL-2.0

//! The producer of a pool.

mod builder;
mod claim;
mod control;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod devices;
mod forward;
mod lease;
mod numbered;
mod parts;
mod pool;
mod publish;
mod slot;
mod spec;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

pub use builder::ProducerBuilder;
pub use control::lock_file::remove_stale;
pub use lease::{OwnSlot, PublishFailure, WriteLease};
pub use numbered::Reader;
pub use parts::{ImportedMemory, Parts};
pub use pool::event::{Departure, PoolEvent, Unread};
pub use slot::PartLease;
pub use spec::SlotSpec;

use crate::cancel::Wait;
use crate::delivery::Delivery;
use crate::error::{
    AcquireError, EventError, ForwardError, ImportError, PublishError, StickyError,
    UpstreamNeedError, WaitError,
};
use crate::frame::forwarded::FrameParts;
use crate::frame::lease::ReadLease;
use crate::stats::PoolStats;
use pool::Pool;
use pool::event::Command;
use pool::{stats, wait};
use xmem_shm::abi::layout::Control;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Sticky;
use xmem_shm::lock::lock;
use xmem_shm::os::thread::Thread;

/// Replaces `devices` in a build without CUDA. No slot of this pool is on a device.
#[cfg(not(feature = "cuda"))]
mod devices {
    use std::sync::Arc;

    use super::pool::slots::Want;
    use super::slot::Slot;
    use super::{AcquireError, Pool, PublishError};
    use crate::region::device::Device;

    pub(super) fn claim_on(
        _pool: &Arc<Pool>,
        _want: Want,
        device: &Device,
    ) -> Result<Slot, AcquireError> {
        match *device {}
    }

    pub(super) fn ordinal(device: &Device) -> Result<u16, AcquireError> {
        match *device {}
    }

    pub(super) fn finish(_pool: &Pool, _is_answering: bool) {}

    pub(super) fn mark(_pool: &Arc<Pool>) {}

    pub(super) fn set_ready(_slot: &Slot, _ready: bool) {}

    pub(super) fn update_ready(_slot: &Slot) -> Result<(), PublishError> {
        Ok(())
    }
}

/// The slot of an event. A slot has at least one byte.
fn event_spec(meta: &FrameMeta) -> SlotSpec {
    SlotSpec::new(1).attachments(meta.attachments.encoded_len())
}

fn publish_event(lease: WriteLease, meta: FrameMeta) -> Result<u64, EventError> {
    let mut meta = meta;
    meta.event = true;
    meta.offset = 0;
    meta.size = 0;
    let published = lease.publish(meta).map_err(PublishError::from)?;
    Ok(published.info().sequence)
}

/// The producer of a pool. Clones are handles to the same one; when the last is dropped, the pool closes.
///
/// No method waits for a consumer unless its description states it. All methods may be called from any thread.
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

/// State that the clones of a producer share. Published frames keep the pool alive, but not this.
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
        if !self.pool.is_of_this_process() {
            // Inherited through fork: the pool belongs to the parent.
            return;
        }
        self.pool.close();
        let thread = lock(&self.thread);
        // While this runs on the control thread, consumers could not be answered.
        let is_elsewhere = thread.as_ref().is_some_and(|thread| !thread.is_current());
        drop(thread);
        devices::finish(&self.pool, is_elsewhere);
        self.pool.commands().send(Command::Stop);
        let thread = lock(&self.thread).take();
        // On the control thread itself (called by `on_event`), the thread cannot wait for itself, and ends later.
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
        self.inner().is_of_this_process()
    }

    /// Options for a pool of this name, or with its socket at this path.
    pub fn builder(pool: impl AsRef<OsStr>) -> ProducerBuilder {
        ProducerBuilder::new(pool.as_ref())
    }

    fn inner(&self) -> &Arc<Pool> {
        &self.owner.pool
    }

    /// A slot for a frame of this size, or as a [`SlotSpec`] describes it. Waits for no consumer. If the pool reaches its limits
    /// by a region that another thread allocates, waits for that thread.
    ///
    /// # Errors
    ///
    /// [`AcquireError::Exhausted`] when all slots are in use and the pool cannot grow; see [`AcquireError`] for the
    /// others.
    pub fn acquire(&self, spec: impl Into<SlotSpec>) -> Result<WriteLease, AcquireError> {
        self.claim(&spec.into())
    }

    fn claim(&self, spec: &SlotSpec) -> Result<WriteLease, AcquireError> {
        let want = spec.want()?;
        let slot = match spec.device() {
            Some(device) => devices::claim_on(self.inner(), want, device)?,
            None => claim::on_host(self.inner(), want)?,
        };
        Ok(WriteLease::new(slot, spec.size()))
    }

    /// As [`acquire`](Self::acquire), but waits while all slots are in use. For lossless pools.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but [`AcquireError::Timeout`] or [`AcquireError::Cancelled`] instead of
    /// `Exhausted`.
    pub fn acquire_wait(
        &self,
        spec: impl Into<SlotSpec>,
        wait: Wait<'_>,
    ) -> Result<WriteLease, AcquireError> {
        let spec = spec.into();
        let check = || match self.claim(&spec) {
            Err(AcquireError::Exhausted { .. }) => None,
            result => Some(result),
        };
        match wait::wait_lossless(self.inner(), wait, check) {
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
    /// [`PublishError::OtherPool`] if it is not this producer's frame; see [`PublishError`] for the others.
    pub fn republish(&self, frame: &ReadLease, meta: &FrameMeta) -> Result<u64, PublishError> {
        let (at, region) = slot::of_hold(self.inner(), frame.hold())?;
        publish::republish(self.inner(), &at, region, meta)
    }

    /// Imports memory that other code allocated, so that frames may use it ([`Parts`]): a DMA buffer, or a memfd that
    /// is completely allocated and sealed against shrinking and future writes. Consumers can write to a DMA buffer unless its
    /// allocator prevented that.
    ///
    /// # Errors
    ///
    /// [`ImportError::Memory`] if the memory could vanish under a reader; see [`ImportError`] for the others.
    pub fn import(&self, fd: OwnedFd) -> Result<ImportedMemory, ImportError> {
        parts::import(self.inner(), fd)
    }

    /// Imports a frame of another pool, so that it can be published in this one without a copy
    /// ([`WriteLease::set_parts`]). It stays held until the last consumer of this pool is done with it. Each of these
    /// consumers also holds it in the pool of origin, so that the frame is safe if this process is killed.
    ///
    /// Never waits. In a live pool a consumer that has not answered yet counts as one that can join the pool of origin:
    /// it waits when it takes the frame, and misses the frame if it cannot join.
    ///
    /// # Errors
    ///
    /// [`ForwardError::NotReached`] if a consumer cannot join the pool of origin, or, in a lossless pool, has not done so
    /// yet; [`ForwardError::EndsWithProducer`] for device memory that is shared by legacy handle; see [`ForwardError`]
    /// for the others. Copy the frame in these cases.
    pub fn forward(
        &self,
        frame: &ReadLease,
        selection: FrameParts<'_>,
    ) -> Result<Parts, ForwardError> {
        forward::forward(self.inner(), frame, selection)
    }

    /// As [`forward`](Self::forward), but waits for consumers of a lossless pool that have not answered yet whether they
    /// can join the pool of origin, at most the few seconds that consumers have to answer.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and [`ForwardError::Cancelled`].
    pub fn forward_wait(
        &self,
        frame: &ReadLease,
        selection: FrameParts<'_>,
        wait: Wait<'_>,
    ) -> Result<Parts, ForwardError> {
        forward::forward_wait(self.inner(), frame, selection, wait)
    }

    /// Publishes an event between two frames, for consumers that ask for [`events`](crate::ConsumerBuilder::events). Of
    /// the metadata, times, flags and attachments count. Returns its sequence. Waits for no consumer.
    ///
    /// # Errors
    ///
    /// [`EventError::Acquire`] when there is no slot for it; see [`EventError`] for the others.
    pub fn publish_event(&self, meta: FrameMeta) -> Result<u64, EventError> {
        let lease = self.acquire(event_spec(&meta))?;
        publish_event(lease, meta)
    }

    /// As [`publish_event`](Self::publish_event), but waits for a slot if all are in use. For lossless pools.
    ///
    /// # Errors
    ///
    /// As [`publish_event`](Self::publish_event) and [`acquire_wait`](Self::acquire_wait).
    pub fn publish_event_wait(&self, meta: FrameMeta, wait: Wait<'_>) -> Result<u64, EventError> {
        let lease = self.acquire_wait(event_spec(&meta), wait)?;
        publish_event(lease, meta)
    }

    pub(crate) fn control(&self) -> &Control {
        self.inner().control()
    }

    /// How the pool treats slow consumers.
    pub fn delivery(&self) -> Delivery {
        self.inner().settings().delivery
    }

    /// Lossless: waits until the slowest consumer is at most a few frames behind, and, after the end of a stream, until every consumer
    /// has got that end. Live: returns at once.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_for_room(&self, wait: Wait<'_>) -> Result<(), WaitError> {
        let pool = self.inner();
        if !pool.lossless() {
            return Ok(());
        }
        wait::wait_for_room(pool, wait)
    }

    /// Lossless: the consumers that the next frame would wait for, as text.
    pub fn held_up_by(&self) -> Vec<String> {
        let pool = self.inner();
        if !pool.lossless() {
            return Vec::new();
        }
        let Some(guard) = pool.lock() else {
            return Vec::new();
        };
        let (behind, slowest) = guard.consumers.slowest(pool.control());
        drop(guard);
        let max = wait::max_behind(pool);
        let slowest = slowest.iter().filter(|_| behind >= max);
        slowest
            .map(|consumer| format!("{} (process {})", consumer.name(), consumer.pid()))
            .collect()
    }

    /// Lossless: waits until every connected consumer took everything. Live: returns at once.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn drain(&self, wait: Wait<'_>) -> Result<(), WaitError> {
        let pool = self.inner();
        if !pool.lossless() {
            return Ok(());
        }
        wait::wait_for_backlog(pool, 1, wait)
    }

    /// Waits until this many consumers are connected.
    ///
    /// # Errors
    ///
    /// See [`WaitError`].
    pub fn wait_for_consumers(&self, count: usize, wait: Wait<'_>) -> Result<(), WaitError> {
        wait::wait(self.inner(), wait, || {
            (self.num_consumers() >= count).then_some(())
        })
    }

    /// Sets the sticky state (caps and so on) of the frames that are published from here on. Returns its version.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// use xmem_core::{Producer, Sticky};
    ///
    /// let producer = Producer::builder(pool).build()?;
    /// let mut sticky = Sticky::new();
    /// sticky.set("caps", "video/x-raw,format=GRAY8,width=64,height=48,framerate=30/1");
    /// sticky.set("timeline", "timeline, live=(boolean)true;");
    /// producer.set_sticky(&sticky)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`StickyError`].
    pub fn set_sticky(&self, sticky: &Sticky) -> Result<u64, StickyError> {
        self.inner().set_sticky(sticky)
    }

    /// Sets the caps of the frames that are published from here on, as GStreamer writes them, if they changed. The frames are live,
    /// like those of a camera. For programs that set nothing else in the sticky state.
    ///
    /// # Errors
    ///
    /// See [`StickyError`].
    pub fn set_caps(&self, caps: &str) -> Result<(), StickyError> {
        let now = self.sticky();
        if now.text("caps") == Some(caps) {
            return Ok(());
        }
        let mut sticky = Sticky::clone(&now);
        sticky.set("caps", caps);
        sticky.set("timeline", "timeline, live=(boolean)true;");
        self.set_sticky(&sticky).map(drop)
    }

    /// The present sticky state. Empty in a forked child.
    pub fn sticky(&self) -> Arc<Sticky> {
        let guard = self.inner().lock();
        guard.map_or_else(Arc::default, |guard| guard.sticky.current())
    }

    /// Sets whether the stream ends after the last published frame. The next frame begins another stream. In a lossless pool it must
    /// [wait](Self::wait_for_room) until consumers have got the end.
    pub fn set_eos(&self, eos: bool) {
        self.inner().set_eos(eos);
    }

    /// The number of frames of this size that the pool can keep for a consumer that has not taken them: `history`, or more with a
    /// [`history_time`](ProducerBuilder::history_time).
    pub fn most_kept(&self, size: usize) -> u32 {
        self.inner().settings().most_kept(size)
    }

    /// Reserves slots for buffers that upstream keeps to itself, such as a decoder's reference frames.
    ///
    /// # Errors
    ///
    /// [`UpstreamNeedError::TooMany`] if there may not be as many, and [`UpstreamNeedError::Forked`].
    pub fn set_upstream_need(&self, slots: u32) -> Result<(), UpstreamNeedError> {
        let settings = self.inner().settings();
        let mut guard = self.inner().guard()?;
        let needed = slots.saturating_add(settings.history.saturating_add(2));
        if needed > settings.max_slots {
            return Err(UpstreamNeedError::TooMany {
                pool: self.pool().to_owned(),
                slots,
                needed,
                max_slots: settings.max_slots,
            });
        }
        guard.shares.set_upstream_need(slots);
        guard.share_out();
        Ok(())
    }

    /// Counts a frame that had to be copied into its slot.
    pub fn note_copied(&self) {
        let counters = self.inner().counters();
        counters.copied.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that could not be published.
    pub fn note_dropped(&self) {
        let counters = self.inner().counters();
        counters.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that was copied or dropped because the program that feeds the pool had few buffers left.
    pub fn note_scarce(&self) {
        let counters = self.inner().counters();
        counters.scarce.fetch_add(1, Ordering::Relaxed);
    }

    /// How many consumers are connected and take frames. In a forked child there are none.
    pub fn num_consumers(&self) -> usize {
        self.inner().lock().map_or(0, |guard| {
            let consumers = guard.consumers.iter();
            consumers.filter(|consumer| consumer.takes_frames()).count()
        })
    }

    /// The pool's figures. In a forked child, the name only.
    pub fn stats(&self) -> PoolStats {
        stats::of_pool(self.inner())
    }

    /// Frees the regions that are not needed now. Returns how many. Does nothing after [`close`](Self::close).
    pub fn collect(&self) -> usize {
        self.inner().collect()
    }

    /// The pool's name. If it is a path that is not UTF-8, the other bytes are replaced; see
    /// [`socket_path`](Self::socket_path).
    pub fn pool(&self) -> &str {
        self.inner().name()
    }

    /// The path of the pool's socket.
    pub fn socket_path(&self) -> &Path {
        self.inner().socket_path()
    }

    /// Closes the pool. No more frames can be published, and no consumer can join. Frames that consumers hold stay valid.
    ///
    /// Consumers that have not received all frames are sent the memory of the rest, so that they can receive them later, and have
    /// 50 ms to request what else they need for this. Hooks of frames with a release hook or a count run, even if a consumer
    /// still holds the frame. So a held frame in [imported](Self::import) memory stays valid only as long as that memory is not
    /// written to. If no consumer holds a frame in such memory at the end, the frame cannot be received any more, and counts as
    /// missed.
    pub fn close(&self) {
        self.owner.close();
    }
}

impl WriteLease {
    /// Whether it is a slot of this producer's pool.
    pub fn is_of(&self, producer: &Producer) -> bool {
        Arc::ptr_eq(self.of_slot().pool(), producer.inner())
    }
}

impl OwnSlot {
    /// Whether it is a slot of this producer's pool.
    pub fn is_of(&self, producer: &Producer) -> bool {
        Arc::ptr_eq(self.of_slot().pool(), producer.inner())
    }
}

impl PartLease {
    /// Whether it is a slot of this producer's pool.
    pub fn is_of(&self, producer: &Producer) -> bool {
        self.pool().as_ptr() == Arc::as_ptr(producer.inner())
    }
}

impl ImportedMemory {
    /// Whether it was imported into this producer's pool.
    pub fn is_of(&self, producer: &Producer) -> bool {
        self.is_in(producer.inner())
    }
}

impl ReadLease {
    /// Whether it is this producer's own reference to a frame that it published.
    pub fn is_of(&self, producer: &Producer) -> bool {
        self.hold().is_of(producer.inner())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Consumer, StartFrom};
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_does_not_wait_for_locks_of_other_threads() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let first = Producer::builder(path("a.sock")).build().unwrap();
        drop(first.acquire(10).unwrap().publish(FrameMeta::new(10)));
        let consumer = Consumer::builder(first.pool()).start_from(StartFrom::Oldest);
        let mut consumer = consumer.connect().unwrap();
        let frame = consumer.receive(Some(Duration::from_secs(60))).unwrap();
        let producer = Producer::builder(path("b.sock")).delivery(Delivery::Lossless);
        let producer = producer.build().unwrap();
        let own = producer.acquire(10).unwrap().publish(FrameMeta::new(10));
        let mut own = Some(own.unwrap());
        let does_nothing = || {
            drop(own.clone());
            drop(own.take());
            producer.stats().slots == 0
                && producer.num_consumers() == 0
                && producer.sticky().is_empty()
                && producer.set_upstream_need(2).is_err()
                && producer.forward(&frame, FrameParts::All).is_err()
                && producer.held_up_by().is_empty()
        };
        let lock = || producer.inner().lock();
        assert!(is_so_in_a_child_without(lock, does_nothing), "it hung");
    }
}
