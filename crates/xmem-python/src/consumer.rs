// SPDX-License-Identifier: MPL-2.0

//! The consumer of a pool, over all producers that the pool has one after another.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use xmem_core::cuda::CudaError;
use xmem_core::{
    Canceller, ConnectError, ConsumerBuilder, ConsumerHandle, ReceiveError, ReceiveStats,
    RequestError, StartFrom,
};

use crate::errors::{IntoPyErr, Kind};
use crate::frame::{Frame, Unusable, Way};
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
struct Figures {
    /// Of connections that are over.
    before: ReceiveStats,
    now: Option<ConsumerHandle>,
    copied: u64,
    dropped: u64,
    reconnects: u64,
}

/// What looks for a producer puts here what it found.
type Found = Arc<Mutex<Option<Result<xmem_core::Consumer, ConnectError>>>>;

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
    figures: Arc<Mutex<Figures>>,
    /// Readable when there may be something to receive. `None`: nobody asked for it.
    eventfd: Option<Arc<OwnedFd>>,
    /// A thread looks for a producer, for who waits for the eventfd.
    looking: Option<Found>,
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
    Unusable(Unusable),
}

impl Failure {
    fn into_py_err(self) -> PyErr {
        match self {
            Self::Receive(error) => error.into_py_err(),
            Self::Connect(error) => error.into_py_err(),
            Self::End => ReceiveError::Eos.into_py_err(),
            Self::Unusable(Unusable::Nonsense(reason)) => Kind::Error.error(reason),
            Self::Unusable(Unusable::Cuda(error)) => error.into_py_err(),
            Self::Unusable(Unusable::Unfinished) => CudaError::Unfinished.into_py_err(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn figures(&self) -> MutexGuard<'_, Figures> {
        lock(&self.figures)
    }

    fn connect(&mut self, timeout: Duration) -> Step {
        let result = match self.eventfd.clone() {
            None => self.builder.connect_wait(Some(timeout)),
            Some(eventfd) => match self.look_for_producer(&eventfd, timeout) {
                Some(result) => result,
                None => return Step::Nothing,
            },
        };
        match result {
            Ok(consumer) => self.connected(consumer),
            Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                let waited = self.lost_at.map_or(Duration::ZERO, |at| at.elapsed());
                if self.lost_at.is_some() && self.patience.is_some_and(|most| waited >= most) {
                    return Step::Failed(Failure::Connect(error));
                }
                if let Some(eventfd) = &self.eventfd {
                    // So that whoever waits for it comes back, and another thread looks.
                    ring(eventfd);
                }
                Step::Nothing
            }
            Err(error) => Step::Failed(Failure::Connect(error)),
        }
    }

    /// What the thread found that looks for a producer; who waits for the eventfd cannot do so himself. `None`: nothing yet.
    fn look_for_producer(
        &mut self,
        eventfd: &Arc<OwnedFd>,
        timeout: Duration,
    ) -> Option<Result<xmem_core::Consumer, ConnectError>> {
        // Before the look: what is found after it makes it readable again.
        drain(eventfd);
        if let Some(found) = &self.looking {
            let result = lock(found).take();
            if result.is_none() {
                // Who waits here instead has to come back to look at signals anyway.
                let mut fds = [PollFd::new(&**eventfd, PollFlags::IN)];
                let timeout: Option<Timespec> = timeout.try_into().ok();
                let _ = poll(&mut fds, timeout.as_ref());
                return None;
            }
            self.looking = None;
            return result;
        }
        let found = Found::default();
        let thread = std::thread::Builder::new().name("xmem-look".into());
        let spawned = thread.spawn({
            let (builder, eventfd, found) = (self.builder.clone(), eventfd.clone(), found.clone());
            move || {
                // Not for ever, so that it is noticed when nobody looks any more.
                let result = builder.connect_wait(Some(PATIENCE_OF_THREAD));
                *lock(&found) = Some(result);
                ring(&eventfd);
            }
        });
        match spawned {
            Ok(_) => {
                self.looking = Some(found);
                None
            }
            Err(error) => Some(Err(no_thread(error))),
        }
    }

    fn connected(&mut self, mut consumer: xmem_core::Consumer) -> Step {
        if let Some(eventfd) = &self.eventfd
            && let Err(error) = consumer.notify(eventfd.clone())
        {
            return Step::Failed(Failure::Connect(no_thread(error)));
        }
        let reconnected = self.lost_at.take().is_some();
        let mut figures = self.figures();
        figures.reconnects += u64::from(reconnected);
        figures.now = Some(consumer.handle());
        drop(figures);
        self.connected = Some(consumer);
        Step::Nothing
    }

    /// From here on the eventfd says when there may be something to receive.
    fn notify(&mut self, eventfd: Arc<OwnedFd>) -> std::io::Result<()> {
        if let Some(consumer) = &mut self.connected {
            consumer.notify(eventfd.clone())?;
        }
        // Who waits for it looks once, and waits then for what that found missing.
        ring(&eventfd);
        self.eventfd = Some(eventfd);
        Ok(())
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
                        lock(&self.figures).dropped += 1;
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
                    lock(&self.figures).copied += 1;
                }
                Step::Frame(frame)
            }
            Err(Unusable::Unfinished) => {
                lock(&self.figures).dropped += 1;
                Step::Nothing
            }
            Err(reason) => Step::Failed(Failure::Unusable(reason)),
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
            let mut figures = self.figures();
            figures.before.received += stats.received;
            figures.before.missed += stats.missed;
            figures.now = None;
        }
        if let Some(eventfd) = &self.eventfd {
            ring(eventfd);
        }
        self.lost_at = Some(Instant::now());
        // What the next producer has published already is news.
        self.builder = self.builder.clone().start_from(StartFrom::Oldest);
        Step::Nothing
    }
}

/// How long a thread looks for a producer.
const PATIENCE_OF_THREAD: Duration = Duration::from_secs(1);

fn no_thread(error: std::io::Error) -> ConnectError {
    ConnectError::System {
        what: "start a thread",
        error,
    }
}

fn ring(eventfd: &OwnedFd) {
    // The only way to fail is a counter that is full, and then it is readable anyway.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

fn drain(eventfd: &OwnedFd) {
    let _ = rustix::io::read(eventfd, &mut [0; 8]);
}

/// Takes the frames of a pool.
#[pyclass(frozen, subclass, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Consumer {
    seat: Seat<Inner>,
    pool: String,
    canceller: Canceller,
    figures: Arc<Mutex<Figures>>,
    eventfd: OnceLock<Arc<OwnedFd>>,
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
            figures: Arc::default(),
            eventfd: None,
            looking: None,
        };
        let figures = inner.figures.clone();
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
                figures,
                eventfd: OnceLock::new(),
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

    /// A descriptor that is readable when there may be something to receive.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        if let Some(eventfd) = self.eventfd.get()
            && !self.canceller.is_cancelled()
        {
            return Ok(eventfd.as_raw_fd());
        }
        let failed = |error: std::io::Error| {
            PyOSError::new_err(format!("cannot make a descriptor to wait for: {error}"))
        };
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let eventfd = Arc::new(eventfd.map_err(|error| failed(error.into()))?);
        let made = self.with_inner(py, |inner| {
            // Another thread may have been faster.
            let first = self.eventfd.get_or_init(|| eventfd.clone());
            if Arc::ptr_eq(first, &eventfd) {
                inner.notify(eventfd.clone())?;
            }
            Ok(first.as_raw_fd())
        })?;
        made.map_err(failed)
    }

    /// The newest caps that are known, also before the first frame.
    #[getter]
    fn caps(&self) -> Option<String> {
        let handle = lock(&self.figures).now.clone();
        let sticky = handle?.sticky()?;
        sticky.text("caps").map(str::to_owned)
    }

    /// Asks whoever feeds the pool for something.
    #[pyo3(signature = (name, data=Vec::new()))]
    fn request(&self, name: &str, data: Vec<u8>) -> PyResult<()> {
        let handle = lock(&self.figures).now.clone();
        let sent = match handle {
            Some(handle) => handle.request(name, &data),
            None => Err(RequestError::ProducerLost),
        };
        sent.map_err(IntoPyErr::into_py_err)
    }

    /// How long to wait for the next producer when this one is lost.
    fn _set_patience(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let patience = signals::duration(timeout)?;
        self.with_inner(py, |inner| inner.patience = patience)
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
        let figures = lock(&self.figures);
        let now = figures.now.as_ref().and_then(ConsumerHandle::stats);
        let now = now.unwrap_or_default();
        let dict = PyDict::new(py);
        dict.set_item("received", figures.before.received + now.received)?;
        dict.set_item("missed", figures.before.missed + now.missed)?;
        dict.set_item("copied", figures.copied)?;
        dict.set_item("dropped", figures.dropped)?;
        dict.set_item("reconnects", figures.reconnects)?;
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
