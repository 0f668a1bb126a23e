// SPDX-License-Identifier: MPL-2.0

//! Waits without the interpreter, so that other threads run and Ctrl-C works.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use xmem_core::{Canceller, Wait};

use crate::errors::{IntoPyErr, IntoPyResult, Kind};

/// The interval of checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// The end of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// From Python's seconds. `None`: never.
    pub(crate) fn after(seconds: Option<f64>) -> PyResult<Self> {
        Ok(Self(duration(seconds)?.and_then(|time| {
            // A time that an `Instant` cannot represent counts as never.
            Instant::now().checked_add(time)
        })))
    }

    /// The deadline, but at most `time` from now.
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

    /// The remaining time. `None`: unlimited.
    fn timeout(self) -> Option<Duration> {
        self.0
            .map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn slice(self) -> Duration {
        self.timeout().unwrap_or(Duration::MAX).min(SLICE)
    }
}

/// Seconds as Python prints them, since a very small number would have hundreds of digits.
pub(crate) fn seconds(time: f64) -> String {
    let text = format!("{time:?}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Python's seconds as a duration. `None`: unlimited.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "{} isn't a valid timeout in seconds: use 0 to return at once, or None to wait forever",
            self::seconds(seconds)
        )));
    }
    // -0.0 is 0.
    Ok(Duration::try_from_secs_f64(seconds.abs()).ok())
}

/// The time that a lossless producer waits for a consumer. `None`: unlimited.
pub(crate) fn lossless_timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let time = duration(seconds)?;
    if time.is_some_and(|time| time.is_zero()) {
        return Err(PyValueError::new_err(
            "lossless_timeout is 0, so no consumer could stay connected: set a longer time, or None to wait forever",
        ));
    }
    Ok(time)
}

/// Raises if the value is not a valid timeout.
#[pyfunction(name = "_check_timeout")]
pub(crate) fn check_timeout(seconds: Option<f64>) -> PyResult<()> {
    duration(seconds).map(drop)
}

/// Calls `step` without the interpreter until it returns a value. Its argument is the longest time that one call may take.
/// `None`: the deadline passed.
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

/// Like `wait`, for an attempt that fails with a timeout while it needs more time.
pub(crate) fn retry<T: Send, E: IntoPyErr + Send>(
    py: Python<'_>,
    deadline: Deadline,
    mut attempt: impl FnMut(Duration) -> Result<T, E> + Send,
) -> PyResult<Option<T>> {
    let done = wait(py, deadline, |slice| {
        let result = attempt(slice);
        let is_timeout = result
            .as_ref()
            .is_err_and(|error| error.kind() == Kind::Timeout);
        (!is_timeout).then_some(result)
    })?;
    done.transpose().into_py_result()
}

/// Like `wait`, for a step that may fail. `too_late` creates the error for a passed deadline.
pub(crate) fn wait_for<T: Send>(
    py: Python<'_>,
    deadline: Deadline,
    step: impl FnMut(Duration) -> Option<PyResult<T>> + Send,
    too_late: impl FnOnce() -> PyErr,
) -> PyResult<T> {
    wait(py, deadline, step)?.unwrap_or_else(|| Err(too_late()))
}

/// Runs work that cannot be divided into steps on a thread of its own. Its wait ends at the deadline, or when a signal comes.
pub(crate) fn wait_apart<T: Send>(
    py: Python<'_>,
    deadline: Deadline,
    work: impl FnOnce(Wait<'_>) -> T + Send,
) -> PyResult<T> {
    let canceller = Canceller::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let worker = &canceller;
        let thread = std::thread::Builder::new().name("xmem-wait".into());
        thread.spawn_scoped(scope, move || {
            sender.send(work(Wait::from(deadline.timeout()).unless(worker)))
        })?;
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
                    return Err(PyRuntimeError::new_err(
                        "a thread of xmem panicked: this is a bug in xmem, please report it",
                    ));
                }
            }
            if let Err(error) = py.check_signals() {
                canceller.cancel();
                // Without the interpreter, because the work may wait for a thread that needs it.
                py.detach(move || drop(receiver.recv()));
                return Err(error);
            }
        }
    })
}
