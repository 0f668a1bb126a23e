// SPDX-License-Identifier: MPL-2.0

//! One end of a channel.

use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::{Producer, Wait, WaitError};

use super::inbox::{Blocked, End, Taken};
use super::incoming::Incoming;
use super::item::{Item, Sent};
use super::link::Link;
use super::memory::Room;
use super::names::MAKER;
use super::open::{self, Options};
use super::outlet::{Outlet, closed, timeout};
use super::refs::{RefLease, Refs};
use super::send::{self, Message};
use crate::addresses;
use crate::detached::Detached;
use crate::errors::{IntoPyErr, IntoPyResult, Kind, no_descriptor};
use crate::number::{count as number, count_or_none as number_or_none};
use crate::own_slot::OwnSlot;
use crate::signals::{Deadline, retry, wait, wait_for};

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
    link: Detached<Link>,
    counters: Counters,
}

fn ended(end: &End) -> PyErr {
    let kind = if end.is_lost {
        Kind::ProducerLost
    } else {
        Kind::EndOfStream
    };
    kind.error(format!("there are no more messages: {}", end.why))
}

#[pymethods]
impl ChannelEnd {
    /// Makes a channel.
    #[staticmethod]
    fn make(py: Python<'_>, name: &str, options: Options) -> PyResult<Self> {
        open::make(py, name, &options).map(Self::from_link)
    }

    /// Joins a channel. Waits for its maker: at most `look` seconds until it exists, and at most `time` seconds in all.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        name: &str,
        options: Options,
        look: Option<f64>,
        time: Option<f64>,
    ) -> PyResult<Self> {
        open::join(py, name, &options, look, time).map(Self::from_link)
    }

    /// The number of this end. The maker has number 0.
    #[getter]
    fn id(&self) -> u64 {
        self.link.id
    }

    /// The socket of the channel.
    #[getter]
    fn socket(&self) -> PathBuf {
        self.link.socket.clone()
    }

    /// The numbers of the ends from which messages are received.
    fn senders(&self) -> PyResult<Vec<u64>> {
        self.link.outlet()?;
        Ok(self.link.inbox.senders())
    }

    /// The number of processes that receive from this end.
    fn receivers(&self) -> PyResult<usize> {
        Ok(self.link.outlet()?.producer.num_consumers())
    }

    /// Waits until this many processes receive from this end, and the maker receives from them.
    fn wait_for_receivers(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] count: usize,
        time: Option<f64>,
    ) -> PyResult<()> {
        let Outlet {
            producer,
            canceller,
        } = self.link.outlet()?;
        let deadline = Deadline::after(time)?;
        let inbox = &self.link.inbox;
        let step = |slice| {
            if let Some(why) = inbox.ended() {
                let why = format!("no more processes can join: {why}");
                return Some(Err(Kind::ProducerLost.error(why)));
            }
            match producer.wait_for_consumers(count, Wait::up_to(slice).unless(&canceller)) {
                Ok(()) if self.link.id != MAKER => Some(Ok(())),
                Ok(()) => inbox.wait_for_senders(count, slice).then_some(Ok(())),
                Err(WaitError::Timeout) => None,
                Err(error) => Some(Err(error.into_py_err())),
            }
        };
        wait_for(py, deadline, step, || {
            timeout(&format!(
                "only {} of {count} processes joined the channel in time",
                self.met(&producer)
            ))
        })
    }

    /// Why a `send` seems to wait forever: messages also wait at this end, and the program does not receive them.
    fn stuck(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let outlet = self.link.outlet()?;
        let waiting = self.link.inbox.waiting();
        let slow = py.detach(|| outlet.producer.held_up_by());
        if waiting == 0 || slow.is_empty() {
            return Ok(None);
        }
        Ok(Some(format!(
            "send() is waiting for {} to receive earlier messages, and this end has {waiting} unread message(s). If both \
             sides are in send(), neither can continue: call recv() between sends, or in another thread. The maker sends to \
             every process that joined; to give each job to one worker, use send(job, to=...)",
            slow.join(" and ")
        )))
    }

    /// Memory for an array that will be sent without a copy.
    fn room(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] size: usize,
        time: Option<f64>,
    ) -> PyResult<Room> {
        let outlet = self.link.outlet()?;
        let lease = outlet.acquire(py, size.max(1), Deadline::after(time)?)?;
        let slot = Arc::new(OwnSlot::new(lease, size));
        addresses::note_own(&slot);
        Ok(Room::new(slot))
    }

    /// Sends a message: a pickle, and blocks as (address, size, whether the pickle reads it in order, bytes that were omitted
    /// before it, an array to gather, properties on a device), whose memory belongs to `owners`.
    ///
    /// `refs` is kept until no receiver has a reference of the message any more. `leases`, in the order of their tags, are held
    /// by receivers too if possible; the call waits for the receivers' answers about that for at most `answer_time` seconds.
    /// Returns the number of copied bytes, and of bytes that were not copied.
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
        #[pyo3(from_py_with = number_or_none)] to: Option<u64>,
        timeout: Option<f64>,
        answer_time: Option<f64>,
    ) -> PyResult<(usize, usize)> {
        let outlet = self.link.outlet()?;
        let deadline = Deadline::after(timeout)?;
        let answer_by = Deadline::after(answer_time)?;
        let items = blocks.into_iter().map(Sent::into_item);
        let items: Vec<Item> = items.collect::<PyResult<_>>()?;
        self.wait_for_any_receiver(py, &outlet, to, deadline)?;
        outlet.wait_for_room(py, deadline)?;
        let refs = refs.map(|objects| Refs::new(objects, &leases, answer_by));
        let message = Message {
            pickle,
            items: &items,
            gather,
            refs,
            owners,
            to,
        };
        let (copied, shared) = send::send(py, &outlet, message, deadline)?;
        count(&self.counters.sent, 1);
        count(&self.counters.copied_bytes, copied);
        count(&self.counters.shared_bytes, shared);
        Ok((copied, shared))
    }

    /// The next message, of any sender or of this one.
    fn receive(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number_or_none)] sender: Option<u64>,
        time: Option<f64>,
    ) -> PyResult<Incoming> {
        self.link.outlet()?;
        let taken = wait(py, Deadline::after(time)?, |slice| {
            self.link.inbox.take(sender, slice)
        })?;
        match taken {
            Some(Taken::Message(incoming)) => {
                count(&self.counters.received, 1);
                count(&self.counters.copied_out, incoming.message.is_private.into());
                Ok(incoming)
            }
            Some(Taken::Blocked(Blocked { why, errno: None })) => {
                Err(Kind::OverBudget.error(format!(
                    "{why}; delete (del) or copy received arrays, then try again: the message is not lost"
                )))
            }
            Some(Taken::Blocked(Blocked { why, errno })) => {
                Err(Kind::Error.of_system(errno, format!("{why}; the message is not lost, so you can try again")))
            }
            Some(Taken::Ended(end)) => Err(ended(&end)),
            Some(Taken::Closed) => Err(closed()),
            None => Err(timeout("no message arrived in time")),
        }
    }

    /// Waits until `receive` would return at once. Returns whether it would.
    fn poll(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number_or_none)] sender: Option<u64>,
        time: Option<f64>,
    ) -> PyResult<bool> {
        self.link.outlet()?;
        let found = wait(py, Deadline::after(time)?, |slice| {
            self.link.inbox.poll(sender, slice).then_some(())
        })?;
        Ok(found.is_some())
    }

    /// A descriptor that is readable while `receive` would return at once. -1 if the end is closed, as for sockets.
    fn fileno(&self) -> PyResult<RawFd> {
        if self.is_closed() && !self.link.is_inherited() {
            return Ok(-1);
        }
        self.link.outlet()?;
        let ready = self.link.inbox.ready();
        Ok(ready.map_err(no_descriptor)?.as_raw_fd())
    }

    /// Waits until all receivers have taken all messages. `False`: the time has passed.
    fn drain(&self, py: Python<'_>, time: Option<f64>) -> PyResult<bool> {
        let outlet = self.link.outlet()?;
        let drained = retry(py, Deadline::after(time)?, |slice| {
            outlet
                .producer
                .drain(Wait::up_to(slice).unless(&outlet.canceller))
        })?;
        Ok(drained.is_some())
    }

    /// Closes the end. Nothing is sent or received any more.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.link.shut());
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Figures.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Outlet { producer, .. } = self.link.outlet()?;
        let inbox = &self.link.inbox;
        let pool = producer.stats();
        let (refused, why_refused) = inbox.refused();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = PyDict::new(py);
        stats.set_item("sent", load(&self.counters.sent))?;
        stats.set_item("received", load(&self.counters.received))?;
        stats.set_item("waiting", inbox.waiting())?;
        stats.set_item("copied_bytes", load(&self.counters.copied_bytes))?;
        stats.set_item("shared_bytes", load(&self.counters.shared_bytes))?;
        stats.set_item("copied_out", load(&self.counters.copied_out))?;
        stats.set_item("receivers", producer.num_consumers())?;
        stats.set_item("senders", inbox.senders().len())?;
        stats.set_item("slots", pool.slots)?;
        stats.set_item("bytes", pool.bytes)?;
        stats.set_item("refused", refused)?;
        stats.set_item("why_refused", why_refused)?;
        Ok(stats)
    }
}

impl ChannelEnd {
    fn from_link(link: Detached<Link>) -> Self {
        Self {
            link,
            counters: Counters::default(),
        }
    }

    /// How many processes have joined.
    fn met(&self, producer: &Producer) -> usize {
        let receivers = producer.num_consumers();
        if self.link.id == MAKER {
            receivers.min(self.link.inbox.senders().len())
        } else {
            receivers
        }
    }

    fn wait_for_any_receiver(
        &self,
        py: Python<'_>,
        outlet: &Outlet,
        to: Option<u64>,
        deadline: Deadline,
    ) -> PyResult<()> {
        let Link { id, inbox, .. } = &*self.link;
        let ended = || match to {
            Some(to) if *id == MAKER && !inbox.has(to) => {
                Some(format!("process {to} of the channel is not connected"))
            }
            Some(to) if *id != MAKER && to != MAKER => {
                Some("only the maker of a channel can choose the receiver (to=...)".to_owned())
            }
            _ => inbox.ended(),
        };
        let producer = &outlet.producer;
        let step = |slice| {
            if let Some(why) = ended() {
                let why = format!("the message has no receiver: {why}");
                return Some(Err(Kind::ProducerLost.error(why)));
            }
            if producer.num_consumers() > 0 {
                return Some(Ok(()));
            }
            match producer.wait_for_consumers(1, Wait::up_to(slice).unless(&outlet.canceller)) {
                Err(WaitError::Timeout) => None,
                result => Some(result.into_py_result()),
            }
        };
        wait_for(py, deadline, step, || {
            timeout("no process joined the channel in time, so the message has no receiver")
        })
    }
}
