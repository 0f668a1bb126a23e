// SPDX-License-Identifier: MPL-2.0

//! An eventfd for programs with an event loop. The protocol has none, because a producer that writes to a consumer's descriptor
//! could be blocked by it. Instead, a thread in the consumer's process sleeps on the wake word, and writes to the eventfd.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;
use xmem_shm::os::eventfd;
use xmem_shm::os::thread::Thread;

use super::connection::Connection;
use super::waiting::Waiting;
use crate::cancel::{Canceller, Wake};

#[derive(Debug, Default)]
struct State {
    /// The condition that the thread waits for. `None`: the consumer did not request a notification.
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

/// A thread that waits for a consumer, and makes an eventfd readable when something can be received.
#[derive(Debug)]
pub(super) struct EventFdNotifier {
    eventfd: Arc<OwnedFd>,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    thread: Thread,
}

impl EventFdNotifier {
    /// From now on no other thread may sleep on the wake word of the lease page.
    pub(super) fn start(
        connection: &Arc<Connection>,
        eventfd: Arc<OwnedFd>,
        canceller: &Canceller,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = Thread::spawn("xmem-notify", {
            let (shared, connection) = (shared.clone(), connection.clone());
            let (eventfd, canceller) = (eventfd.clone(), canceller.clone());
            move || run(&shared, &connection, &eventfd, &canceller)
        })?;
        Ok(Self {
            eventfd,
            shared,
            connection: connection.clone(),
            thread,
        })
    }

    /// Nothing can be received now: clears the eventfd until something can.
    pub(super) fn ask(&self, waiting: Waiting) {
        let mut state = self.shared.state();
        // Under the lock, so that a notification for this request is not cleared.
        eventfd::silence(&*self.eventfd);
        let before = state.waiting.replace(waiting);
        drop(state);
        match before {
            None => self.shared.asked.notify_one(),
            // The thread sleeps with another time limit.
            Some(before) if before.at_most().is_some() != waiting.at_most().is_some() => {
                self.connection.page().wake_own();
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

fn run(shared: &Shared, connection: &Connection, readable: &impl AsFd, canceller: &Canceller) {
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
        waiting.sleep(connection.page(), at_most, || {
            let state = shared.state();
            let is_over = |waiting: Waiting| waiting.is_over(connection, canceller);
            state.stop || state.waiting.is_none_or(is_over)
        });
        let mut state = shared.state();
        let is_over = |waiting: Waiting| waiting.is_over(connection, canceller);
        if deadline.is_over() || state.waiting.is_some_and(is_over) {
            state.waiting = None;
            eventfd::ring(readable);
        }
    }
}

impl Drop for EventFdNotifier {
    fn drop(&mut self) {
        if !self.connection.is_of_this_process() {
            // A forked child does not have the thread.
            return;
        }
        self.shared.state().stop = true;
        self.shared.asked.notify_one();
        self.connection.wake();
        self.thread.join();
        // A program that polls must learn that nothing will arrive.
        eventfd::ring(&*self.eventfd);
    }
}
