// SPDX-License-Identifier: MPL-2.0

//! The socket of a connection: sends messages to the producer, waits for its answers, and detects the end of the connection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use xmem_shm::abi::limits::MAX_REQUEST;
use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::cred;
use xmem_shm::os::eventfd;
use xmem_shm::os::fork::{KeptFromChildren, ProcessId};
use xmem_shm::os::socket::{self, Received};

use crate::cancel::{Canceller, Notifier};
use crate::error::{ReceiveError, RequestError, SystemError};
use crate::stats::device_words;

/// The time after which a question is sent again, because the producer's full queue may have dropped the answer.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The socket of a connection. When it closes, the producer releases everything that the consumer holds.
pub(crate) struct Link {
    process: ProcessId,
    _kept: KeptFromChildren,
    socket: OwnedFd,
    /// Reports the end of the producer's process. The socket may not, because a forked child may keep its end open.
    producer: Option<OwnedFd>,
    /// Ends the control thread.
    stop: OwnedFd,
    lost: AtomicBool,
    /// The last message with descriptors arrived without them, since this process may not have more.
    fds_lost: AtomicBool,
    /// Notified when a message was stored, and when the connection is lost.
    arrivals: Notifier,
    /// How this process opened device memory, as reported.
    device: Mutex<String>,
    asked_for_marks: AtomicBool,
}

/// Why the control thread woke up.
pub(super) enum Woken {
    /// The consumer is leaving.
    Stop,
    /// The producer's process has ended. Earlier messages of it may be unread.
    ProducerDied,
    /// A message has arrived, or the producer closed the socket.
    Message,
}

impl Link {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let producer = cred::peer(&socket)
            .ok()
            .and_then(|peer| Pid::from_raw(peer.pid as i32))
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self {
            process: ProcessId::current(),
            _kept: KeptFromChildren::new(&socket),
            socket,
            producer,
            stop: eventfd::new()?,
            lost: AtomicBool::new(false),
            fds_lost: AtomicBool::new(false),
            arrivals: Notifier::default(),
            device: Mutex::default(),
            asked_for_marks: AtomicBool::new(false),
        })
    }

    /// Whether this was not inherited through fork.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn producer_uid(&self) -> Option<u32> {
        if !self.process.is_current() {
            return None;
        }
        let peer = cred::peer(&self.socket).ok()?;
        let is_known = peer.uid != cred::NOBODY && !cred::is_ambiguous_user(peer.uid);
        is_known.then_some(peer.uid)
    }

    pub(crate) fn send(&self, message: &ToProducer) -> io::Result<()> {
        if !self.process.is_current() {
            // Inherited through fork: the connection belongs to the parent.
            return Err(io::ErrorKind::NotConnected.into());
        }
        socket::send(&self.socket, &message.encode(), &[])
    }

    pub(super) fn request(&self, name: &str, data: &[u8]) -> Result<(), RequestError> {
        if !self.process.is_current() {
            return Err(RequestError::Forked);
        }
        if data.len() > MAX_REQUEST {
            return Err(RequestError::TooLarge { size: data.len() });
        }
        let request = ToProducer::Request {
            name: Text::new(name),
            data: data.to_vec(),
        };
        self.send(&request).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RequestError::Busy,
            _ => RequestError::ProducerLost,
        })
    }

    /// How this process opened device memory. Empty if it has none, and in a forked child.
    pub(super) fn device(&self) -> String {
        if !self.process.is_current() {
            return String::new();
        }
        lock(&self.device).clone()
    }

    /// Reports to the producer how this process opened device memory.
    pub(crate) fn report_device(&self, works: bool, how: &str) {
        *lock(&self.device) = device_words(works, how);
        let how = Text::new(how);
        // The producer uses it only for its figures, so an error is ignored.
        let _ = self.send(&ToProducer::Device { works, how });
        fault::point(Point::DeviceSaid);
    }

    /// Requests that the producer marks frames whose work on a device has ended. Sent once, and again if that failed.
    pub(crate) fn ask_for_marks(&self) {
        if !self.asked_for_marks.swap(true, Ordering::Relaxed)
            && self.send(&ToProducer::MarkReady).is_err()
        {
            self.asked_for_marks.store(false, Ordering::Relaxed);
        }
    }

    /// Notifies the producer of a release.
    pub(super) fn notify_producer(&self) {
        // If the producer's queue is full, it has messages to read, and then checks all slots.
        let _ = self.send(&ToProducer::Bell);
    }

    /// Whether the control thread has detected that the producer is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn set_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.arrivals.notify();
    }

    /// Whether the connection has ended, because the producer is gone or closed it.
    ///
    /// This checks the socket: after the consumer has left there is no control thread, but its frames may still be held.
    pub(super) fn is_disconnected(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        if !self.process.is_current() {
            // In a forked child these numbers are other descriptors.
            return false;
        }
        // With empty flags, poll reports only a hang-up.
        let mut fds = vec![PollFd::new(&self.socket, PollFlags::empty())];
        fds.extend(self.producer_ends());
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Ends the control thread.
    pub(super) fn stop(&self) {
        eventfd::ring(&self.stop);
    }

    /// What to poll for the end of the producer's process.
    fn producer_ends(&self) -> Option<PollFd<'_>> {
        let producer = self.producer.as_ref()?;
        Some(PollFd::new(producer, PollFlags::IN))
    }

    /// Waits for an event. Only the control thread calls this.
    pub(super) fn wait(&self) -> io::Result<Woken> {
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN),
        ];
        fds.extend(self.producer_ends());
        retry_on_intr(|| poll(&mut fds, None))?;
        let is_ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok(if is_ready(0) {
            Woken::Stop
        } else if is_ready(2) {
            Woken::ProducerDied
        } else {
            Woken::Message
        })
    }

    /// The next message. `None`: the producer closed the socket.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<Received<'a>>> {
        socket::recv(&self.socket, buffer)
    }

    /// Stores whether the descriptors of a message were lost. Then the next [`ask`](Self::ask) without an answer fails once.
    pub(super) fn note_fds(&self, lost: bool) {
        self.fds_lost.store(lost, Ordering::Relaxed);
    }

    /// The number of stored messages.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals.count()
    }

    /// Wakes the threads that wait for an answer. Call it after storing the answer.
    pub(super) fn notify(&self) {
        self.arrivals.notify();
    }

    /// Sends a question, and waits until `check` returns the answer.
    pub(super) fn ask<T>(
        &self,
        question: &ToProducer,
        deadline: Deadline,
        cancel: &Canceller,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<T, ReceiveError> {
        if !self.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        let mut asked: Option<Instant> = None;
        loop {
            let seen = self.arrivals.count();
            if let Some(found) = check() {
                return Ok(found);
            }
            if self.is_lost() {
                // All earlier answers are stored now, so this check is the last.
                return check().ok_or(ReceiveError::ProducerLost);
            }
            if cancel.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            if self.fds_lost.swap(false, Ordering::Relaxed) {
                let error = SystemError::at("take memory that the producer sent")(Errno::MFILE);
                return Err(ReceiveError::Region(error.into()));
            }
            // Answers to other questions also end the wait.
            if asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) && self.send(question).is_ok() {
                asked = Some(Instant::now());
            }
            // After the question was sent: a caller with a timeout of zero finds the answer in its next call.
            if deadline.is_over() {
                return Err(ReceiveError::Timeout);
            }
            self.arrivals.wait(seen, deadline.left_up_to(ASK_AGAIN));
        }
    }

    /// Waits for something that is sent without a question, until `check` returns it. `None`: the time is over, the wait was
    /// cancelled, or the connection was lost. The canceller is checked every `turn`.
    pub(super) fn wait_for<T>(
        &self,
        deadline: Deadline,
        cancel: &Canceller,
        turn: Duration,
        mut check: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            let seen = self.arrivals.count();
            let found = check();
            if found.is_some() || deadline.is_over() || cancel.is_cancelled() || self.is_lost() {
                // All messages from before the end of the connection are stored now.
                return found.or_else(check);
            }
            self.arrivals.wait(seen, deadline.left_up_to(turn));
        }
    }
}
