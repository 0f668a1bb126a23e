// SPDX-License-Identifier: MPL-2.0

//! One end of a channel.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::cuda::Device;
use xmem_core::{AcquireError, Producer, WaitError, WriteLease};

use super::device;
use super::inbox::{Inbox, Taken};
use super::incoming::Incoming;
use super::memory::Room;
use super::names::MAKER;
use super::open::{self, Options};
use super::outgoing::Item;
use super::refs::{RefLease, Refs};
use super::send::{self, Message};
use crate::addresses::{self, OwnSlot};
use crate::bell::Bell;
use crate::detached::Detached;
use crate::errors::{IntoPyErr, Kind};
use crate::lock::lock;
use crate::signals::{Deadline, wait};

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
    id: u64,
    /// The socket of the channel.
    socket: PathBuf,
    open: Detached<Open>,
    pub(super) inbox: Arc<Inbox>,
    counters: Counters,
}

/// What has to end.
#[derive(Debug)]
struct Open {
    pid: u32,
    producer: Mutex<Option<Producer>>,
    inbox: Arc<Inbox>,
}

impl Open {
    /// Whether it is inherited through fork. Then there is nothing to end, and a lock may be taken for ever.
    fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Without the interpreter.
    fn shut(&self) {
        if self.is_inherited() {
            return;
        }
        let producer = lock(&self.producer).take();
        if let Some(producer) = &producer {
            producer.set_eos(true);
            producer.close();
        }
        self.inbox.close();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shut();
    }
}

/// A block as Python has it.
#[derive(Debug, FromPyObject)]
struct Sent<'py>(
    usize,
    usize,
    bool,
    usize,
    Option<Py<PyAny>>,
    Option<device::SentOnDevice<'py>>,
);

impl Sent<'_> {
    fn into_item(self) -> PyResult<Item> {
        let Self(start, len, in_order, shift, gather, device) = self;
        let device = device.map(|it| it.parse()).transpose()?;
        Ok(Item {
            start,
            len,
            in_order,
            shift,
            gather,
            device,
        })
    }
}

pub(super) fn timeout(what: &str) -> PyErr {
    Kind::Timeout.error(what)
}

fn over(why: &str) -> PyErr {
    Kind::EndOfStream.error(format!("no more messages come: {why}"))
}

#[pymethods]
impl ChannelEnd {
    /// Makes a channel.
    #[staticmethod]
    fn make(py: Python<'_>, name: &str, options: Options) -> PyResult<Self> {
        open::make(py, name, &options)
    }

    /// Joins a channel. Waits for its maker, in all at most `time` seconds, and `look` for there being one.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        name: &str,
        options: Options,
        look: Option<f64>,
        time: Option<f64>,
    ) -> PyResult<Self> {
        open::join(py, name, &options, look, time)
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

    /// Waits until so many processes take what this end sends, and the maker takes what they send.
    fn wait_for_receivers(&self, py: Python<'_>, count: usize, time: Option<f64>) -> PyResult<()> {
        let producer = self.producer()?;
        let deadline = Deadline::after(time)?;
        let too_few = || {
            timeout(&format!(
                "{} of {count} joined the channel in time",
                self.met(&producer)
            ))
        };
        let joined = wait(py, deadline, |slice| {
            if let Some(why) = self.inbox.ended() {
                return Some(Err(why));
            }
            let canceller = &self.inbox.canceller;
            match producer.wait_for_consumers(count, Some(slice), canceller) {
                Ok(()) if self.id != MAKER => Some(Ok(Ok(()))),
                Ok(()) => self
                    .inbox
                    .wait_for_senders(count, slice)
                    .then_some(Ok(Ok(()))),
                Err(WaitError::Timeout) => None,
                Err(error) => Some(Ok(Err(error))),
            }
        })?;
        match joined {
            Some(Ok(result)) => result.map_err(IntoPyErr::into_py_err),
            Some(Err(why)) => {
                Err(Kind::ProducerLost.error(format!("nobody joins any more: {why}")))
            }
            None => Err(too_few()),
        }
    }

    /// Why a `send` that waits may wait for ever, if it seems to: messages wait here, too, that nobody receives.
    fn stuck(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let producer = self.producer()?;
        let waiting = self.inbox.waiting();
        let slow = py.detach(|| producer.held_up_by());
        if waiting == 0 || slow.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "send waits: {} does not take the messages before this one, and {waiting} that came here are not taken either. If \
             that process waits in send, too, they wait for each other: receive between sends, or in another thread. All who \
             joined get what the maker sends; workers that share the jobs need send(job, to=...)",
            slow.join(" and ")
        )))
    }

    /// Room for an array that will be sent without a copy.
    fn room(&self, py: Python<'_>, size: usize, time: Option<f64>) -> PyResult<Room> {
        let producer = self.producer()?;
        let lease = self.acquire(py, &producer, (size.max(1), 0), Deadline::after(time)?)?;
        let slot = Arc::new(OwnSlot::new(lease, size));
        addresses::note_own(&slot);
        Ok(Room::new(slot))
    }

    /// Sends a message: a pickle, and blocks as (address, size, whether the pickle takes it in its order, bytes that were
    /// left out before it, an array to be gathered, what is known of it on a device), which lie in `owners`. `refs` is kept
    /// until no receiver has a reference of the message any more; `leases`, in the order of their tags, are held by receivers too,
    /// where they can, for which receivers are waited for at most `answer_time` seconds. Returns how
    /// many bytes were copied, and how many not.
    #[expect(clippy::too_many_arguments, reason = "one caller, by name")]
    #[pyo3(signature = (pickle, blocks, *, owners, gather, refs, leases, to, timeout, answer_time))]
    fn send(
        &self,
        py: Python<'_>,
        pickle: &[u8],
        blocks: Vec<Sent<'_>>,
        owners: Py<PyAny>,
        gather: &Bound<'_, PyAny>,
        refs: Option<Py<PyAny>>,
        leases: Vec<Bound<'_, RefLease>>,
        to: Option<u64>,
        timeout: Option<f64>,
        answer_time: Option<f64>,
    ) -> PyResult<(usize, usize)> {
        let producer = self.producer()?;
        let deadline = Deadline::after(timeout)?;
        let answer_by = Deadline::after(answer_time)?;
        let items = blocks.into_iter().map(Sent::into_item);
        let items: Vec<Item> = items.collect::<PyResult<_>>()?;
        self.wait_for_somebody(py, &producer, to, deadline)?;
        self.wait_for_room(py, &producer, deadline)?;
        let refs = refs.map(|objects| Refs::new(objects, &leases, answer_by));
        let message = Message {
            pickle,
            items: &items,
            gather,
            refs,
            owners,
            to,
        };
        let (copied, shared) = send::send(py, self, &producer, message, deadline)?;
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
                    devices: delivered.devices,
                };
                count(&self.counters.copied_out, incoming.is_copied().into());
                Ok(incoming)
            }
            Some(Taken::Blocked(why)) => Err(Kind::OverBudget.error(format!(
                "{why}; let go of arrays that were received (del), or copy them; the message is not lost"
            ))),
            Some(Taken::Over(why)) => Err(over(&why)),
            Some(Taken::Closed) => Err(closed()),
            None => Err(timeout("no message came in time")),
        }
    }

    /// Whether `receive` would return at once; waits for that.
    fn poll(&self, py: Python<'_>, sender: Option<u64>, time: Option<f64>) -> PyResult<bool> {
        self.producer()?;
        let found = wait(py, Deadline::after(time)?, |slice| {
            self.inbox.poll(sender, slice).then_some(())
        })?;
        Ok(found.is_some())
    }

    /// A descriptor that is readable while `receive` would return at once. -1 when it is closed, as of sockets.
    fn fileno(&self) -> PyResult<RawFd> {
        if self.is_closed() && !self.open.is_inherited() {
            return Ok(-1);
        }
        self.producer()?;
        let bell = self.inbox.bell().map_err(|error| Bell::failed(&error))?;
        Ok(bell.as_raw_fd())
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
        py.detach(|| self.open.shut());
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.open.is_inherited() || lock(&self.open.producer).is_none()
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

pub(super) fn closed() -> PyErr {
    Kind::Closed.error("this end of the channel is closed")
}

impl ChannelEnd {
    pub(super) fn new(id: u64, socket: PathBuf, producer: Producer, inbox: Arc<Inbox>) -> Self {
        Self {
            id,
            socket,
            open: Detached::new(Open {
                pid: std::process::id(),
                producer: Mutex::new(Some(producer)),
                inbox: inbox.clone(),
            }),
            inbox,
            counters: Counters::default(),
        }
    }

    /// How many joined.
    fn met(&self, producer: &Producer) -> usize {
        let receivers = producer.num_consumers();
        if self.id == MAKER {
            receivers.min(self.inbox.senders().len())
        } else {
            receivers
        }
    }

    fn producer(&self) -> PyResult<Producer> {
        // Before any lock: in a forked child one may be taken for ever.
        if self.open.is_inherited() {
            return Err(Kind::Forked.error(
                "this channel belongs to the process that made it: join it (Channel.connect) after fork",
            ));
        }
        lock(&self.open.producer).clone().ok_or_else(closed)
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
                Err(Kind::ProducerLost.error(format!("nobody takes the message: {why}")))
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

    /// A slot of so many bytes on a device.
    pub(super) fn acquire_on_device(
        &self,
        py: Python<'_>,
        producer: &Producer,
        size: usize,
        device: &Device,
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let cancel = &self.inbox.canceller;
        let lease = wait(py, deadline, |slice| {
            match producer.acquire_cuda_wait_with_room(size, 0, device, Some(slice), cancel) {
                Err(AcquireError::Timeout) => None,
                result => Some(result),
            }
        })?;
        Self::acquired(lease)
    }

    fn acquired(lease: Option<Result<WriteLease, AcquireError>>) -> PyResult<WriteLease> {
        match lease {
            Some(result) => result.map_err(IntoPyErr::into_py_err),
            None => Err(timeout(
                "no slot came free in time: receivers hold what was sent before, and max_slots or max_bytes allow no more",
            )),
        }
    }

    /// A slot of so many bytes with so much room behind.
    pub(super) fn acquire(
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
        Self::acquired(lease)
    }
}
