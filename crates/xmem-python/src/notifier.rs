// SPDX-License-Identifier: MPL-2.0

//! The descriptor for event loops: an eventfd of this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xmem_core::eventfd;

/// Readable from `notify` until `clear`.
#[derive(Debug, Clone)]
pub(crate) struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd::new()?)))
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
        eventfd::ring(&*self.0);
    }

    pub(crate) fn clear(&self) {
        eventfd::silence(&*self.0);
    }

    /// Waits for `notify`, at most `time`.
    pub(crate) fn wait(&self, time: Duration) {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        let time: Option<Timespec> = time.try_into().ok();
        let _ = poll(&mut fds, time.as_ref());
    }
}
