// SPDX-License-Identifier: MPL-2.0

//! The consumer of a pool, as Python has it.

mod inner;

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::{
    Canceller, ConsumerBuilder, ConsumerHandle, ReceiveError, RequestError, StartFrom,
};

use self::inner::{Failure, Figures, Inner, Item, OnEos, OnLost, OverBudget, Step, property};
use crate::bell::Bell;
use crate::errors::{IntoPyErr, Kind, warn};
use crate::lock::lock;
use crate::number::count_or_none;
use crate::seat::{NotHad, Seat};
use crate::signals::{self, Deadline};

fn choose<T: Copy>(what: &str, value: &str, choices: &[(&str, T)]) -> PyResult<T> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == value) {
        return Ok(*choice);
    }
    let names: Vec<String> = choices
        .iter()
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    Err(PyValueError::new_err(format!(
        "{what} is {value:?}: it has to be one of {}",
        names.join(", ")
    )))
}

/// Takes the frames of a pool.
#[pyclass(frozen, subclass, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Consumer {
    seat: Seat<Inner>,
    pool: String,
    canceller: Canceller,
    figures: Arc<Mutex<Figures>>,
    bell: OnceLock<Bell>,
}

impl Consumer {
    /// Does something with what is inside, when no other thread has it.
    fn with_inner<T: Send>(
        &self,
        py: Python<'_>,
        mut work: impl FnMut(&mut Inner) -> T + Send,
    ) -> PyResult<T> {
        let done = signals::wait(py, Deadline::after(None)?, |slice| {
            match self.seat.take(slice) {
                Ok(mut inner) => Some(Ok(work(&mut inner))),
                Err(NotHad::Timeout) => None,
                Err(error) => Some(Err(error)),
            }
        })?;
        done.unwrap_or(Err(NotHad::Timeout)).map_err(not_had)
    }

    /// `None`: nothing came in time.
    fn next(&self, py: Python<'_>, deadline: Deadline) -> PyResult<Result<Option<Item>, Failure>> {
        loop {
            let step = signals::wait(py, deadline, |slice| match self.seat.take(slice) {
                Ok(mut inner) => match inner.step(slice) {
                    Step::Nothing => None,
                    step => Some(Ok(step)),
                },
                Err(NotHad::Timeout) => None,
                Err(error) => Some(Err(error)),
            })?;
            match step {
                Some(Ok(Step::Item(item))) => return Ok(Ok(Some(item))),
                Some(Ok(Step::Failed(failure))) => return Ok(Err(failure)),
                Some(Ok(Step::Warn(message))) => warn(py, message)?,
                Some(Err(error)) => return Err(not_had(error)),
                Some(Ok(Step::Nothing)) | None => return Ok(Ok(None)),
            }
        }
    }
}

fn not_had(error: NotHad) -> PyErr {
    match error {
        NotHad::Forked => ReceiveError::Forked.into_py_err(),
        NotHad::Closed | NotHad::Timeout => Kind::Closed.error("this consumer is closed"),
    }
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (pool, *, timeout=None, max_held=None, name=None, start_from="next", on_eos="end",
        on_producer_lost="wait", over_budget="copy", busy_poll=0.0, newest_only=false, events=false, _look=None))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn new(
        py: Python<'_>,
        pool: String,
        timeout: Option<f64>,
        #[pyo3(from_py_with = count_or_none)] max_held: Option<u32>,
        name: Option<&str>,
        start_from: &str,
        on_eos: &str,
        on_producer_lost: &str,
        over_budget: &str,
        busy_poll: f64,
        newest_only: bool,
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
        let mut inner = Inner {
            builder,
            connected: None,
            lost_at: None,
            patience: signals::duration(timeout)?,
            on_eos: choose(
                "on_eos",
                on_eos,
                &[("end", OnEos::End), ("wait", OnEos::Wait)],
            )?,
            on_lost: choose(
                "on_producer_lost",
                on_producer_lost,
                &[
                    ("wait", OnLost::Wait),
                    ("end", OnLost::End),
                    ("raise", OnLost::Raise),
                ],
            )?,
            over_budget: choose(
                "over_budget",
                over_budget,
                &[
                    ("copy", OverBudget::Copy),
                    ("drop", OverBudget::Drop),
                    ("raise", OverBudget::Raise),
                ],
            )?,
            figures: Arc::default(),
            bell: None,
            looking: None,
            last: None,
            warned_of_budget: false,
            no_answer: None,
        };
        let figures = inner.figures.clone();
        let mut deadline = Deadline::after(timeout)?;
        if let Some(look) = signals::duration(_look)? {
            deadline = deadline.at_most(look);
        }
        let connected = signals::wait(py, deadline, |slice| match inner.connect(slice) {
            Step::Failed(failure) => Some(Err(failure)),
            _ => inner.connected.is_some().then_some(Ok(())),
        })?;
        match connected {
            Some(Ok(())) => Ok(Self {
                seat: Seat::new(inner),
                pool,
                canceller,
                figures,
                bell: OnceLock::new(),
            }),
            Some(Err(failure)) => Err(failure.into_py_err()),
            None => Err(match inner.no_answer.take() {
                Some(error) => error.into_py_err(),
                None => no_producer(&inner.builder, &pool, timeout),
            }),
        }
    }

    /// The pool, as it was named.
    #[getter]
    fn pool(&self) -> &str {
        &self.pool
    }

    /// The next frame; waits for it, at most for so many seconds.
    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Item> {
        let next = self.next(py, Deadline::after(timeout)?)?;
        match next.map_err(Failure::into_py_err)? {
            Some(item) => Ok(item),
            None => Err(Kind::Timeout.error(format!(
                "no frame came in {} s: the producer of pool {:?} publishes none, or is gone",
                timeout.unwrap_or_default(),
                self.pool
            ))),
        }
    }

    /// The next frame, if there is one.
    ///
    /// None says that none can be had now: what belongs to the first one, such as its caps, may still be on the way.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        self.next(py, Deadline::after(Some(0.0))?)?
            .map_err(Failure::into_py_err)
    }

    /// A descriptor that is readable when there may be something to receive, for select and the like.
    ///
    /// It stays readable until try_recv found nothing. -1 when the consumer is closed.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        if self.canceller.is_cancelled() {
            // As sockets have it, so that a selector that has it can be told to forget it.
            return Ok(-1);
        }
        if let Some(bell) = self.bell.get() {
            return Ok(bell.as_raw_fd());
        }
        let bell = Bell::new().map_err(|error| Bell::failed(&error))?;
        let made = self.with_inner(py, |inner| {
            // Another thread may have been faster.
            let first = self.bell.get_or_init(|| bell.clone());
            if first.is(&bell) {
                inner.notify(bell.clone())?;
            }
            Ok(first.as_raw_fd())
        })?;
        made.map_err(|error| Bell::failed(&error))
    }

    /// The newest caps that are known, also before the first frame.
    #[getter]
    fn caps(&self) -> Option<String> {
        let handle = lock(&self.figures).now.clone();
        let sticky = handle?.sticky()?;
        sticky.text("caps").map(str::to_owned)
    }

    /// Asks whoever feeds the pool for something, by name. What it makes of that is its own affair.
    #[pyo3(signature = (name, data=Vec::new()))]
    fn request(&self, name: &str, data: Vec<u8>) -> PyResult<()> {
        if self.canceller.is_cancelled() {
            return Err(not_had(NotHad::Closed));
        }
        let handle = lock(&self.figures).now.clone();
        let sent = match handle {
            Some(handle) => handle.request(name, &data),
            None => Err(RequestError::ProducerLost),
        };
        sent.map_err(IntoPyErr::into_py_err)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Item> {
        loop {
            match self.next(py, Deadline::after(None)?)? {
                Ok(Some(item)) => return Ok(item),
                Ok(None) => {}
                Err(Failure::End) => return Err(PyStopIteration::new_err(())),
                Err(failure) => return Err(failure.into_py_err()),
            }
        }
    }

    /// Figures, over all producers that this consumer had.
    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut figures = lock(&self.figures);
        let held = figures.held();
        let figures = figures.clone();
        let now = figures.now.as_ref().and_then(ConsumerHandle::stats);
        let now = now.unwrap_or_default();
        let dict = PyDict::new(py);
        dict.set_item("received", figures.before.received + now.received)?;
        dict.set_item("missed", figures.before.missed + now.missed)?;
        dict.set_item("copied", figures.copied)?;
        dict.set_item("dropped", figures.dropped)?;
        dict.set_item("reconnects", figures.reconnects)?;
        dict.set_item("held", held)?;
        // There is none between two producers: then as the last one had it.
        let last = figures.now.as_ref().map_or(figures.before, |_| now);
        dict.set_item("budget", last.budget)?;
        dict.set_item("budget_limit", property(last.budget_limit))?;
        dict.set_item("latency", last.latency_ns)?;
        Ok(dict)
    }

    /// Leaves the pool. Frames that are held stay as they are.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.canceller.cancel();
        signals::wait(py, Deadline::after(None)?, |slice| {
            match self.seat.take(slice) {
                Err(NotHad::Timeout) => None,
                Err(_) => Some(()),
                Ok(mut inner) => {
                    inner.leave();
                    drop(inner.close());
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

    fn __repr__(&self) -> String {
        format!("<xmem.Consumer of {:?}>", self.pool)
    }
}

fn no_producer(builder: &ConsumerBuilder, pool: &str, timeout: Option<f64>) -> PyErr {
    let path = match builder.socket_path() {
        Ok(path) => path,
        Err(error) => return PyValueError::new_err(error.to_string()),
    };
    let time = timeout.map_or_else(String::new, |time| format!(" in {time} s"));
    Kind::NoProducer.error(format!(
        "no producer of pool {pool:?} at {}{time}: start one, or check XMEM_RUNTIME_DIR on both sides; {}",
        path.display(),
        xmem_core::pools_in_words(pool),
    ))
}
