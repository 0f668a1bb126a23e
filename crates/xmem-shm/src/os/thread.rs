// SPDX-License-Identifier: MPL-2.0

//! Threads that can be joined.

use std::io;
use std::thread::{self, JoinHandle};

use super::fork::ProcessId;

/// A thread of this process. If this is dropped without a join, the thread continues.
///
/// A forked child does not have the thread. There the handle may refer to a thread of the child, because the C library reuses
/// the memory. So a child neither joins nor detaches it.
#[derive(Debug)]
pub struct Thread {
    handle: Option<JoinHandle<()>>,
    process: ProcessId,
}

impl Thread {
    /// Starts a thread.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let handle = thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self {
            handle: Some(handle),
            process: ProcessId::current(),
        })
    }

    /// Whether this is the calling thread.
    pub fn is_current(&self) -> bool {
        let handle = self.handle.as_ref();
        handle.is_some_and(|handle| handle.thread().id() == thread::current().id())
    }

    /// Waits for its end, once. Does nothing on the thread itself.
    pub fn join(&mut self) {
        if self.process.is_current()
            && !self.is_current()
            && let Some(handle) = self.handle.take()
        {
            // A panic was already reported.
            let _ = handle.join();
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.handle.take());
        }
    }
}
