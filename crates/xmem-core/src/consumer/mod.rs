// SPDX-License-Identifier: MPL-2.0

//! The consumer of a pool.

mod connect;
mod connection;
pub(crate) mod leases;
mod link;
mod listener;
mod lookup;
mod origin;
mod position;
mod ready;
mod receive;
mod regions;
pub(crate) mod session;
mod set;
mod take;
mod waiting;

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use xmem_shm::abi::layout::LeasePage;
use xmem_shm::abi::named::Sticky;
use xmem_shm::os::thread::Thread;
use xmem_shm::sync::AtomicU64;

pub use connect::{ConsumerBuilder, query};
pub use ready::ReadyFd;
pub use set::ConsumerSet;

use crate::cancel::{Canceller, Registration};
use crate::delivery::Delivery;
use crate::error::{ReceiveError, RequestError};
use crate::stats::ReceiveStats;
use connection::Connection;
use leases::Leases;
use position::{Position, ResumePoint};
use ready::Notification;
use session::Session;
use take::Kept;
use waiting::{Asked, RateLimit};
use xmem_shm::abi::budget::BudgetLimit;

/// A consumer of a pool, which receives frames without a copy.
///
/// A drop notifies the producer. Frames that are still held stay valid.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use xmem_core::{Consumer, FrameMeta, Producer, ReceiveError};
///
/// let producer = Producer::builder(pool).build()?;
/// let mut consumer = Consumer::builder(pool).max_held(2).connect()?;
/// let mut slot = producer.acquire(3)?;
/// slot.as_mut_slice().copy_from_slice(b"one");
/// slot.publish(FrameMeta::new(3))?;
/// producer.set_eos(true);
///
/// assert_eq!(consumer.receive(None)?.bytes()?, b"one");
/// assert!(matches!(consumer.receive(None), Err(ReceiveError::Eos)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consumer {
    session: Arc<Session>,
    thread: Thread,
    position: Position,
    kept: Kept,
    /// The cursor at which the caller got `Eos`.
    eos_reported_at: Option<u64>,
    /// Skips a frame if a newer one exists.
    newest_only: bool,
    /// `None`: it has no limit.
    rate: Option<RateLimit>,
    /// Also receives events.
    events: bool,
    /// The end of the stream after which it continues to wait.
    passed_eos: Option<u64>,
    /// What the last receive call asked the producer for, if it did not wait for the answer.
    asked: Option<Asked>,
    /// Receives frames in parts as parts.
    parts: bool,
    /// Receives frames as DMA buffers.
    dmabuf: bool,
    busy_poll: Duration,
    notification: Option<Notification>,
    canceller: Canceller,
    _registration: Registration,
}

impl Consumer {
    /// Options to join the pool with this name, or with its socket at this path.
    pub fn builder(pool: impl AsRef<OsStr>) -> ConsumerBuilder {
        ConsumerBuilder::new(pool.as_ref())
    }

    fn new(session: Arc<Session>, thread: Thread, builder: &ConsumerBuilder) -> Self {
        let canceller = builder.canceller.clone();
        Self {
            _registration: canceller.register(session.connection()),
            position: Position::begin(session.connection(), builder.resume),
            kept: Kept::default(),
            eos_reported_at: None,
            session,
            thread,
            newest_only: builder.newest_only,
            rate: builder.interval.map(RateLimit::new),
            events: builder.events,
            passed_eos: None,
            asked: None,
            parts: builder.parts,
            dmabuf: builder.dmabuf,
            busy_poll: builder.busy_poll,
            notification: None,
            canceller,
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn connection(&self) -> &Connection {
        self.session.connection()
    }

    /// Whether the producer has ended or has disconnected this consumer.
    pub(crate) fn is_lost(&self) -> bool {
        self.connection().is_lost()
    }

    fn resume_point(&self) -> ResumePoint {
        self.position.resume_point()
    }

    /// The newest known sticky state (caps and so on), also before the first frame. `None` in a forked child.
    pub fn sticky(&self) -> Option<Arc<Sticky>> {
        self.connection().stickies().newest()
    }

    /// As `sticky`, but waits for the state that the producer sends to each consumer that joins. Returns
    /// `None` when the time has passed (`timeout` of `None`: it waits forever) or the wait was cancelled.
    pub fn wait_sticky(&self, timeout: Option<Duration>) -> Option<Arc<Sticky>> {
        let stickies = self.connection().stickies();
        stickies.wait(timeout, &self.canceller)
    }

    /// After [`ReceiveError::Eos`](crate::ReceiveError::Eos): the next call waits for frames after this end, instead of
    /// returning the error again.
    pub fn pass_eos(&mut self) {
        self.passed_eos = Some(self.position.cursor());
    }

    /// Whether the producer is the one of the consumer that this one [resumes](ConsumerBuilder::resume), so that its frames
    /// follow that one's.
    pub fn has_resumed(&self) -> bool {
        self.position.has_resumed()
    }

    /// A random number that the producer chose for this pool. It is the same for all of its consumers, and another one when the
    /// next producer makes the pool again: frames with the same pool and [number](crate::FrameInfo::number) are the same frame.
    pub fn pool_id(&self) -> u64 {
        self.connection().pool_id()
    }

    /// The number of slots that it holds. A forked child holds none.
    pub fn held(&self) -> u32 {
        self.session.leases().stats().held
    }

    /// The number of slots that it can hold now. It shrinks when other consumers join, and grows when they leave. Frames that are
    /// held beyond it stay valid.
    ///
    /// With a budget of 0, [`receive`](Self::receive) returns one frame at a time. Drop it soon, because the producer may have no
    /// other slot for the next frame; or copy it with [`receive_with`](Self::receive_with).
    pub fn budget(&self) -> u32 {
        self.connection().budget()
    }

    /// The setting that limits the budget.
    pub fn budget_limit(&self) -> BudgetLimit {
        self.connection().budget_limit()
    }

    /// How the pool treats a slow consumer.
    pub fn delivery(&self) -> Delivery {
        Delivery::of(self.connection().control().constants().lossless)
    }

    /// The name of the pool, from its producer.
    pub fn pool(&self) -> &str {
        self.connection().pool_name()
    }

    /// The process ID of the producer; 0 if it has none in this process's PID namespace.
    pub fn producer_pid(&self) -> u32 {
        self.connection().terms().producer_pid
    }

    /// The user of the producer's process when it made the pool, as reported by the kernel. `None`: the kernel does not report it,
    /// the number stands for every user that this user namespace does not map (65534), or the handle was inherited through fork.
    pub fn producer_uid(&self) -> Option<u32> {
        self.session.link().producer_uid()
    }

    /// Asks the producer to keep frames for this consumer for longer after they were published: by this time in all. For consumers
    /// that use a frame later than it comes, such as a sink that waits for the frame's time. It applies if the producer has a
    /// [`history_time`](crate::ProducerBuilder::history_time). The consumer misses frames that are older, also if the producer
    /// keeps them for another consumer.
    pub fn keep_for_longer(&self, by: Duration) {
        self.connection().keep_for_longer(by);
    }

    /// The figures of this consumer.
    pub fn stats(&self) -> ReceiveStats {
        self.session.leases().stats()
    }

    /// The way in which this process reads device memory of frames: see [`ConsumerStats::device`].
    ///
    /// [`ConsumerStats::device`]: crate::ConsumerStats::device
    pub fn device(&self) -> String {
        self.session.leases().device()
    }

    /// A handle for other threads while this one waits.
    pub fn handle(&self) -> ConsumerHandle {
        ConsumerHandle(Arc::downgrade(self.session.leases()))
    }

    /// Sends a request to the program that writes to the pool, such as a request for a key frame. That program may ignore it.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn request(&self, name: &str, data: &[u8]) -> Result<(), RequestError> {
        self.session.link().request(name, data)
    }

    /// Counts a frame that was copied out of its slot, in the producer's figures.
    pub fn note_copied(&self) {
        self.count(LeasePage::copied);
    }

    /// Counts a frame that was received and dropped, such as a frame beyond the budget, in the producer's figures.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// use xmem_core::{Consumer, FrameMeta, Producer, ReceiveError};
    ///
    /// let producer = Producer::builder(pool).build()?;
    /// let mut consumer = Consumer::builder(pool).max_held(1).connect()?;
    /// for _ in 0..2 {
    ///     producer.acquire(3)?.publish(FrameMeta::new(3))?;
    /// }
    /// let first = consumer.receive(None)?;
    /// assert!(matches!(consumer.receive(None), Err(ReceiveError::OverBudget { .. })));
    /// consumer.receive_with(None, |_| ())?; // the second is of no use without a lease
    /// consumer.note_dropped();
    /// assert_eq!(producer.stats().consumers[0].dropped, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_dropped(&self) {
        self.count(LeasePage::dropped);
    }

    fn count(&self, figure: fn(&LeasePage) -> &AtomicU64) {
        if self.session.link().is_of_this_process() {
            self.connection().count(figure);
        }
    }

    /// Makes a descriptor readable when a frame or an error can be received, for programs with an event loop. Other code can also
    /// make it readable. It takes the place of an earlier one.
    ///
    /// It stays readable until a [`receive`](Self::receive) has found nothing. So call receive with a timeout of zero until it returns
    /// [`ReceiveError::Timeout`](crate::ReceiveError::Timeout), and then wait for the descriptor. Receive also returns this error while
    /// the memory of a frame is requested from the producer. Each consumer needs a descriptor of its own; for many of them there is
    /// [`ConsumerSet`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// # use std::time::Duration;
    /// # use xmem_core::{Consumer, FrameMeta, Producer, ReadyFd, ReceiveError};
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let producer = Producer::builder(pool).build()?;
    /// let mut consumer = Consumer::builder(pool).connect()?;
    /// let ready = ReadyFd::new()?;
    /// consumer.notify(&ready)?;
    ///
    /// assert!(matches!(consumer.receive(Some(Duration::ZERO)), Err(ReceiveError::Timeout)));
    /// producer.acquire(3)?.publish(FrameMeta::new(3))?;
    /// let frame = loop {
    ///     poll(&mut [PollFd::new(&ready, PollFlags::IN)], None)?;
    ///     match consumer.receive(Some(Duration::ZERO)) {
    ///         Err(ReceiveError::Timeout) => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(frame.size(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the kernel watches no more descriptors for this user, or this was inherited through fork.
    pub fn notify(&mut self, ready: &ReadyFd) -> io::Result<()> {
        let notification = self.notification_to(ready, 0)?;
        notification.ask(self.waiting(), &self.canceller);
        self.notification = Some(notification);
        Ok(())
    }

    /// From now on events of this consumer go to this descriptor only, under this number.
    fn notification_to(&mut self, ready: &ReadyFd, number: u64) -> io::Result<Notification> {
        if !self.session.link().is_of_this_process() {
            return Err(io::Error::other(ReceiveError::Forked));
        }
        self.notification = None;
        Notification::new(self.session.connection(), ready.clone(), number)
    }
}

/// A handle to a consumer for other threads. It keeps nothing alive.
#[derive(Debug, Clone)]
pub struct ConsumerHandle(Weak<Leases>);

impl ConsumerHandle {
    /// As [`Consumer::request`].
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn request(&self, name: &str, data: &[u8]) -> Result<(), RequestError> {
        let leases = self.0.upgrade().ok_or(RequestError::ProducerLost)?;
        leases.connection().link().request(name, data)
    }

    /// As [`Consumer::sticky`].
    pub fn sticky(&self) -> Option<Arc<Sticky>> {
        self.0.upgrade()?.connection().stickies().newest()
    }

    /// As [`Consumer::keep_for_longer`].
    pub fn keep_for_longer(&self, by: Duration) {
        if let Some(leases) = self.0.upgrade() {
            leases.connection().keep_for_longer(by);
        }
    }

    /// The figures. `None`: the consumer and all its frames were dropped.
    pub fn stats(&self) -> Option<ReceiveStats> {
        self.0.upgrade().map(|leases| leases.stats())
    }

    /// As [`Consumer::device`]. `None`: the consumer and all its frames were dropped.
    pub fn device(&self) -> Option<String> {
        self.0.upgrade().map(|leases| leases.device())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if !self.session.link().is_of_this_process() {
            // Inherited through fork: the connection belongs to the parent.
            return;
        }
        self.notification = None;
        self.connection().leave();
        self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Producer;
    use xmem_shm::testing::is_so_in_a_child_without;

    #[test]
    fn a_forked_child_does_not_wait_for_locks_of_other_threads() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(pool.to_str().unwrap()).build().unwrap();
        let consumer = Consumer::builder(producer.pool()).connect().unwrap();
        let handle = consumer.handle();
        let knows_nothing = || {
            consumer.sticky().is_none()
                && consumer.wait_sticky(None).is_none()
                && consumer.held() == 0
                && consumer.device().is_empty()
                && handle.stats().is_some()
        };
        let lock = || consumer.connection().stickies().lock();
        assert!(is_so_in_a_child_without(lock, knows_nothing), "it hung");
    }
}
