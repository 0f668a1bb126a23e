// SPDX-License-Identifier: MPL-2.0

//! This end's own pool, in which its messages are published.

use pyo3::prelude::*;
use xmem_core::{Canceller, Parts, Producer, SlotSpec, Wait, WriteLease};

use crate::errors::Kind;
use crate::signals::{Deadline, retry};

/// Size in bytes of a frame without a payload.
pub(super) const EMPTY: usize = 1;
/// A smaller part of a received frame is copied, because forwarding needs a lease and holds the whole frame.
pub(super) const FORWARD_FROM: usize = 64 << 10;
/// The maximum number of parts of other frames in a message, and of separate frames on devices. Each is a lease at each
/// receiver.
pub(super) const MAX_FORWARDED: usize = 8;

pub(super) fn timeout(what: &str) -> PyErr {
    Kind::Timeout.error(what)
}

pub(super) fn closed() -> PyErr {
    Kind::Closed.error("this end of the channel is closed")
}

/// The pool's producer. Closing the channel cancels its waits.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) producer: Producer,
    pub(super) canceller: Canceller,
}

impl Outlet {
    /// Waits until the receivers have room for another message.
    pub(super) fn wait_for_room(&self, py: Python<'_>, deadline: Deadline) -> PyResult<()> {
        let room = retry(py, deadline, |slice| {
            self.producer
                .wait_for_room(Wait::up_to(slice).unless(&self.canceller))
        })?;
        room.ok_or_else(|| timeout("a receiver did not receive the earlier messages in time"))
    }

    pub(super) fn acquire(
        &self,
        py: Python<'_>,
        slot: impl Into<SlotSpec>,
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let slot = slot.into();
        let lease = retry(py, deadline, |slice| {
            self.producer
                .acquire_wait(slot.clone(), Wait::up_to(slice).unless(&self.canceller))
        })?;
        lease.ok_or_else(|| {
            timeout(
                "no slot became free in time, because receivers hold earlier messages: delete their arrays, or raise \
                 max_slots or max_bytes",
            )
        })
    }

    /// The slot of a frame whose payload is in these parts.
    pub(super) fn acquire_for(
        &self,
        py: Python<'_>,
        parts: Parts,
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let slot = SlotSpec::new(EMPTY).attachments(parts.room());
        let mut lease = self.acquire(py, slot, deadline)?;
        lease.set_parts(parts);
        Ok(lease)
    }
}
