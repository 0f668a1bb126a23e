// SPDX-License-Identifier: MPL-2.0

//! Makes and joins channels.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::{Delivery, PoolEvent, Producer, ProducerBuilder, RequestError, Sticky};

use super::inbox::Inbox;
use super::inlet::{self, Terms};
use super::link::Link;
use super::names::{self, HELLO, MAKER, REFUSED, TAKEN};
use super::outlet::timeout;
use crate::detached::Detached;
use crate::errors::{IntoPyErr, IntoPyResult, Kind};
use crate::lock;
use crate::number::{count, counts};
use crate::signals::{self, Deadline, wait, wait_for};

/// The key in the sticky state that marks a channel's pool.
const MARK: &str = "xmem:channel";
const MARK_VERSION: &str = "2";
/// The time in which the mark of the maker's pool must arrive.
const MARK_TIME: Duration = Duration::from_secs(2);
/// The time in which the maker must answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The answer of the maker to a process that joins.
#[derive(Debug, Default)]
struct Answer {
    result: Mutex<Option<Result<(), String>>>,
    arrived: Condvar,
}

impl Answer {
    fn on_event(&self, event: PoolEvent) {
        let PoolEvent::Request { name, data, .. } = event else {
            return;
        };
        let answer = match name.as_str() {
            TAKEN => Ok(()),
            REFUSED => Err(String::from_utf8_lossy(&data).into_owned()),
            _ => return,
        };
        lock(&self.result).get_or_insert(answer);
        self.arrived.notify_all();
    }

    fn wait(&self, time: Duration) -> Option<Result<(), String>> {
        let result = lock(&self.result);
        let waited = self
            .arrived
            .wait_timeout_while(result, time, |result| result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// The options of a channel's pools.
#[derive(Debug, Clone)]
pub(super) struct Options {
    budget: u32,
    max_slots: u32,
    max_bytes: u64,
    max_receivers: u32,
    lossless_timeout: Option<f64>,
    allow_uids: Vec<u32>,
}

impl<'py> FromPyObject<'_, 'py> for Options {
    type Error = PyErr;

    // Not derived, because then each error would be a `TypeError`.
    fn extract(options: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let options = &*options;
        Ok(Self {
            budget: option(options, "budget", count)?,
            max_slots: option(options, "max_slots", count)?,
            max_bytes: option(options, "max_bytes", count)?,
            max_receivers: option(options, "max_receivers", count)?,
            lossless_timeout: option(options, "lossless_timeout", |it| it.extract())?,
            allow_uids: option(options, "allow_uids", counts)?,
        })
    }
}

fn option<'py, T>(
    options: &Bound<'py, PyAny>,
    name: &str,
    parse: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<T> {
    let value = options.get_item(name)?;
    parse(&value).inspect_err(|error| {
        // As PyO3 does for arguments.
        let note = format!("while processing '{name}'");
        let _ = error.value(options.py()).call_method1("add_note", (note,));
    })
}

impl Options {
    fn builder(&self, pool: &str) -> PyResult<ProducerBuilder> {
        Ok(Producer::builder(pool)
            .delivery(Delivery::Lossless)
            .history(0)
            .mixed_sizes(true)
            .max_slots(self.max_slots)
            .max_bytes(self.max_bytes)
            .max_held(self.budget)
            .max_consumers(self.max_receivers)
            .lossless_timeout(signals::lossless_timeout(self.lossless_timeout)?)
            .allow_uids(self.allow_uids.clone()))
    }

    fn terms(&self, me: u64) -> Terms {
        Terms {
            budget: self.budget,
            allow_uids: self.allow_uids.clone(),
            me,
        }
    }
}

/// Makes a channel.
pub(super) fn make(py: Python<'_>, name: &str, options: &Options) -> PyResult<Detached<Link>> {
    let inbox = Arc::new(Inbox::default());
    let socket = xmem_core::discovery::socket_path(name).into_py_result()?;
    let joined = {
        let (inbox, terms, socket) = (Arc::downgrade(&inbox), options.terms(MAKER), socket.clone());
        move |event: PoolEvent| on_event(&inbox, &terms, &socket, event)
    };
    let builder = options.builder(name)?.on_event(joined);
    let producer = py.detach(|| {
        let producer = builder.build()?;
        names::clean_up(&socket);
        Ok(producer)
    });
    let producer = producer.map_err(|error: xmem_core::CreateError| error.into_py_err())?;
    let mut mark = Sticky::new();
    mark.set(MARK, MARK_VERSION);
    producer.set_sticky(&mark).into_py_result()?;
    Ok(Link::open(MAKER, socket, producer, inbox))
}

/// Joins a channel; waits for its maker.
pub(super) fn join(
    py: Python<'_>,
    name: &str,
    options: &Options,
    look: Option<f64>,
    time: Option<f64>,
) -> PyResult<Detached<Link>> {
    let deadline = Deadline::after(time)?;
    let look = match signals::duration(look)? {
        Some(look) => deadline.at_most(look),
        None => deadline,
    };
    let inbox = Arc::new(Inbox::default());
    let id = names::new_id();
    let terms = options.terms(id);
    let builder = terms.consumer(name, &inbox);
    let mut last = None;
    let joined = wait(py, look, |slice| match builder.connect_wait(Some(slice)) {
        Err(error) if error.may_pass() => {
            last = Some(error);
            None
        }
        result => Some(result),
    })?;
    let consumer = match (joined, last) {
        (Some(joined), _) => joined.into_py_result()?,
        (None, Some(error)) => return Err(error.into_py_err()),
        (None, None) => return Err(timeout("no process created the channel in time")),
    };
    terms
        .check(&consumer)
        .map_err(|why| Kind::Refused.error(why))?;
    // The maker marks its pool directly after it was created. The pool sends each new state to its consumers.
    let marked = wait(py, deadline.at_most(MARK_TIME), |_| {
        let state = consumer.wait_sticky(Some(RETRY_INTERVAL));
        let marked = state.is_some_and(|state| state.text(MARK) == Some(MARK_VERSION));
        if !marked {
            std::thread::sleep(RETRY_INTERVAL);
        }
        marked.then_some(())
    })?;
    if marked.is_none() {
        return Err(PyValueError::new_err(format!(
            "pool {name:?} is not a channel, or is from another version of xmem: use xmem.Consumer to read an ordinary pool"
        )));
    }
    let socket = builder.socket_path().into_py_result()?;
    let own = names::socket_of(&socket, id);
    let own = own.to_str().ok_or_else(|| {
        PyValueError::new_err("the name of the channel's socket isn't UTF-8: choose another name")
    })?;
    let answer = Arc::new(Answer::default());
    let builder = options.builder(own)?.on_event({
        let answer = answer.clone();
        move |event| answer.on_event(event)
    });
    let producer = py.detach(|| builder.build()).into_py_result()?;
    let link = Link::open(id, socket, producer, inbox);
    let handle = consumer.handle();
    let ask = |slice: Duration| match handle.request(HELLO, &id.to_le_bytes()) {
        Err(RequestError::Busy) => {
            std::thread::sleep(slice.min(RETRY_INTERVAL));
            None
        }
        Err(error) => Some(Err(Kind::ProducerLost.error(error.to_string()))),
        Ok(()) => Some(Ok(())),
    };
    wait_for(py, deadline, ask, || {
        timeout("the channel's maker does not read requests: check whether that process is stopped")
    })?;
    let refused = |why: &str| {
        Kind::Refused.error(format!(
            "the channel's maker does not accept messages from this process: {why}"
        ))
    };
    // The maker answers on a thread that needs no interpreter.
    let met = |slice| {
        let answer = answer.wait(slice)?;
        Some(answer.map_err(|why| refused(&why)))
    };
    wait_for(py, deadline.at_most(ANSWER_TIME), met, || {
        refused(
            "the maker cannot open this process's pool. Add the maker's user to allow_uids, or check whether the maker is \
             stopped or has no file descriptors left",
        )
    })?;
    inlet::follow(&link.inbox, terms, consumer)?;
    Ok(link)
}

/// Handles a request. Runs on the pool's control thread. Any process may have sent the request.
fn on_event(inbox: &Weak<Inbox>, terms: &Terms, socket: &Path, event: PoolEvent) {
    if let PoolEvent::Request { name, data, .. } = event
        && name == HELLO
        && let (Some(inbox), Some(id)) = (inbox.upgrade(), names::parse_id(&data))
    {
        inlet::connect(&inbox, terms.clone(), socket, id);
    }
}
