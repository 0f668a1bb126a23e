// SPDX-License-Identifier: MPL-2.0

//! The consumer of a pool, over all producers that the pool has one after another.

use std::time::{Duration, Instant};

use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::{Canceller, ConnectError, ConsumerBuilder, ReceiveError, ReceiveStats, StartFrom};

use crate::errors::{IntoPyErr, Kind};
use crate::frame::{Frame, Way};
use crate::seat::{NotHad, Seat};
use crate::signals::{self, Deadline};

/// What to do at the end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnEos {
    End,
    Wait,
}

/// What to do when the producer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnLost {
    Wait,
    End,
    Raise,
}

/// What to do with a frame when as many are held as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OverBudget {
    Copy,
    Drop,
    Raise,
}

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

/// Figures over all connections.
#[derive(Debug, Default)]
struct Totals {
    /// Of connections that are over.
    before: ReceiveStats,
    copied: u64,
    dropped: u64,
    reconnects: u64,
}

#[derive(Debug)]
struct Inner {
    builder: ConsumerBuilder,
    /// `None`: there is no producer now.
    connected: Option<xmem_core::Consumer>,
    /// When the producer was lost.
    lost_at: Option<Instant>,
    /// How long to wait for a producer.
    patience: Option<Duration>,
    on_eos: OnEos,
    on_lost: OnLost,
    over_budget: OverBudget,
    totals: Totals,
}

/// What became of a wait for a frame.
enum Step {
    Frame(Frame),
    Nothing,
    Failed(Failure),
}

#[derive(Debug)]
enum Failure {
    Receive(ReceiveError),
    Connect(ConnectError),
    /// The stream is over, or counts as over.
    End,
    Nonsense(&'static str),
}

impl Failure {
    fn into_py_err(self) -> PyErr {
        match self {
            Self::Receive(error) => error.into_py_err(),
            Self::Connect(error) => error.into_py_err(),
            Self::End => ReceiveError::Eos.into_py_err(),
            Self::Nonsense(reason) => Kind::Error.error(reason),
        }
    }
}

impl Inner {
    fn connect(&mut self, timeout: Duration) -> Step {
        match self.builder.connect_wait(Some(timeout)) {
            Ok(consumer) => {
                self.totals.reconnects += u64::from(self.lost_at.take().is_some());
                self.connected = Some(consumer);
                Step::Nothing
            }
            Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                let waited = self.lost_at.map_or(Duration::ZERO, |at| at.elapsed());
                if self.lost_at.is_some() && self.patience.is_some_and(|most| waited >= most) {
                    Step::Failed(Failure::Connect(error))
                } else {
                    Step::Nothing
                }
            }
            Err(error) => Step::Failed(Failure::Connect(error)),
        }
    }

    fn step(&mut self, timeout: Duration) -> Step {
        let Some(consumer) = &mut self.connected else {
            return self.connect(timeout);
        };
        let made = match consumer.receive(Some(timeout)) {
            Ok(lease) => Frame::in_place(lease),
            Err(ReceiveError::Timeout) => return Step::Nothing,
            Err(ReceiveError::OverBudget { .. }) if self.over_budget != OverBudget::Raise => {
                let drop = self.over_budget == OverBudget::Drop;
                let copy = |lease: &_| (!drop).then(|| Frame::copied(lease));
                match consumer.receive_with(Some(timeout), copy) {
                    Ok(Some(made)) => made,
                    Ok(None) => {
                        self.totals.dropped += 1;
                        return Step::Nothing;
                    }
                    Err(ReceiveError::Timeout) => return Step::Nothing,
                    Err(error) => return Step::Failed(Failure::Receive(error)),
                }
            }
            Err(ReceiveError::Eos) => {
                if self.on_eos == OnEos::Wait {
                    consumer.pass_eos();
                    return Step::Nothing;
                }
                return Step::Failed(Failure::End);
            }
            Err(error @ (ReceiveError::ProducerLost | ReceiveError::TimedOut)) => {
                return self.lost(error);
            }
            Err(error) => return Step::Failed(Failure::Receive(error)),
        };
        match made {
            Ok((frame, way)) => {
                if way == Way::Copied {
                    consumer.note_copied();
                    self.totals.copied += 1;
                }
                Step::Frame(frame)
            }
            Err(reason) => Step::Failed(Failure::Nonsense(reason)),
        }
    }

    fn lost(&mut self, error: ReceiveError) -> Step {
        match self.on_lost {
            OnLost::Raise => return Step::Failed(Failure::Receive(error)),
            OnLost::End => return Step::Failed(Failure::End),
            OnLost::Wait => {}
        }
        if let Some(consumer) = self.connected.take() {
            let stats = consumer.stats();
            self.totals.before.received += stats.received;
            self.totals.before.missed += stats.missed;
        }
        self.lost_at = Some(Instant::now());
        // What the next producer has published already is news.
        self.builder = self.builder.clone().start_from(StartFrom::Oldest);
        Step::Nothing
    }
}

/// Takes the frames of a pool.
#[pyclass(frozen, subclass, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Consumer {
    seat: Seat<Inner>,
    pool: String,
    canceller: Canceller,
}

impl Consumer {
    /// `None`: nothing came in time.
    fn next(&self, py: Python<'_>, deadline: Deadline) -> PyResult<Result<Option<Frame>, Failure>> {
        let step = signals::wait(py, deadline, |slice| match self.seat.take(slice) {
            Ok(mut inner) => match inner.step(slice) {
                Step::Frame(frame) => Some(Ok(Ok(frame))),
                Step::Nothing => None,
                Step::Failed(failure) => Some(Ok(Err(failure))),
            },
            Err(NotHad::Timeout) => None,
            Err(error) => Some(Err(error)),
        })?;
        match step {
            Some(Ok(result)) => Ok(result.map(Some)),
            Some(Err(error)) => Err(not_had(error)),
            None => Ok(Ok(None)),
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
    #[pyo3(signature = (pool, *, timeout=None, max_held=8, name=None, start_from="next", on_eos="end",
        on_producer_lost="wait", over_budget="copy", busy_poll=0.0))]
    #[allow(clippy::too_many_arguments)] // keywords
    fn new(
        py: Python<'_>,
        pool: String,
        timeout: Option<f64>,
        max_held: u32,
        name: Option<&str>,
        start_from: &str,
        on_eos: &str,
        on_producer_lost: &str,
        over_budget: &str,
        busy_poll: f64,
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
            .max_held(max_held)
            .start_from(start_from)
            .parts(true)
            .busy_poll(signals::duration(Some(busy_poll))?.unwrap_or_default())
            .canceller(&canceller);
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
            totals: Totals::default(),
        };
        let deadline = Deadline::after(timeout)?;
        let connected = signals::wait(py, deadline, |slice| match inner.connect(slice) {
            Step::Failed(failure) => Some(Err(failure)),
            _ => inner.connected.is_some().then_some(Ok(())),
        })?;
        match connected {
            Some(Ok(())) => Ok(Self {
                seat: Seat::new(inner),
                pool,
                canceller,
            }),
            Some(Err(failure)) => Err(failure.into_py_err()),
            None => Err(no_producer(&inner.builder, &pool, timeout)),
        }
    }

    #[getter]
    fn pool(&self) -> &str {
        &self.pool
    }

    #[pyo3(signature = (timeout=None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Frame> {
        let next = self.next(py, Deadline::after(timeout)?)?;
        match next.map_err(Failure::into_py_err)? {
            Some(frame) => Ok(frame),
            None => Err(Kind::Timeout.error(format!(
                "no frame came in {} s: the producer of pool {:?} publishes none, or is gone",
                timeout.unwrap_or_default(),
                self.pool
            ))),
        }
    }

    /// A frame if there is one.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.next(py, Deadline::after(Some(0.0))?)?
            .map_err(Failure::into_py_err)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Frame> {
        loop {
            match self.next(py, Deadline::after(None)?)? {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(Failure::End) => return Err(PyStopIteration::new_err(())),
                Err(failure) => return Err(failure.into_py_err()),
            }
        }
    }

    #[getter]
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = signals::wait(py, Deadline::after(None)?, |slice| {
            match self.seat.take(slice) {
                Err(NotHad::Timeout) => None,
                Err(error) => Some(Err(error)),
                Ok(inner) => {
                    let now = inner.connected.as_ref().map(|it| it.stats());
                    let totals = &inner.totals;
                    let now = now.unwrap_or_default();
                    Some(Ok((
                        totals.before.received + now.received,
                        totals.before.missed + now.missed,
                        totals.copied,
                        totals.dropped,
                        totals.reconnects,
                        now,
                    )))
                }
            }
        })?;
        let (received, missed, copied, dropped, reconnects, now) = match inner {
            Some(Ok(figures)) => figures,
            Some(Err(error)) => return Err(not_had(error)),
            None => return Err(not_had(NotHad::Timeout)),
        };
        let dict = PyDict::new(py);
        dict.set_item("received", received)?;
        dict.set_item("missed", missed)?;
        dict.set_item("copied", copied)?;
        dict.set_item("dropped", dropped)?;
        dict.set_item("reconnects", reconnects)?;
        dict.set_item("held", now.held)?;
        dict.set_item("budget", now.budget)?;
        dict.set_item("latency", now.latency_ns)?;
        Ok(dict)
    }

    /// Leaves the pool. Frames that are held stay as they are.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.canceller.cancel();
        signals::wait(py, Deadline::after(None)?, |slice| {
            match self.seat.take(slice) {
                Err(NotHad::Timeout) => None,
                Err(_) => Some(()),
                Ok(inner) => {
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
    let seen: Vec<_> = xmem_core::pools()
        .into_iter()
        .filter(|pool| pool.live)
        .map(|pool| pool.name)
        .collect();
    let seen = if seen.is_empty() {
        "none".to_owned()
    } else {
        seen.join(", ")
    };
    let elsewhere: Vec<_> = xmem_core::other_runtime_dirs_with(pool)
        .into_iter()
        .map(|directory| directory.display().to_string())
        .collect();
    let elsewhere = if elsewhere.is_empty() {
        String::new()
    } else {
        format!("; a pool of that name is in {}", elsewhere.join(", "))
    };
    Kind::NoProducer.error(format!(
        "no producer of pool {pool:?} at {} in {} s: start one, or check XMEM_RUNTIME_DIR on both sides; pools in {}: \
         {seen}{elsewhere}",
        path.display(),
        timeout.unwrap_or_default(),
        xmem_core::runtime_dir().display(),
    ))
}
