// SPDX-License-Identifier: MPL-2.0

//! The descriptor for event loops: an eventfd of this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{read, write};

/// Readable from `notify` until `clear`.
#[derive(Debug, Clone)]
pub(crate) struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(Arc::new(eventfd(0, flags)?)))
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn notify(&self) {
        // It fails only if the counter is full, and then it is already readable.
        let _ = write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = read(&*self.0, &mut [0; 8]);
    }

    /// Waits for `notify`, at most `time`.
    pub(crate) fn wait(&self, time: Duration) {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        let time: Option<Timespec> = time.try_into().ok();
        let _ = poll(&mut fds, time.as_ref());
    }
}
