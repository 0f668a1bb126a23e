// SPDX-License-Identifier: MPL-2.0

//! A descriptor that can be polled, for programs whose loop waits for descriptors. Nothing in the protocol has one, since a
//! producer that wrote to a consumer's could be blocked by it. So a thread of the consumer's own process sleeps in its place.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::eventfd;
use xmem_shm::os::thread::Thread;

use super::Consumer;
use super::session::Session;
use super::waiting::Waiting;
use crate::cancel::{Canceller, Wake};
use crate::error::ReceiveError;

#[derive(Debug, Default)]
struct State {
    /// What the thread is to wait for. `None`: nobody asked.
    waiting: Option<Waiting>,
    stop: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    asked: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Sleeps for a consumer, and makes an eventfd readable when there is something to receive.
#[derive(Debug)]
pub(super) struct Notifier {
    eventfd: Arc<OwnedFd>,
    shared: Arc<Shared>,
    session: Arc<Session>,
    thread: Thread,
}

impl Notifier {
    /// Nobody else may sleep on the session's wake word from here on.
    pub(super) fn start(
        session: &Arc<Session>,
        eventfd: Arc<OwnedFd>,
        canceller: &Canceller,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = Thread::spawn("xmem-notify", {
            let (shared, session) = (shared.clone(), session.clone());
            let (eventfd, canceller) = (eventfd.clone(), canceller.clone());
            move || run(&shared, &session, &eventfd, &canceller)
        })?;
        Ok(Self {
            eventfd,
            shared,
            session: session.clone(),
            thread,
        })
    }

    /// There is nothing to receive now: the descriptor is not readable until there is.
    pub(super) fn ask(&self, waiting: Waiting) {
        let mut state = self.shared.state();
        // Under the lock, so that no answer to this question is taken away.
        eventfd::silence(&*self.eventfd);
        let before = state.waiting.replace(waiting);
        drop(state);
        match before {
            None => self.shared.asked.notify_one(),
            // The thread sleeps, and for something else.
            Some(before) if before.at_most() != waiting.at_most() => {
                self.session.page.wake();
            }
            Some(_) => {}
        }
    }

    /// Waits until the descriptor is readable.
    pub(super) fn wait(&self, deadline: Deadline) {
        let time: Option<Timespec> = deadline.left().and_then(|left| left.try_into().ok());
        let mut fds = [PollFd::new(&*self.eventfd, PollFlags::IN)];
        if let Err(error) = poll(&mut fds, time.as_ref())
            && error != rustix::io::Errno::INTR
        {
            log::warn!("cannot wait for a frame: {error}");
        }
    }
}

fn run(shared: &Shared, session: &Session, readable: &impl AsFd, canceller: &Canceller) {
    loop {
        let mut state = shared.state();
        let waiting = loop {
            match state.waiting {
                _ if state.stop => return,
                Some(waiting) => break waiting,
                None => {
                    state = shared
                        .asked
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        let at_most = waiting.at_most();
        let deadline = Deadline::after(at_most);
        session.page.sleep(at_most, || {
            let state = shared.state();
            let is_over = |waiting: Waiting| waiting.is_over(session, canceller);
            state.stop || state.waiting.is_none_or(is_over)
        });
        let mut state = shared.state();
        let is_over = |waiting: Waiting| waiting.is_over(session, canceller);
        if deadline.is_over() || state.waiting.is_some_and(is_over) {
            state.waiting = None;
            eventfd::ring(readable);
        }
    }
}

impl Consumer {
    /// Has an eventfd become readable when there is something to receive, or a reason why there will be nothing: for
    /// programs whose loop waits for descriptors. It must be non-blocking, and may outlive the consumer; others may make
    /// it readable too.
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
        if !self.session.process.is_current() {
            return Err(io::Error::other(ReceiveError::Forked));
        }
        if !fcntl_getfl(&*eventfd)?.contains(OFlags::NONBLOCK) {
            let why = "this eventfd is read while it may be empty: make it with EFD_NONBLOCK";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // Two of them would take wake-ups from each other.
        self.notifier = None;
        let notifier = Notifier::start(&self.session, eventfd, &self.canceller)?;
        notifier.ask(self.waiting());
        self.notifier = Some(notifier);
        Ok(())
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if !self.session.process.is_current() {
            // The thread is not in this forked child.
            return;
        }
        self.shared.state().stop = true;
        self.shared.asked.notify_one();
        self.session.wake();
        self.thread.join();
        // Whoever polls is to find out that nothing will come.
        eventfd::ring(&*self.eventfd);
    }
}
