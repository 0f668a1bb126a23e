// SPDX-License-Identifier: MPL-2.0

//! One end of a channel.
#![allow(unsafe_code)] // copies into a slot

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::{
    AcquireError, ConnectError, ConsumerEvent, Delivery, FrameMeta, Parts, Producer,
    ProducerBuilder, PublishError, RequestError, Sticky, WaitError, WriteLease,
};

use super::inbox::{Inbox, Taken};
use super::incoming::Incoming;
use super::inlet::{self, Terms};
use super::lock;
use super::memory::{self, OwnSlot, Room};
use super::message::{Kind, Label};
use super::names::{self, HELLO, MAKER, REFUSED, TAKEN};
use super::outgoing::{Item, Plan};
use super::reaper::Kept;
use crate::errors::{IntoPyErr, Kind as ErrorKind};
use crate::signals::{Deadline, wait};

/// What the sticky state of a channel's pool has, so that nobody takes another pool for one.
const MARK: &str = "xmem:channel";
const MARK_VERSION: &str = "1";
/// How long the maker's pool may take to say that it is a channel's.
const MARK_TIME: Duration = Duration::from_secs(2);
/// How long the maker may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Bytes that a frame without a payload has.
const EMPTY: usize = 1;

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    copied_bytes: AtomicU64,
    shared_bytes: AtomicU64,
    copied_out: AtomicU64,
}

fn count(counter: &AtomicU64, by: usize) {
    counter.fetch_add(by as u64, Ordering::Relaxed);
}

/// One end of a channel.
#[pyclass(frozen, module = "xmem._xmem", name = "_ChannelEnd")]
#[derive(Debug)]
pub(crate) struct ChannelEnd {
    pid: u32,
    id: u64,
    /// The socket of the channel.
    socket: PathBuf,
    producer: Mutex<Option<Producer>>,
    inbox: Arc<Inbox>,
    counters: Counters,
}

/// A block as Python has it.
#[derive(Debug, FromPyObject)]
struct Sent(usize, usize, bool, usize, Option<Py<PyAny>>);

/// What the maker says to a process that joins.
#[derive(Debug, Default)]
struct Answer {
    said: Mutex<Option<Result<(), String>>>,
    came: Condvar,
}

impl Answer {
    fn hear(&self, event: ConsumerEvent) {
        let ConsumerEvent::Request { name, data, .. } = event else {
            return;
        };
        let answer = match name.as_str() {
            TAKEN => Ok(()),
            REFUSED => Err(String::from_utf8_lossy(&data).into_owned()),
            _ => return,
        };
        lock(&self.said).get_or_insert(answer);
        self.came.notify_all();
    }

    fn wait(&self, time: Duration) -> Option<Result<(), String>> {
        let said = lock(&self.said);
        let waited = self
            .came
            .wait_timeout_while(said, time, |said| said.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

/// How a channel's pools are made.
#[derive(Debug, Clone, FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    budget: u32,
    max_slots: u32,
    max_bytes: u64,
    max_receivers: u32,
    lossless_timeout: Option<f64>,
    allow_uids: Vec<u32>,
}

impl Options {
    fn builder(&self, pool: &str) -> PyResult<ProducerBuilder> {
        let patience = crate::signals::duration(self.lossless_timeout)?;
        Ok(Producer::builder(pool)
            .delivery(Delivery::Lossless)
            .without_history()
            .mixed_sizes(true)
            .max_slots(self.max_slots)
            .max_bytes(self.max_bytes)
            .max_held(self.budget)
            .max_consumers(self.max_receivers)
            .lossless_timeout(patience)
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

fn timeout(what: &str) -> PyErr {
    ErrorKind::Timeout.error(what)
}

fn over(why: &str) -> PyErr {
    ErrorKind::EndOfStream.error(format!("no more messages come: {why}"))
}

#[pymethods]
impl ChannelEnd {
    /// Makes a channel.
    #[staticmethod]
    fn make(py: Python<'_>, name: &str, options: Options) -> PyResult<Self> {
        let inbox = Arc::new(Inbox::default());
        let socket = xmem_core::socket_path(name)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let joined = {
            let (inbox, terms, socket) =
                (Arc::downgrade(&inbox), options.terms(MAKER), socket.clone());
            move |event: ConsumerEvent| hear(&inbox, &terms, &socket, event)
        };
        let builder = options.builder(name)?.on_consumer(joined);
        let producer = py.detach(|| {
            let producer = builder.build()?;
            names::clean_up_all(&socket);
            Ok(producer)
        });
        let producer = producer.map_err(|error: xmem_core::CreateError| error.into_py_err())?;
        let mut mark = Sticky::new();
        mark.set(MARK, MARK_VERSION);
        producer.set_sticky(&mark).map_err(IntoPyErr::into_py_err)?;
        Ok(Self::new(MAKER, socket, producer, inbox))
    }

    /// Joins a channel; waits for its maker.
    #[staticmethod]
    fn join(py: Python<'_>, name: &str, options: Options, time: Option<f64>) -> PyResult<Self> {
        let deadline = Deadline::after(time)?;
        let inbox = Arc::new(Inbox::default());
        let id = names::new_id();
        let terms = options.terms(id);
        let builder = terms.consumer(name, &inbox);
        let mut last = None;
        let joined = wait(py, deadline, |slice| {
            match builder.connect_wait(Some(slice)) {
                Err(error @ (ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. })) => {
                    last = Some(error);
                    None
                }
                result => Some(result),
            }
        })?;
        let consumer = match (joined, last) {
            (Some(joined), _) => joined.map_err(IntoPyErr::into_py_err)?,
            (None, Some(error)) => return Err(error.into_py_err()),
            (None, None) => return Err(timeout("nobody made the channel in time")),
        };
        terms
            .check(&consumer)
            .map_err(|why| ErrorKind::Refused.error(why))?;
        // It is marked right after it is made, and newer states are sent to everybody.
        let marked = wait(py, deadline.at_most(MARK_TIME), |_| {
            let state = consumer.wait_sticky(LOOK_AGAIN);
            let marked = state.is_some_and(|state| state.text(MARK) == Some(MARK_VERSION));
            if !marked {
                std::thread::sleep(LOOK_AGAIN);
            }
            marked.then_some(())
        })?;
        if marked.is_none() {
            return Err(PyValueError::new_err(format!(
                "pool {name:?} is not a channel, or one of another version of xmem: join it with xmem.Consumer"
            )));
        }
        let socket = builder
            .socket_path()
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let own = names::socket_of(&socket, id);
        let own = own
            .to_str()
            .ok_or_else(|| PyValueError::new_err("the channel's socket has no name in UTF-8"))?;
        let answer = Arc::new(Answer::default());
        let builder = options.builder(own)?.on_consumer({
            let answer = answer.clone();
            move |event| answer.hear(event)
        });
        let producer = py
            .detach(|| builder.build())
            .map_err(IntoPyErr::into_py_err)?;
        let end = Self::new(id, socket, producer.clone(), inbox);
        let handle = consumer.handle();
        let said = wait(py, deadline, |slice| {
            match handle.request(HELLO, &id.to_le_bytes()) {
                Err(RequestError::Busy) => {
                    std::thread::sleep(slice.min(LOOK_AGAIN));
                    None
                }
                result => Some(result),
            }
        })?;
        match said {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(ErrorKind::ProducerLost.error(error.to_string())),
            None => {
                return Err(timeout(
                    "the channel's maker reads no requests: it may be stopped",
                ));
            }
        }
        // It answers from a thread of its own, which needs no interpreter.
        let met = wait(py, deadline.at_most(ANSWER_TIME), |slice| {
            answer.wait(slice)
        })?;
        match met {
            Some(Ok(())) => {}
            Some(Err(why)) => {
                return Err(ErrorKind::Refused.error(format!(
                    "the channel's maker does not take messages of this process: {why}"
                )));
            }
            None => {
                return Err(ErrorKind::Refused.error(
                    "the channel's maker does not take messages of this process: it may not open its pool, since it runs \
                     as a user that allow_uids does not name, or it is stopped",
                ));
            }
        }
        inlet::follow(&end.inbox, terms, consumer)?;
        Ok(end)
    }

    /// This end's number. 0 is the maker's.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// The socket of the channel.
    #[getter]
    fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// The numbers of the ends that messages are taken from.
    fn senders(&self) -> PyResult<Vec<u64>> {
        self.producer()?;
        Ok(self.inbox.senders())
    }

    /// How many processes take what this end sends.
    fn receivers(&self) -> PyResult<usize> {
        Ok(self.producer()?.num_consumers())
    }

    /// Waits until somebody takes what this end sends.
    fn wait_for_receiver(&self, py: Python<'_>, time: Option<f64>) -> PyResult<()> {
        let producer = self.producer()?;
        self.wait_for_somebody(py, &producer, None, Deadline::after(time)?)
    }

    /// Room for an array that will be sent without a copy.
    fn room(&self, py: Python<'_>, size: usize, time: Option<f64>) -> PyResult<Room> {
        let producer = self.producer()?;
        let lease = self.acquire(py, &producer, (size.max(1), 0), Deadline::after(time)?)?;
        let slot = Arc::new(OwnSlot::new(lease, size));
        memory::note_own(&slot);
        Ok(Room::new(slot))
    }

    /// Sends a message: a pickle, and blocks as (address, size, whether the pickle takes it in its order, bytes that were
    /// left out before it, an array to be gathered), which the caller keeps until this returns. `refs` is kept until no
    /// receiver has a reference of the message any more. Returns how many bytes were copied, and how many not.
    #[expect(clippy::too_many_arguments, reason = "one caller, by name")]
    #[pyo3(signature = (pickle, blocks, *, gather, refs, to, timeout))]
    fn send(
        &self,
        py: Python<'_>,
        pickle: &[u8],
        blocks: Vec<Sent>,
        gather: &Bound<'_, PyAny>,
        refs: Option<Py<PyAny>>,
        to: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<(usize, usize)> {
        let producer = self.producer()?;
        let deadline = Deadline::after(timeout)?;
        let items: Vec<Item> = blocks
            .into_iter()
            .map(|Sent(start, len, in_order, shift, gather)| Item {
                start,
                len,
                in_order,
                shift,
                gather,
            })
            .collect();
        self.wait_for_somebody(py, &producer, to, deadline)?;
        self.wait_for_room(py, &producer, deadline)?;
        let refs = match refs {
            Some(refs) => {
                let mut lease = self.acquire(py, &producer, (EMPTY, 0), deadline)?;
                let kept = Kept::new(refs);
                lease.set_release_hook(move || drop(kept));
                Some(lease)
            }
            None => None,
        };
        let mut outgoing = Outgoing {
            end: self,
            producer: &producer,
            items: &items,
            pickle,
            to,
            refs,
            refs_at: None,
        };
        let result = match outgoing.send(py, gather, true, deadline) {
            Err(Failure::NotReached) => outgoing.send(py, gather, false, deadline),
            result => result,
        };
        let (copied, shared) = result.map_err(|failure| match failure {
            Failure::NotReached => {
                ErrorKind::Error.error("a message that is copied reaches everybody")
            }
            Failure::Python(error) => error,
        })?;
        count(&self.counters.sent, 1);
        count(&self.counters.copied_bytes, copied);
        count(&self.counters.shared_bytes, shared);
        Ok((copied, shared))
    }

    /// The next message, of anybody or of this end.
    fn receive(
        &self,
        py: Python<'_>,
        sender: Option<u64>,
        time: Option<f64>,
    ) -> PyResult<Incoming> {
        self.producer()?;
        let taken = wait(py, Deadline::after(time)?, |slice| {
            self.inbox.take(sender, slice)
        })?;
        match taken {
            Some(Taken::Message(delivered)) => {
                count(&self.counters.received, 1);
                let incoming = Incoming {
                    message: delivered.message,
                    sender: delivered.sender,
                    refs: delivered.refs,
                };
                count(&self.counters.copied_out, incoming.is_copied().into());
                Ok(incoming)
            }
            Some(Taken::Blocked(why)) => Err(ErrorKind::OverBudget.error(format!(
                "{why}; let go of arrays that were received (del), or copy them; the message is not lost"
            ))),
            Some(Taken::Over(why)) => Err(over(&why)),
            Some(Taken::Closed) => Err(closed()),
            None => Err(timeout("no message came in time")),
        }
    }

    /// Whether there is a message, or none will come; waits for that.
    fn poll(&self, py: Python<'_>, time: Option<f64>) -> PyResult<bool> {
        self.producer()?;
        let found = wait(py, Deadline::after(time)?, |slice| {
            self.inbox.poll(slice).then_some(())
        })?;
        Ok(found.is_some())
    }

    /// Waits until everybody took what was sent. `False`: the time was over.
    fn drain(&self, py: Python<'_>, time: Option<f64>) -> PyResult<bool> {
        let producer = self.producer()?;
        let drained = wait(py, Deadline::after(time)?, |slice| {
            match producer.drain(Some(slice), &self.inbox.canceller) {
                Err(WaitError::Timeout) => None,
                result => Some(result),
            }
        })?;
        match drained {
            Some(result) => result.map(|()| true).map_err(IntoPyErr::into_py_err),
            None => Ok(false),
        }
    }

    /// Ends it: nothing is sent or received any more.
    fn close(&self, py: Python<'_>) {
        if self.pid != std::process::id() {
            return;
        }
        let producer = lock(&self.producer).take();
        py.detach(|| self.shut(producer));
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.pid != std::process::id() || lock(&self.producer).is_none()
    }

    /// Figures.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let producer = self.producer()?;
        let pool = producer.stats();
        let (refused, why_refused) = self.inbox.refused();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = PyDict::new(py);
        stats.set_item("sent", load(&self.counters.sent))?;
        stats.set_item("received", load(&self.counters.received))?;
        stats.set_item("waiting", self.inbox.waiting())?;
        stats.set_item("copied_bytes", load(&self.counters.copied_bytes))?;
        stats.set_item("shared_bytes", load(&self.counters.shared_bytes))?;
        stats.set_item("copied_out", load(&self.counters.copied_out))?;
        stats.set_item("receivers", producer.num_consumers())?;
        stats.set_item("senders", self.inbox.senders().len())?;
        stats.set_item("slots", pool.slots)?;
        stats.set_item("bytes", pool.bytes)?;
        stats.set_item("refused", refused)?;
        stats.set_item("why_refused", why_refused)?;
        Ok(stats)
    }
}

fn closed() -> PyErr {
    ErrorKind::Closed.error("this end of the channel is closed")
}

/// Somebody joined the channel, or says something. On the pool's own thread, and what comes here is not to be trusted.
fn hear(inbox: &Weak<Inbox>, terms: &Terms, socket: &std::path::Path, event: ConsumerEvent) {
    if let ConsumerEvent::Request { name, data, .. } = event
        && name == HELLO
        && let (Some(inbox), Some(id)) = (inbox.upgrade(), names::parse_id(&data))
    {
        inlet::meet(&inbox, terms.clone(), socket, id);
    }
}

impl ChannelEnd {
    fn new(id: u64, socket: PathBuf, producer: Producer, inbox: Arc<Inbox>) -> Self {
        Self {
            pid: std::process::id(),
            id,
            socket,
            producer: Mutex::new(Some(producer)),
            inbox,
            counters: Counters::default(),
        }
    }

    fn producer(&self) -> PyResult<Producer> {
        // Before any lock: in a forked child one may be taken for ever.
        if self.pid != std::process::id() {
            return Err(ErrorKind::Forked.error(
                "this channel belongs to the process that made it: join it (Channel.connect) after fork",
            ));
        }
        lock(&self.producer).clone().ok_or_else(closed)
    }

    /// Without the interpreter.
    fn shut(&self, producer: Option<Producer>) {
        if let Some(producer) = &producer {
            producer.set_eos(true);
            producer.close();
        }
        self.inbox.close();
        drop(producer);
    }

    fn wait_for_somebody(
        &self,
        py: Python<'_>,
        producer: &Producer,
        to: Option<u64>,
        deadline: Deadline,
    ) -> PyResult<()> {
        let ended = || match to {
            Some(to) if self.id == MAKER && !self.inbox.has(to) => {
                Some(format!("{to:#x} is not connected"))
            }
            Some(to) if self.id != MAKER && to != MAKER => {
                Some("only the maker of a channel can send to one process of it".to_owned())
            }
            _ => self.inbox.ended(),
        };
        let met = wait(py, deadline, |slice| {
            if let Some(why) = ended() {
                return Some(Err(why));
            }
            if producer.num_consumers() > 0 {
                return Some(Ok(Ok(())));
            }
            match producer.wait_for_consumer(Some(slice), &self.inbox.canceller) {
                Err(WaitError::Timeout) => None,
                result => Some(Ok(result)),
            }
        })?;
        match met {
            Some(Ok(result)) => result.map_err(IntoPyErr::into_py_err),
            Some(Err(why)) => {
                Err(ErrorKind::ProducerLost.error(format!("nobody takes the message: {why}")))
            }
            None => Err(timeout(
                "nobody joined the channel in time, so nobody would take the message",
            )),
        }
    }

    fn wait_for_room(
        &self,
        py: Python<'_>,
        producer: &Producer,
        deadline: Deadline,
    ) -> PyResult<()> {
        let room = wait(py, deadline, |slice| {
            match producer.wait_for_room_timeout(Some(slice), &self.inbox.canceller) {
                Err(WaitError::Timeout) => None,
                result => Some(result),
            }
        })?;
        match room {
            Some(result) => result.map_err(IntoPyErr::into_py_err),
            None => Err(timeout(
                "a receiver did not take the messages before this one in time",
            )),
        }
    }

    /// A slot of so many bytes with so much room behind.
    fn acquire(
        &self,
        py: Python<'_>,
        producer: &Producer,
        (size, room): (usize, usize),
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let lease = wait(py, deadline, |slice| {
            match producer.acquire_wait_with_room(size, room, Some(slice), &self.inbox.canceller) {
                Err(AcquireError::Timeout) => None,
                result => Some(result),
            }
        })?;
        match lease {
            Some(result) => result.map_err(IntoPyErr::into_py_err),
            None => Err(timeout(
                "no slot came free in time: receivers hold what was sent before, and max_slots or max_bytes allow no more",
            )),
        }
    }
}

impl Drop for ChannelEnd {
    fn drop(&mut self) {
        // In a forked child there is nothing to end, and a lock may be taken for ever.
        if self.pid == std::process::id() {
            let producer = lock(&self.producer).take();
            if producer.is_some() {
                self.shut(producer);
            }
        }
    }
}

/// Why a message was not sent.
enum Failure {
    /// Somebody joined who does not reach the pool that a piece comes from.
    NotReached,
    Python(PyErr),
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::NotReached => Self::NotReached,
            error => Self::Python(error.into_py_err()),
        }
    }
}

/// A message that is being sent.
struct Outgoing<'a> {
    end: &'a ChannelEnd,
    producer: &'a Producer,
    items: &'a [Item],
    pickle: &'a [u8],
    to: Option<u64>,
    /// What stands for the message's references.
    refs: Option<WriteLease>,
    /// Where that was published.
    refs_at: Option<u64>,
}

impl Outgoing<'_> {
    fn label(&self, kind: Kind) -> Label {
        Label {
            kind,
            to: self.to,
            refs: self.refs_at,
        }
    }

    fn meta(&self, kind: Kind, size: usize) -> FrameMeta {
        let mut meta = FrameMeta::new(size);
        self.label(kind).write(&mut meta);
        meta
    }

    fn send(
        &mut self,
        py: Python<'_>,
        gather: &Bound<'_, PyAny>,
        forward: bool,
        deadline: Deadline,
    ) -> Result<(usize, usize), Failure> {
        let (producer, items, pickle) = (self.producer, self.items, self.pickle);
        let plan = Plan::new(producer, items, pickle.len(), forward);
        let lease = self
            .end
            .acquire(py, producer, (plan.slot_len(), 0), deadline)?;
        let body = Arc::new(OwnSlot::new(lease, plan.len));
        py.detach(|| {
            // SAFETY: the slot has so many bytes, which nobody else knows of yet; the caller keeps what the items lie in.
            unsafe { plan.copy(pickle, body.start() as *mut u8) };
        });
        if !plan.gathers.is_empty() {
            let room = Bound::new(py, Room::new(body.clone()))?;
            for (number, copy) in &plan.gathers {
                let source = items[*number].gather.as_ref().map(|array| array.bind(py));
                gather.call1((&room, copy.offset, copy.len, source))?;
            }
        }
        let copied = plan.len - pickle.len();
        let shared = plan.shared;
        let pieces = plan.slots.len() + plan.forwarded.len();
        let body = if pieces == 0 {
            match Arc::try_unwrap(body) {
                Ok(body) => match body.into_lease() {
                    Ok(lease) => {
                        let meta = |this: &Self| this.meta(Kind::Message, plan.len);
                        self.publish(py, lease, meta)?;
                        return Ok((copied, shared));
                    }
                    Err(body) => Arc::new(body),
                },
                // Somebody kept what only the gathering should have seen.
                Err(body) => body,
            }
        } else {
            body
        };
        let Plan {
            slots, forwarded, ..
        } = plan;
        let mut parts = Parts::new();
        for slot in std::iter::once(&body).chain(&slots) {
            slot.add_to(&mut parts);
        }
        parts.append(forwarded);
        let room = parts.room();
        let mut lease = self.end.acquire(py, producer, (EMPTY, room), deadline)?;
        lease.set_parts(parts);
        for slot in &slots {
            slot.mark_sent();
        }
        body.mark_sent();
        lease.set_release_hook(move || drop((body, slots)));
        self.publish(py, lease, |this| this.meta(Kind::Message, EMPTY))?;
        Ok((copied, shared))
    }

    /// The references first, so that whoever takes the message has them.
    fn publish(
        &mut self,
        py: Python<'_>,
        lease: WriteLease,
        meta: impl FnOnce(&Self) -> FrameMeta,
    ) -> Result<(), Failure> {
        if let Some(refs) = self.refs.take() {
            let meta = self.meta(Kind::Refs, EMPTY);
            let published = py
                .detach(|| refs.publish(meta))
                .map_err(PublishError::from)?;
            self.refs_at = Some(published.meta().sequence);
        }
        let meta = meta(self);
        let published =
            py.detach(move || lease.publish(meta).map(drop).map_err(PublishError::from));
        match published {
            Ok(()) => {
                self.refs_at = None;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        // The references were published, and their message was not: receivers must not wait for it.
        if self.refs_at.is_some()
            && let Ok(lease) = self.producer.acquire(EMPTY)
        {
            let meta = self.meta(Kind::Void, EMPTY);
            let _ = lease.publish(meta);
        }
    }
}
