// SPDX-License-Identifier: MPL-2.0

//! The Python class for the consumer of a pool.

mod inner;

use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::follow::{FollowError, FollowerHandle, OnEos, OnLost, OverBudget};
use xmem_core::{
    Canceller, ConnectError, ConsumerBuilder, ReadyFd, ReceiveError, RequestError, StartFrom,
};

use self::inner::{Failure, Inner, Item, Step};
use crate::errors::{
    IntoPyErr, IntoPyResult, Kind, OF_THIS_PROCESS, no_descriptor, not_pickled, warn,
};
use crate::number::count_or_none;
use crate::pools::{pool_name, property};
use crate::signals::{self, Deadline, seconds};
use crate::timed_mutex::{LockError, TimedMutex, TimedMutexGuard};

fn choose<T: Copy>(what: &str, value: &str, choices: &[(&str, T)]) -> PyResult<T> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == value) {
        return Ok(*choice);
    }
    let names: Vec<String> = choices
        .iter()
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    Err(PyValueError::new_err(format!(
        "{what} is {value:?}: it must be one of {}",
        names.join(", ")
    )))
}

/// Receives the frames of a pool.
#[pyclass(frozen, subclass, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Consumer {
    inner: TimedMutex<Inner>,
    pool: String,
    canceller: Canceller,
    handle: FollowerHandle,
    ready: OnceLock<ReadyFd>,
    /// Whether frames over the budget are dropped.
    drops: bool,
}

impl Consumer {
    /// Calls a function with the inner state while no other thread uses it.
    fn with_inner<T: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Inner) -> T + Send,
    ) -> PyResult<T> {
        let step = |slice| match self.inner.lock(slice) {
            Ok(mut inner) => Some(Ok(work(&mut inner))),
            Err(LockError::Timeout) => None,
            Err(error) => Some(Err(lock_error(error))),
        };
        signals::wait_for(py, Deadline::after(None)?, step, || {
            lock_error(LockError::Timeout)
        })
    }

    /// `None`: nothing arrived in time.
    fn next(&self, py: Python<'_>, deadline: Deadline) -> PyResult<Result<Option<Item>, Failure>> {
        loop {
            let step = signals::wait(py, deadline, |slice| match self.inner.lock(slice) {
                Ok(mut inner) => match inner.step(slice) {
                    Step::Nothing => None,
                    step => Some(Ok(step)),
                },
                Err(LockError::Timeout) => None,
                Err(error) => Some(Err(lock_error(error))),
            })?;
            match step.transpose()? {
                Some(Step::Item(item)) => return Ok(Ok(Some(item))),
                Some(Step::Failed(failure)) => return Ok(Err(failure)),
                Some(Step::Warn(message)) => warn(py, message)?,
                Some(Step::Nothing) | None => return Ok(Ok(None)),
            }
        }
    }
}

/// The time between two frames at this rate.
fn interval(rate: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(1.0 / rate);
    let time = time.ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| {
        PyValueError::new_err(format!(
            "{rate} isn't a valid max_rate: give the most frames per second, such as 5 or 0.5, or None for all frames"
        ))
    })
}

fn lock_error(error: LockError) -> PyErr {
    match error {
        LockError::Forked => ReceiveError::Forked.into_py_err(),
        LockError::Closed | LockError::Timeout => Kind::Closed.error("this consumer is closed"),
    }
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (pool, *, timeout=None, max_held=None, name=None, start_from="next", on_eos="end",
        on_producer_lost="wait", over_budget="copy", busy_poll=0.0, newest_only=false, max_rate=None,
        dmabuf=false, events=false, _look=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = pool_name)] pool: String,
        timeout: Option<f64>,
        #[pyo3(from_py_with = count_or_none)] max_held: Option<u32>,
        name: Option<&str>,
        start_from: &str,
        on_eos: &str,
        on_producer_lost: &str,
        over_budget: &str,
        busy_poll: f64,
        newest_only: bool,
        max_rate: Option<f64>,
        dmabuf: bool,
        events: bool,
        _look: Option<f64>,
    ) -> PyResult<Self> {
        let start_from = choose(
            "start_from",
            start_from,
            &[
                ("next", StartFrom::Next),
                ("newest", StartFrom::Newest),
                ("oldest", StartFrom::Oldest),
            ],
        )?;
        let canceller = Canceller::new();
        let mut builder = xmem_core::Consumer::builder(&pool)
            .start_from(start_from)
            .newest_only(newest_only)
            .dmabuf(dmabuf)
            .parts(true)
            .events(events)
            .busy_poll(signals::duration(Some(busy_poll))?.unwrap_or_default())
            .canceller(&canceller);
        if let Some(max_held) = max_held {
            builder = builder.max_held(max_held);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        if let Some(rate) = max_rate {
            builder = builder.max_rate(1, interval(rate)?);
        }
        let follower = builder
            .follow()
            .connect_timeout(signals::duration(timeout)?)
            .on_eos(choose(
                "on_eos",
                on_eos,
                &[("end", OnEos::End), ("wait", OnEos::Wait)],
            )?)
            .on_lost(choose(
                "on_producer_lost",
                on_producer_lost,
                &[
                    ("wait", OnLost::Wait),
                    ("end", OnLost::End),
                    ("raise", OnLost::Fail),
                ],
            )?)
            .over_budget(choose(
                "over_budget",
                over_budget,
                &[
                    ("copy", OverBudget::Copy),
                    ("drop", OverBudget::Drop),
                    ("raise", OverBudget::Fail),
                ],
            )?);
        let handle = follower.handle();
        let mut inner = Inner::new(follower);
        let mut deadline = Deadline::after(timeout)?;
        if let Some(look) = signals::duration(_look)? {
            deadline = deadline.at_most(look);
        }
        let connected = signals::wait(py, deadline, |slice| match inner.step(slice) {
            Step::Failed(failure) => Some(Err(failure)),
            _ => inner.follower.consumer().map(|_| Ok(())),
        })?;
        let error = match connected {
            Some(Ok(())) => {
                return Ok(Self {
                    inner: TimedMutex::new(inner),
                    pool,
                    canceller,
                    handle,
                    ready: OnceLock::new(),
                    drops: over_budget == "drop",
                });
            }
            Some(Err(Failure::Follow(FollowError::NoProducer(error)))) => Some(error),
            Some(Err(failure)) => return Err(failure.into_py_err()),
            None => inner.last_look.take(),
        };
        Err(match error {
            Some(error @ ConnectError::NoAnswer { .. }) => error.into_py_err(),
            _ => no_producer(inner.follower.next_join(), &pool, timeout),
        })
    }

    /// The pool, as passed to the constructor.
    #[getter]
    fn pool(&self) -> &str {
        &self.pool
    }

    /// Waits for the next frame, at most `timeout` seconds, and returns it.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Item> {
        let dropped = self._dropped();
        let next = self.next(py, Deadline::after(timeout)?)?;
        match next.map_err(Failure::into_py_err)? {
            Some(item) => Ok(item),
            None => Err(Kind::Timeout.error(self._no_frame(timeout.unwrap_or_default(), dropped))),
        }
    }

    /// The number of frames that were dropped.
    fn _dropped(&self) -> u64 {
        self.handle.dropped()
    }

    /// The text of a timeout. `dropped`: the number of dropped frames at the start of the wait.
    fn _no_frame(&self, timeout: f64, dropped: u64) -> String {
        let (pool, time) = (&self.pool, seconds(timeout));
        let dropped = self._dropped().saturating_sub(dropped);
        if dropped == 0 {
            return format!(
                "no frame arrived in {time} s: check that the producer of pool {pool:?} is running and publishes frames"
            );
        }
        let why = if self.drops {
            "you hold as many frames as max_held and the producer allow. Release frames, raise max_held, or use \
             over_budget=\"copy\""
        } else {
            "the device did not finish writing them"
        };
        format!("no frame of pool {pool:?} was received in {time} s, and {dropped} dropped: {why}")
    }

    /// Returns the next frame, or None.
    ///
    /// None means that no frame is ready. Data that the first frame needs, such as its caps, may not have arrived yet.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        self.next(py, Deadline::after(Some(0.0))?)?
            .map_err(Failure::into_py_err)
    }

    /// A file descriptor that is readable when a frame may be ready, for select and similar functions. -1 if the
    /// consumer is closed.
    ///
    /// It stays readable until try_recv has returned None.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        if self.canceller.is_cancelled() {
            // -1 as for sockets: a selector with the descriptor can unregister it.
            return Ok(-1);
        }
        if let Some(ready) = self.ready.get() {
            return Ok(ready.as_raw_fd());
        }
        let ready = ReadyFd::new().map_err(no_descriptor)?;
        let made = self.with_inner(py, |inner| {
            // Another thread may have set it meanwhile.
            let first = self.ready.get_or_init(|| ready.clone());
            if first.is(&ready) {
                inner.notify(&ready)?;
            }
            Ok(first.as_raw_fd())
        })?;
        made.map_err(no_descriptor)
    }

    /// The newest known caps, also before the first frame.
    #[getter]
    fn caps(&self) -> Option<String> {
        let sticky = self.handle.consumer()?.sticky()?;
        sticky.text("caps").map(str::to_owned)
    }

    /// Sends a request to the program that writes to the pool. That program may ignore it.
    #[pyo3(signature = (name, data=Vec::new()))]
    fn request(&self, name: &str, data: Vec<u8>) -> PyResult<()> {
        if self.canceller.is_cancelled() {
            return Err(lock_error(LockError::Closed));
        }
        let consumer = self.handle.consumer().ok_or(RequestError::ProducerLost);
        let sent = consumer.and_then(|it| it.request(name, &data));
        sent.into_py_result()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Item> {
        loop {
            match self.next(py, Deadline::after(None)?)? {
                Ok(Some(item)) => return Ok(item),
                Ok(None) => {}
                Err(Failure::Follow(FollowError::End)) => return Err(PyStopIteration::new_err(())),
                Err(failure) => return Err(failure.into_py_err()),
            }
        }
    }

    /// The statistics, over all producers of this consumer.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.handle.stats();
        let dict = PyDict::new(py);
        dict.set_item("received", stats.receive.received)?;
        dict.set_item("missed", stats.receive.missed)?;
        dict.set_item("skipped", stats.receive.skipped)?;
        dict.set_item("copied", stats.copied)?;
        dict.set_item("dropped", stats.dropped)?;
        dict.set_item("reconnects", stats.reconnects)?;
        dict.set_item("held", stats.receive.held)?;
        dict.set_item("budget", stats.receive.budget)?;
        dict.set_item("budget_limit", property(stats.receive.budget_limit))?;
        dict.set_item("latency", stats.receive.latency_ns)?;
        Ok(dict)
    }

    /// Leaves the pool. Frames that are held stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.canceller.cancel();
        signals::wait(py, Deadline::after(None)?, |slice| {
            match self.inner.lock(slice) {
                Err(LockError::Timeout) => None,
                locked => {
                    drop(locked.map(TimedMutexGuard::close));
                    Some(())
                }
            }
        })?;
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(slf, OF_THIS_PROCESS))
    }

    fn __repr__(&self) -> String {
        format!("<xmem.Consumer of {:?}>", self.pool)
    }
}

fn no_producer(builder: &ConsumerBuilder, pool: &str, timeout: Option<f64>) -> PyErr {
    let path = match builder.socket_path() {
        Ok(path) => path,
        Err(error) => return error.into_py_err(),
    };
    let time = timeout.map_or_else(String::new, |time| format!(" in {} s", seconds(time)));
    Kind::NoProducer.error(format!(
        "no producer of pool {pool:?} at {}{time}: start one, or check XMEM_RUNTIME_DIR on both sides; {}",
        path.display(),
        xmem_core::discovery::pools_in_words(pool),
    ))
}
