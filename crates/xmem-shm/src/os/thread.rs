// SPDX-License-Identifier: MPL-2.0

//! Threads that can be joined.

use std::io;
use std::thread::{self, JoinHandle};

use super::fork::ProcessId;

/// A thread of this process. It goes on by itself when this is dropped.
///
/// A forked child does not have the thread, and there its handle may name a thread of the child: the C library reuses the
/// place. So a child neither joins nor detaches it.
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

    /// Whether it is the calling thread.
    pub fn is_current(&self) -> bool {
        let handle = self.handle.as_ref();
        handle.is_some_and(|handle| handle.thread().id() == thread::current().id())
    }

    /// Waits for its end, once. Not for itself.
    pub fn join(&mut self) {
        if self.process.is_current()
            && !self.is_current()
            && let Some(handle) = self.handle.take()
        {
            // A panic was reported when it happened.
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
