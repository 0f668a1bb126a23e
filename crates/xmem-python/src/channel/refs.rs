// SPDX-License-Identifier: MPL-2.0

//! What holds the objects that references of a message lead to. Whoever has such a reference has a lease of the frame that
//! stands for it: here that keeps the object itself, or what this process has of another one's.

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{ForwardError, MAX_PARTS, Part, Parts, Producer, ReadLease, SLOT, WriteLease};

use super::end::ChannelEnd;
use super::outgoing::MAX_FORWARDED;
use super::reaper::Kept;
use super::send::EMPTY;
use crate::signals::{Deadline, wait_apart};

/// Held by a reference that came, so that what it refers to stays.
#[pyclass(frozen, module = "xmem._xmem", name = "_RefLease")]
#[derive(Debug, Clone)]
pub(crate) struct RefLease {
    /// Of the frame that stands for the references of its message.
    lease: Arc<ReadLease>,
    /// Tells the pieces of that frame that are for this reference. 0: there are none.
    tag: u32,
}

#[pymethods]
impl RefLease {
    /// The same for references that are held by the same.
    #[getter]
    fn key(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.lease) as usize, self.tag)
    }

    /// Whether whoever keeps the object for this process is still there.
    #[getter]
    fn is_held(&self) -> bool {
        let mut origins = self.pieces().filter_map(|(_, part)| part.origin_is_gone());
        match origins.next() {
            Some(is_gone) => !is_gone && !origins.any(|is_gone| is_gone),
            None => !self.lease.producer_is_gone(),
        }
    }
}

impl RefLease {
    pub(super) fn new(lease: Arc<ReadLease>, tag: u32) -> Self {
        Self { lease, tag }
    }

    /// Where it is held, besides by who sent it, and the number of that piece.
    fn pieces(&self) -> impl Iterator<Item = (usize, &Part)> {
        let parts = self.lease.parts().iter().enumerate();
        parts.filter(|(_, part)| self.tag != 0 && part.tag() == self.tag)
    }

    /// Waits for receivers that have not said yet whether they reach the pool that it comes from: nobody else holds what is
    /// lost, and it cannot be copied.
    fn pass_on(
        &self,
        py: Python<'_>,
        producer: &Producer,
        answer_by: Deadline,
    ) -> PyResult<Result<Parts, ForwardError>> {
        let lease = &*self.lease;
        let mut pieces: Vec<usize> = self.pieces().map(|(number, _)| number).collect();
        if pieces.is_empty() {
            // Who sent it keeps the object with the frame.
            pieces.push(if lease.parts().is_empty() { 0 } else { SLOT });
        }
        match producer.forward_pieces(lease, &pieces) {
            Err(ForwardError::NotReached) => wait_apart(py, |cancel| {
                producer.forward_pieces_wait(lease, &pieces, answer_by.left(), cancel)
            }),
            forwarded => Ok(forwarded),
        }
    }
}

/// The references of a message.
#[derive(Debug)]
pub(super) struct Refs {
    objects: Py<PyAny>,
    /// Those that came from other processes. The tag of the first is 1.
    leases: Vec<RefLease>,
    /// How long receivers are waited for that have not said what they reach.
    answer_by: Deadline,
}

impl Refs {
    pub(super) fn new(
        objects: Py<PyAny>,
        leases: &[Bound<'_, RefLease>],
        answer_by: Deadline,
    ) -> Self {
        Self {
            objects,
            leases: leases.iter().map(|lease| lease.get().clone()).collect(),
            answer_by,
        }
    }

    /// The slot that stands for them. `forward`: receivers hold what came from other processes there too, so that it stays when
    /// this process ends.
    pub(super) fn slot(
        &self,
        py: Python<'_>,
        end: &ChannelEnd,
        producer: &Producer,
        forward: bool,
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let mut parts = Parts::new();
        let passed_on = self.leases.iter().take(MAX_FORWARDED).zip(1..);
        for (lease, tag) in passed_on.filter(|_| forward) {
            if let Ok(mut more) = lease.pass_on(py, producer, self.answer_by)?
                && parts.len() + more.len() <= MAX_PARTS
            {
                more.set_tag(tag);
                parts.append(more);
            }
        }
        let mut lease = if parts.is_empty() {
            end.acquire(py, producer, (EMPTY, 0), deadline)?
        } else {
            let mut lease = end.acquire(py, producer, (EMPTY, parts.room()), deadline)?;
            lease.set_parts(parts);
            lease
        };
        let kept = Kept::new(self.objects.clone_ref(py));
        lease.set_release_hook(move || drop(kept));
        Ok(lease)
    }
}
