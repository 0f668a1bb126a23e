// SPDX-License-Identifier: MPL-2.0

//! The consumer of a pool.

mod connect;
mod connection;
mod device;
mod layouts;
pub(crate) mod leases;
mod link;
mod listener;
mod notify;
mod origin;
mod position;
mod receive;
mod regions;
pub(crate) mod session;
mod stickies;
mod take;
mod waiting;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl};
use xmem_shm::abi::layout::LeasePage;
use xmem_shm::abi::named::Sticky;
use xmem_shm::os::thread::Thread;
use xmem_shm::sync::AtomicU64;

pub use connect::{ConsumerBuilder, query};

use crate::cancel::{Canceller, Registration, Wake};
use crate::delivery::Delivery;
use crate::error::{ReceiveError, RequestError};
use crate::frame::description::Descriptions;
use crate::stats::ReceiveStats;
use connection::Connection;
use leases::Leases;
use notify::EventFdNotifier;
use position::{Position, Whereabouts};
use session::Session;
use xmem_shm::abi::budget::BudgetLimit;

/// A consumer of a pool: takes frames out, where they lie.
///
/// Dropping it notifies the producer that it leaves. Frames that are still held stay as they are.
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
/// assert_eq!(&consumer.receive(None)?[..], b"one");
/// assert!(matches!(consumer.receive(None), Err(ReceiveError::Eos)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Consumer {
    session: Arc<Session>,
    thread: Thread,
    position: Position,
    descriptions: Descriptions,
    /// Where the caller got `Eos`.
    eos_reported_at: Option<u64>,
    /// Takes no frame that there is a newer one than.
    newest_only: bool,
    /// Takes events too.
    events: bool,
    /// The end of the stream after which it goes on waiting.
    passed_eos: Option<u64>,
    /// Takes frames in parts as they are.
    parts: bool,
    busy_poll: Duration,
    notifier: Option<EventFdNotifier>,
    canceller: Canceller,
    _registration: Registration,
}

impl Consumer {
    /// How to join the pool of this name, or with its socket at this path.
    pub fn builder(pool: &(impl AsRef<OsStr> + ?Sized)) -> ConsumerBuilder {
        ConsumerBuilder::new(pool.as_ref())
    }

    fn new(session: Arc<Session>, thread: Thread, builder: &ConsumerBuilder) -> Self {
        let canceller = builder.canceller.clone();
        let sleeper: Weak<Connection> = Arc::downgrade(session.connection());
        let sleeper: Weak<dyn Wake> = sleeper;
        Self {
            position: Position::begin(session.connection(), builder.resume),
            descriptions: Descriptions::default(),
            eos_reported_at: None,
            session,
            thread,
            newest_only: builder.newest_only,
            events: builder.events,
            passed_eos: None,
            parts: builder.parts,
            busy_poll: builder.busy_poll,
            notifier: None,
            _registration: canceller.register(sleeper),
            canceller,
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn connection(&self) -> &Connection {
        self.session.connection()
    }

    /// Whether the producer is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.connection().is_lost()
    }

    fn whereabouts(&self) -> Whereabouts {
        self.position.whereabouts()
    }

    /// The newest sticky state (caps and so on) that is known, also before the first frame. None in a forked child.
    pub fn sticky(&self) -> Option<Arc<Sticky>> {
        self.connection().stickies().newest()
    }

    /// The same, but waits for the state that the producer sends to each consumer that joins. `None`: it did not come in time.
    pub fn wait_sticky(&self, timeout: Duration) -> Option<Arc<Sticky>> {
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

    /// How many slots it holds. A forked child holds none.
    pub fn held(&self) -> u32 {
        self.session.leases().stats().held
    }

    /// How many slots it may hold now. The number becomes smaller when others join, and larger when they leave. Frames that are
    /// held beyond it stay held.
    ///
    /// With a budget of 0 [`receive`](Self::receive) gives one frame at a time, which has to be dropped soon, as the producer may
    /// have no other slot for the next one; [`receive_with`](Self::receive_with) copies it out.
    pub fn budget(&self) -> u32 {
        self.connection().budget()
    }

    /// The limit that keeps the budget from being larger.
    pub fn budget_limit(&self) -> BudgetLimit {
        self.connection().budget_limit()
    }

    /// How the pool treats a slow consumer.
    pub fn delivery(&self) -> Delivery {
        Delivery::of(self.connection().control().constants().lossless)
    }

    /// The pool's name, as its producer has it.
    pub fn pool(&self) -> &str {
        self.connection().pool_name()
    }

    /// The producer's process, 0 when it is in a PID namespace that cannot be seen.
    pub fn producer_pid(&self) -> u32 {
        self.connection().terms().producer_pid
    }

    /// The user that the producer's process ran as when it made the pool, as the kernel reports it. `None`: the kernel does not
    /// report it, or the handle was inherited through fork.
    pub fn producer_uid(&self) -> Option<u32> {
        self.session.link().producer_uid()
    }

    /// Figures.
    pub fn stats(&self) -> ReceiveStats {
        self.session.leases().stats()
    }

    /// How this process came by the device memory of frames, in the words of [`ConsumerStats::device`].
    ///
    /// [`ConsumerStats::device`]: crate::ConsumerStats::device
    pub fn device(&self) -> String {
        self.session.leases().device()
    }

    /// A handle for other threads, while the consumer waits in its own.
    pub fn handle(&self) -> ConsumerHandle {
        ConsumerHandle(Arc::downgrade(self.session.leases()))
    }

    /// Sends a request to the program that feeds the pool, for a key frame for example. That program may ignore it.
    ///
    /// # Errors
    ///
    /// See [`RequestError`].
    pub fn request(&self, name: &str, data: &[u8]) -> Result<(), RequestError> {
        self.session.link().request(name, data)
    }

    /// Counts a frame that had to be copied out of its slot, for the producer's figures.
    pub fn note_copied(&self) {
        self.count(LeasePage::copied);
    }

    /// Counts a frame that was taken and given up, such as one past the budget, for the producer's figures.
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
        if self.session.is_of_this_process() {
            self.connection().count(figure);
        }
    }

    /// Makes an eventfd readable when there is something to receive, or a reason why there will be nothing: for programs whose
    /// loop waits for descriptors. It must be non-blocking, and may outlive the consumer; others may make it readable too.
    ///
    /// It stays readable until a [`receive`](Self::receive) found nothing; receive with a timeout of zero until
    /// [`ReceiveError::Timeout`](crate::ReceiveError::Timeout) before waiting for it. That also comes when a frame's memory
    /// is new here and the producer was just asked for it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let pool = dir.path().join("p.sock");
    /// # let pool = pool.to_str().unwrap();
    /// # use std::{sync::Arc, time::Duration};
    /// # use xmem_core::{Consumer, FrameMeta, Producer, ReceiveError};
    /// use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    ///
    /// let producer = Producer::builder(pool).build()?;
    /// let mut consumer = Consumer::builder(pool).connect()?;
    /// let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    /// consumer.notify(fd.clone())?;
    ///
    /// assert!(matches!(consumer.receive(Some(Duration::ZERO)), Err(ReceiveError::Timeout)));
    /// producer.acquire(3)?.publish(FrameMeta::new(3))?;
    /// let frame = loop {
    ///     poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
    ///     match consumer.receive(Some(Duration::ZERO)) {
    ///         Err(ReceiveError::Timeout) => {}
    ///         result => break result?,
    ///     }
    /// };
    /// assert_eq!(frame.len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the descriptor would block, no thread can be started, or this was inherited through fork.
    pub fn notify(&mut self, eventfd: Arc<OwnedFd>) -> io::Result<()> {
        if !self.session.is_of_this_process() {
            return Err(io::Error::other(ReceiveError::Forked));
        }
        if !fcntl_getfl(&*eventfd)?.contains(OFlags::NONBLOCK) {
            let why = "this eventfd is read while it may be empty: make it with EFD_NONBLOCK";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // Two of them would take wake-ups from each other.
        self.notifier = None;
        let notifier = EventFdNotifier::start(self.session.connection(), eventfd, &self.canceller)?;
        notifier.ask(self.waiting());
        self.notifier = Some(notifier);
        Ok(())
    }
}

/// A consumer, as other threads than its own have it. It keeps nothing alive.
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

    /// Figures; `None` when the consumer and all its frames are gone.
    pub fn stats(&self) -> Option<ReceiveStats> {
        self.0.upgrade().map(|leases| leases.stats())
    }

    /// As [`Consumer::device`]; `None` when the consumer and all its frames are gone.
    pub fn device(&self) -> Option<String> {
        self.0.upgrade().map(|leases| leases.device())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if !self.session.is_of_this_process() {
            // Inherited through fork: the connection is the parent's.
            return;
        }
        self.notifier = None;
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
    fn a_forked_child_waits_for_no_lock_that_another_thread_had() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("p.sock");
        let producer = Producer::builder(pool.to_str().unwrap()).build().unwrap();
        let consumer = Consumer::builder(producer.pool()).connect().unwrap();
        let handle = consumer.handle();
        let knows_nothing = || {
            consumer.sticky().is_none()
                && consumer.wait_sticky(Duration::from_secs(60)).is_none()
                && consumer.held() == 0
                && consumer.device().is_empty()
                && handle.stats().is_some()
        };
        let lock = || consumer.connection().stickies().lock();
        assert!(is_so_in_a_child_without(lock, knows_nothing), "it hung");
    }
}
