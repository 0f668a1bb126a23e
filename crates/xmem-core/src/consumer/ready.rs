// SPDX-License-Identifier: MPL-2.0

//! A descriptor for programs with an event loop, and how a consumer makes it readable.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use xmem_shm::os::eventfd;

use super::connection::Connection;
use super::waiting::Waiting;
use crate::cancel::Canceller;

/// The events of an eventfd or a timer of this process. Others have the number that was passed to `add`.
pub(super) const OWN: u64 = u64::MAX;
/// The most events that one call takes.
const EVENTS: usize = 64;
/// Reports each event once, so that the descriptors need not be read.
const EACH_ONCE: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// A descriptor that becomes readable when something can be received: see [`Consumer::notify`](super::Consumer::notify).
///
/// Its clones are the same descriptor.
#[derive(Debug, Clone)]
pub struct ReadyFd(Arc<Inner>);

/// An epoll descriptor is readable while it has an event that nobody took.
#[derive(Debug)]
struct Inner {
    epoll: OwnedFd,
    signal: OwnedFd,
    /// Made when it is first needed.
    timer: OnceLock<OwnedFd>,
}

impl ReadyFd {
    /// One that is not readable.
    ///
    /// # Errors
    ///
    /// If the process may have no more descriptors.
    pub fn new() -> io::Result<Self> {
        let ready = Self(Arc::new(Inner {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            signal: eventfd::new()?,
            timer: OnceLock::new(),
        }));
        ready.add(&ready.0.signal, OWN)?;
        Ok(ready)
    }

    /// Makes it readable.
    pub fn signal(&self) {
        eventfd::ring(&self.0.signal);
    }

    /// Makes it unreadable until the next event.
    pub fn clear(&self) {
        let now = Some(Duration::ZERO);
        while self.take(now, |_| {}) == EVENTS {}
    }

    /// Waits until it is readable, at most for `timeout` (`None`: no limit). It may return early.
    pub fn wait(&self, timeout: Option<Duration>) {
        let time = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let _ = poll(&mut [PollFd::new(self, PollFlags::IN)], time.as_ref());
    }

    /// Whether both are the same descriptor.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes it readable after this time.
    pub(super) fn signal_after(&self, time: Duration) -> io::Result<()> {
        let timer = match self.0.timer.get() {
            Some(timer) => timer,
            None => {
                let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
                let made = timerfd_create(TimerfdClockId::Monotonic, flags)?;
                let timer = self.0.timer.get_or_init(|| made);
                self.add(timer, OWN)?;
                timer
            }
        };
        // Zero would stop the timer.
        let time = time.max(Duration::from_nanos(1));
        let it_value = Timespec::try_from(time).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        });
        let it_interval = Timespec::default();
        let time = Itimerspec {
            it_interval,
            it_value,
        };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &time)?;
        Ok(())
    }

    /// From now on events of this descriptor count, under this number.
    pub(super) fn add(&self, fd: impl AsFd, number: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.0.epoll,
            fd,
            EventData::new_u64(number),
            EACH_ONCE,
        )?)
    }

    pub(super) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0.epoll, fd);
    }

    /// Waits for events and takes them. `event` is called with the number of each. Returns how many there were.
    pub(super) fn take(&self, timeout: Option<Duration>, event: impl FnMut(u64)) -> usize {
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS];
        let time = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // A signal ends the wait like an event: the caller checks its conditions again.
        let Ok((events, _)) = epoll::wait(&self.0.epoll, &mut events, time.as_ref()) else {
            return 0;
        };
        events.iter().map(|event| event.data.u64()).for_each(event);
        events.len()
    }
}

impl AsFd for ReadyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.epoll.as_fd()
    }
}

impl AsRawFd for ReadyFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.epoll.as_raw_fd()
    }
}

/// The events of a consumer go to a descriptor, until this is dropped.
#[derive(Debug)]
pub(super) struct Notification {
    ready: ReadyFd,
    connection: Arc<Connection>,
}

impl Notification {
    /// `number`: that of the events when the producer wakes this consumer.
    pub(super) fn new(
        connection: &Arc<Connection>,
        ready: ReadyFd,
        number: u64,
    ) -> io::Result<Self> {
        ready.add(connection.wake_socket(), number)?;
        connection.set_ready(Some(ready.clone()));
        let connection = connection.clone();
        Ok(Self { ready, connection })
    }

    pub(super) fn ready(&self) -> &ReadyFd {
        &self.ready
    }

    /// Nothing can be received now: clears the descriptor until something can.
    pub(super) fn ask(&self, waiting: Waiting, canceller: &Canceller) {
        self.ready.clear();
        let time = waiting.announce(&self.connection);
        if waiting.is_over(&self.connection, canceller) {
            self.ready.signal();
        } else if let Some(time) = time
            && let Err(error) = self.ready.signal_after(time)
        {
            log::warn!("cannot make a timer: {error}");
            self.ready.signal();
        }
    }
}

impl Drop for Notification {
    fn drop(&mut self) {
        if !self.connection.is_of_this_process() {
            // The parent has the same epoll set.
            return;
        }
        self.connection.set_ready(None);
        self.ready.remove(self.connection.wake_socket());
        // A program that polls must learn that nothing will arrive.
        self.ready.signal();
    }
}
