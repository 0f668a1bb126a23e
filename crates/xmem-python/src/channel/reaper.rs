// SPDX-License-Identifier: MPL-2.0

//! A thread that drops Python objects for the core's threads, which must never wait for the interpreter.

use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use pyo3::prelude::*;
use xmem_core::lock;

use crate::fork::PerProcess;

type Objects = Sender<Py<PyAny>>;

/// The thread's queue. A forked child does not have the thread, and starts its own.
static QUEUE: PerProcess<Mutex<Option<Objects>>> = PerProcess::new();

fn queue() -> Option<Objects> {
    let mut queue = lock(QUEUE.get());
    if let Some(sender) = &*queue {
        return Some(sender.clone());
    }
    let (sender, objects) = channel::<Py<PyAny>>();
    let thread = std::thread::Builder::new().name("xmem-reaper".into());
    let spawned = thread.spawn(move || {
        for object in objects {
            let mut object = Some(object);
            Python::try_attach(|_| object = None);
            // Without an interpreter the object cannot be dropped: the interpreter is shutting down.
            mem::forget(object);
        }
    });
    spawned.ok()?;
    *queue = Some(sender.clone());
    Some(sender)
}

/// An object whose owner may be on a thread without an interpreter.
#[derive(Debug)]
pub(super) struct Kept {
    object: Option<Py<PyAny>>,
    /// Created with the interpreter, because that may start the thread.
    queue: Option<Objects>,
}

impl Kept {
    pub(super) fn new(object: Py<PyAny>) -> Self {
        Self {
            object: Some(object),
            queue: queue(),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else {
            return;
        };
        let refused = match &self.queue {
            Some(queue) => queue.send(object).err().map(|error| error.0),
            None => Some(object),
        };
        // An object must not be dropped without the interpreter, so it leaks.
        mem::forget(refused);
    }
}
