// SPDX-License-Identifier: MPL-2.0

//! What event loops wait for: an eventfd of this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Readable from when it is rung until it is silenced.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Arc<OwnedFd>);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(fd)))
    }

    /// The exception for one that could not be made.
    pub(crate) fn failed(error: &io::Error) -> PyErr {
        PyOSError::new_err(format!("cannot make a descriptor to wait for: {error}"))
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

    pub(crate) fn ring(&self) {
        // The only way to fail is a counter that is full, and then it is readable anyway.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    /// Waits until it is rung, at most for so long.
    pub(crate) fn wait(&self, time: Duration) {
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        let time: Option<Timespec> = time.try_into().ok();
        let _ = poll(&mut fds, time.as_ref());
    }
}
