// SPDX-License-Identifier: MPL-2.0

//! Sends one message.
#![allow(unsafe_code)] // copies into a slot

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{FrameMeta, Parts, PublishError, WriteLease};

use super::device;
use super::item::Item;
use super::memory::Room;
use super::message::{Kind, Label};
use super::outgoing::Plan;
use super::outlet::{EMPTY, Outlet};
use super::refs::Refs;
use crate::errors::{IntoPyErr, Kind as ErrorKind};
use crate::own_slot::OwnSlot;
use crate::signals::Deadline;

/// Why a message was not sent.
enum Failure {
    /// A receiver that just joined cannot join the pool of origin of a part.
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

/// A message to send.
pub(super) struct Message<'a> {
    pub(super) pickle: &'a [u8],
    pub(super) items: &'a [Item],
    /// Copies an array with gaps.
    pub(super) gather: &'a Bound<'a, PyAny>,
    /// Its references, until they are published.
    pub(super) refs: Option<Refs>,
    /// The objects that own the memory of the items.
    pub(super) owners: Py<PyAny>,
    /// `None`: to all.
    pub(super) to: Option<u64>,
}

/// Sends a message. Returns the number of copied bytes, and of bytes that were not copied.
pub(super) fn send(
    py: Python<'_>,
    outlet: &Outlet,
    message: Message<'_>,
    deadline: Deadline,
) -> PyResult<(usize, usize)> {
    let mut outgoing = Outgoing {
        outlet,
        message,
        refs_slot: None,
        refs_at: None,
        devices: Vec::new(),
        devices_at: None,
        devices_sent: 0,
    };
    let result = match outgoing.send(py, true, deadline) {
        Err(Failure::NotReached) => outgoing.send(py, false, deadline),
        result => result,
    };
    result.map_err(|failure| match failure {
        Failure::NotReached => ErrorKind::Error.error(
            "a copied message did not reach every receiver: this is a bug in xmem, \
             please report it",
        ),
        Failure::Python(error) => error,
    })
}

/// A message that is being sent.
struct Outgoing<'a> {
    outlet: &'a Outlet,
    message: Message<'a>,
    /// The frame for its references.
    refs_slot: Option<WriteLease>,
    /// The sequence of that frame.
    refs_at: Option<u64>,
    /// Frames for its arrays on devices.
    devices: Vec<device::Slot>,
    /// The sequence of the first of them.
    devices_at: Option<u64>,
    /// The number of them that were published.
    devices_sent: usize,
}

impl Outgoing<'_> {
    fn meta(&self, kind: Kind, size: usize) -> FrameMeta {
        let label = Label {
            kind,
            to: self.message.to,
            refs: self.refs_at,
            device: self.devices_at,
            number: self.devices_sent as u32,
        };
        let mut meta = FrameMeta::new(size);
        label.write(&mut meta);
        meta
    }

    fn send(
        &mut self,
        py: Python<'_>,
        forward: bool,
        deadline: Deadline,
    ) -> Result<(usize, usize), Failure> {
        let outlet = self.outlet;
        let Message {
            items,
            pickle,
            gather,
            ..
        } = self.message;
        let producer = &outlet.producer;
        // Slots of an earlier attempt are given back before new ones are acquired.
        self.devices.clear();
        if let Some(refs) = &self.message.refs {
            self.refs_slot = Some(refs.slot(py, outlet, forward, deadline)?);
        }
        let devices = device::Plan::new(producer, items, forward, self.devices_sent);
        let plan = Plan::new(producer, items, &devices.places, pickle.len(), forward);
        let copied = plan.len - pickle.len() + devices.copied;
        let shared = plan.shared + devices.shared;
        self.devices = devices.fill(py, outlet, &self.message.owners, deadline)?;
        let lease = outlet.acquire(py, plan.slot_len(), deadline)?;
        let body = Arc::new(OwnSlot::new(lease, plan.len));
        py.detach(|| {
            // SAFETY: the slot has this many bytes and is not shared yet. The caller keeps the objects of the items.
            unsafe { plan.copy(pickle, body.start() as *mut u8) };
        });
        if !plan.gathers.is_empty() {
            let room = Bound::new(py, Room::new(body.clone()))?;
            for (number, copy) in &plan.gathers {
                let source = items[*number].gather.as_ref().map(|array| array.bind(py));
                gather.call1((&room, copy.offset, copy.len, source))?;
            }
        }
        let parts = plan.slots.len() + plan.forwarded.len();
        let body = if parts == 0 {
            match Arc::try_unwrap(body) {
                Ok(body) => match body.into_lease() {
                    Ok(lease) => {
                        self.publish(py, lease, plan.len)?;
                        return Ok((copied, shared));
                    }
                    Err(body) => body,
                },
                // Python kept the memory that `gather` filled.
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
        let mut lease = outlet.acquire_for(py, parts, deadline)?;
        for slot in &slots {
            slot.mark_sent();
        }
        body.mark_sent();
        lease.set_release_hook(move || drop((body, slots)));
        self.publish(py, lease, EMPTY)?;
        Ok((copied, shared))
    }

    /// Publishes a message of this size. Its separate frames come first, so that its receivers have them.
    fn publish(&mut self, py: Python<'_>, lease: WriteLease, size: usize) -> Result<(), Failure> {
        if let Some(slot) = self.refs_slot.take() {
            let meta = self.meta(Kind::Refs, EMPTY);
            let published = py
                .detach(|| slot.publish(meta))
                .map_err(PublishError::from)?;
            self.refs_at = Some(published.info().sequence);
            self.message.refs = None;
        }
        for slot in std::mem::take(&mut self.devices) {
            let sequence = slot.publish(py, |size| self.meta(Kind::Device, size))?;
            self.devices_at.get_or_insert(sequence);
            self.devices_sent += 1;
        }
        let meta = self.meta(Kind::Message, size);
        py.detach(move || lease.publish(meta).map(drop).map_err(PublishError::from))?;
        (self.refs_at, self.devices_at) = (None, None);
        Ok(())
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        // Frames of the message were published, but not the message: another frame cancels them.
        if (self.refs_at.is_some() || self.devices_at.is_some())
            && let Ok(lease) = self.outlet.producer.acquire(EMPTY)
        {
            let meta = self.meta(Kind::Void, EMPTY);
            let _ = lease.publish(meta);
        }
    }
}
