// SPDX-License-Identifier: MPL-2.0

//! A thread that takes the interpreter for the core's threads, which must never wait for it. Only the end of the program waits for
//! this thread.

#![allow(unsafe_code)] // the number of an interpreter

use std::convert::Infallible;
use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use pyo3::ffi::{PyInterpreterState_Get, PyInterpreterState_GetID};
use pyo3::prelude::*;

use crate::fork::PerProcess;
use crate::lock;

/// The time that a program that ends waits for the thread. Work runs code of the user, which may hang.
const PATIENCE: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce(Python<'_>) + Send>;
/// `None` ends the thread.
type Queue = Sender<Option<Work>>;

#[derive(Default)]
enum Thread {
    #[default]
    NotStarted,
    Running {
        queue: Queue,
        /// Disconnected when the thread ends.
        end: Receiver<Infallible>,
    },
    Ended,
}

/// A forked child does not have the thread, and starts its own.
static THREAD: PerProcess<Mutex<Thread>> = PerProcess::new();

fn queue() -> Option<Queue> {
    let mut thread = lock(THREAD.get());
    if let Thread::NotStarted = &*thread {
        *thread = start().ok()?;
    }
    match &*thread {
        Thread::Running { queue, .. } => Some(queue.clone()),
        Thread::NotStarted | Thread::Ended => None,
    }
}

fn start() -> std::io::Result<Thread> {
    let (queue, all) = channel::<Option<Work>>();
    let (ends, end) = channel();
    let thread = std::thread::Builder::new().name("xmem-reaper".into());
    thread.spawn(move || {
        let _ends = ends;
        while let Ok(Some(work)) = all.recv() {
            let mut work = Some(work);
            Python::try_attach(|py| work.take().map(|work| work(py)));
            // The interpreter is shutting down. Work may own objects, which cannot be dropped without it.
            mem::forget(work);
        }
    })?;
    Ok(Thread::Running { queue, end })
}

/// Whether the thread takes the interpreter of the caller. It takes the main one.
pub(crate) fn is_of_this_interpreter(_py: Python<'_>) -> bool {
    // SAFETY: the caller has an interpreter.
    unsafe { PyInterpreterState_GetID(PyInterpreterState_Get()) == 0 }
}

/// Ends the thread after its present work. Called before the interpreter shuts down, because up to Python 3.13, an interpreter
/// that shuts down unwinds the stack of a thread that runs Python code, and Rust aborts the process for that.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    py.detach(|| {
        let thread = mem::replace(&mut *lock(THREAD.get()), Thread::Ended);
        if let Thread::Running { queue, end } = thread {
            let _ = queue.send(None);
            let _ = end.recv_timeout(PATIENCE);
        }
    });
}

fn send(queue: Option<&Queue>, work: Work) {
    let refused = match queue {
        Some(queue) => queue.send(Some(work)).err().map(|error| error.0),
        None => Some(Some(work)),
    };
    // An object must not be dropped without the interpreter, so it leaks.
    mem::forget(refused);
}

/// Runs this later, with the interpreter. Never, if the program ends before.
pub(crate) fn run(work: impl FnOnce(Python<'_>) + Send + 'static) {
    send(queue().as_ref(), Box::new(work));
}

/// An object whose owner may be on a thread without an interpreter.
#[derive(Debug)]
pub(crate) struct Kept {
    object: Option<Py<PyAny>>,
    /// Created with the interpreter, because that may start the thread.
    queue: Option<Queue>,
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
