// SPDX-License-Identifier: MPL-2.0

//! Waiting without the interpreter, so that other threads run and Ctrl-C works.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use xmem_core::Canceller;

/// How long a wait goes on before it is looked whether there was a signal.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// When a wait ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// From seconds, as Python has them. `None`: never.
    pub(crate) fn after(seconds: Option<f64>) -> PyResult<Self> {
        Ok(Self(duration(seconds)?.and_then(|time| {
            // A time too far away to be told is for ever.
            Instant::now().checked_add(time)
        })))
    }

    /// The same, but no later than so long from now.
    pub(crate) fn at_most(self, time: Duration) -> Self {
        let latest = Instant::now().checked_add(time);
        Self(match (self.0, latest) {
            (Some(at), Some(latest)) => Some(at.min(latest)),
            (at, latest) => at.or(latest),
        })
    }

    pub(crate) fn is_over(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// The same as a time from now. `None`: for ever.
    pub(crate) fn timeout(self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// How long it is until then. For ever is the longest time that there is.
    pub(crate) fn left(self) -> Duration {
        self.0.map_or(Duration::MAX, |at| {
            at.saturating_duration_since(Instant::now())
        })
    }

    fn slice(self) -> Duration {
        self.0.map_or(SLICE, |at| {
            at.saturating_duration_since(Instant::now()).min(SLICE)
        })
    }
}

/// Seconds, as Python has them, as a time. `None`: for ever.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() {
        return Err(PyValueError::new_err(
            "a timeout is in seconds, and this one is no number",
        ));
    }
    if seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "a timeout is in seconds, and {seconds} is less than none: 0 does not wait, None waits for ever"
        )));
    }
    // -0.0 is none either.
    Ok(Duration::try_from_secs_f64(seconds.abs()).ok())
}

/// Raises if these are no seconds that something could wait.
#[pyfunction(name = "_check_timeout")]
pub(crate) fn check_timeout(seconds: Option<f64>) -> PyResult<()> {
    duration(seconds).map(drop)
}

/// Calls `step` without the interpreter, with the time that it may take, until it returns something. `None`: the time was
/// over.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    deadline: Deadline,
    mut step: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    loop {
        let slice = deadline.slice();
        if let Some(result) = py.detach(|| step(slice)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        if deadline.is_over() {
            return Ok(None);
        }
    }
}

/// Does what must not be interrupted to look at signals on a thread of its own; a signal calls it off.
pub(crate) fn wait_apart<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Canceller) -> T + Send,
) -> PyResult<T> {
    let canceller = Canceller::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let worker = &canceller;
        let thread = std::thread::Builder::new().name("xmem-wait".into());
        thread.spawn_scoped(scope, move || sender.send(work(worker)))?;
        let mut receiver = receiver;
        loop {
            let result = py.detach(|| {
                let result = receiver.recv_timeout(SLICE);
                (result, receiver)
            });
            receiver = result.1;
            match result.0 {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("a thread of xmem's panicked"));
                }
            }
            if let Err(error) = py.check_signals() {
                canceller.cancel();
                // What it is in the middle of may end only when somebody else had the interpreter.
                py.detach(move || drop(receiver.recv()));
                return Err(error);
            }
        }
    })
}
