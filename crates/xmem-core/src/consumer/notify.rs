// SPDX-License-Identifier: MPL-2.0

//! The notification of a consumer that waits for a descriptor instead of in `receive`.

use std::io;
use std::sync::Arc;

use super::connection::Connection;
use super::ready::ReadyFd;
use super::waiting::Waiting;
use crate::cancel::Canceller;

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
