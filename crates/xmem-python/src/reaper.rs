// SPDX-License-Identifier: MPL-2.0

//! A thread that takes the interpreter for the core's threads, which must never wait for it. No thread waits for this one, because
//! it may never get the interpreter while that shuts down.

use std::fmt;
use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use pyo3::prelude::*;
use xmem_core::lock;

use crate::fork::PerProcess;

type Work = Box<dyn FnOnce(Python<'_>) + Send>;
type Queue = Sender<Work>;

/// The thread's queue. A forked child does not have the thread, and starts its own.
static QUEUE: PerProcess<Mutex<Option<Queue>>> = PerProcess::new();

fn queue() -> Option<Queue> {
    let mut queue = lock(QUEUE.get());
    if let Some(sender) = &*queue {
        return Some(sender.clone());
    }
    let (sender, all) = channel::<Work>();
    let thread = std::thread::Builder::new().name("xmem-reaper".into());
    let spawned = thread.spawn(move || {
        for work in all {
            let mut work = Some(work);
            Python::try_attach(|py| work.take().map(|work| work(py)));
            // The interpreter is shutting down. Work may own objects, which cannot be dropped without it.
            mem::forget(work);
        }
    });
    spawned.ok()?;
    *queue = Some(sender.clone());
    Some(sender)
}

fn send(queue: Option<&Queue>, work: Work) {
    let refused = match queue {
        Some(queue) => queue.send(work).err().map(|error| error.0),
        None => Some(work),
    };
    // An object must not be dropped without the interpreter, so it leaks.
    mem::forget(refused);
}

/// Runs this later, with the interpreter. Never, if the interpreter shuts down before.
pub(crate) fn run(work: impl FnOnce(Python<'_>) + Send + 'static) {
    send(queue().as_ref(), Box::new(work));
}

/// An object whose owner may be on a thread without an interpreter.
pub(crate) struct Kept {
    object: Option<Py<PyAny>>,
    /// Created with the interpreter, because that may start the thread.
    queue: Option<Queue>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl Kept {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self {
            object: Some(object),
            queue: queue(),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            send(self.queue.as_ref(), Box::new(move |_| drop(object)));
        }
    }
}
