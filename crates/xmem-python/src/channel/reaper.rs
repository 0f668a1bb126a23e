// SPDX-License-Identifier: MPL-2.0

//! Lets go of Python objects that the core's threads had: those must never wait for the interpreter.

use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use pyo3::prelude::*;

use crate::lock::lock;
use crate::per_process::PerProcess;

type Objects = Sender<Py<PyAny>>;

/// The thread's queue. The thread does not come along through fork.
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
            // The interpreter is at its end, and takes everything along.
            mem::forget(object);
        }
    });
    spawned.ok()?;
    *queue = Some(sender.clone());
    Some(sender)
}

/// An object that somebody without the interpreter has.
#[derive(Debug)]
pub(super) struct Kept {
    object: Option<Py<PyAny>>,
    /// Made while the interpreter was there, since that may take a thread.
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
        // Better kept for ever than let go of without the interpreter.
        mem::forget(refused);
    }
}
