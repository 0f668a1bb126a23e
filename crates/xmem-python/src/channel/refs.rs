// SPDX-License-Identifier: MPL-2.0

//! The frame for the references of a message. Each reference has a lease of this frame. In the process of the referenced
//! object, the frame keeps the object. In another process, it keeps the lease of that process.

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{
    ForwardError, FrameParts, MAX_PARTS, Part, Parts, Producer, ReadLease, WriteLease,
};

use super::outlet::{EMPTY, MAX_FORWARDED, Outlet};
use crate::reaper::Kept;
use crate::signals::{Deadline, wait_apart};

/// Held by a received reference, so that the referenced object is kept.
#[pyclass(frozen, module = "xmem._xmem", name = "_RefLease")]
#[derive(Debug, Clone)]
pub(crate) struct RefLease {
    /// The lease of the frame for the references of the message.
    lease: Arc<ReadLease>,
    /// The tag of that frame's parts for this reference. 0: it has none.
    tag: u32,
}

#[pymethods]
impl RefLease {
    /// Equal for references with the same lease and tag.
    #[getter]
    fn key(&self) -> (usize, u32) {
        (Arc::as_ptr(&self.lease) as usize, self.tag)
    }

    /// Whether the process that keeps the object is alive.
    #[getter]
    fn is_held(&self) -> bool {
        let mut origins = self.parts().filter_map(|(_, part)| part.origin_is_gone());
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

    /// The parts that hold the object besides its sender, with their indices.
    fn parts(&self) -> impl Iterator<Item = (usize, &Part)> {
        let parts = self.lease.parts().iter().enumerate();
        parts.filter(|(_, part)| self.tag != 0 && part.tag() == self.tag)
    }

    /// Waits for receivers that have not answered yet whether they can join the pool of origin, because a reference cannot be
    /// copied, so one that is not forwarded ends with this process.
    fn pass_on(
        &self,
        py: Python<'_>,
        producer: &Producer,
        answer_by: Deadline,
    ) -> PyResult<Result<Parts, ForwardError>> {
        let lease = &*self.lease;
        let parts: Vec<usize> = self.parts().map(|(number, _)| number).collect();
        let parts = match (parts.is_empty(), lease.parts().is_empty()) {
            (false, _) => FrameParts::Only(&parts),
            (true, true) => FrameParts::All,
            // The sender keeps the object with the frame.
            (true, false) => FrameParts::Slot,
        };
        match producer.forward(lease, parts) {
            Err(ForwardError::NotReached) => wait_apart(py, answer_by, |wait| {
                producer.forward_wait(lease, parts, wait)
            }),
            forwarded => Ok(forwarded),
        }
    }
}

/// The references of a message.
#[derive(Debug)]
pub(super) struct Refs {
    objects: Py<PyAny>,
    /// References that came from other processes. The first has tag 1.
    leases: Vec<RefLease>,
    /// The end of the wait for receivers that have not answered yet.
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

    /// The slot of the frame for the references. `forward`: receivers also hold references from other processes in their pools
    /// of origin, so that these outlive this process.
    pub(super) fn slot(
        &self,
        py: Python<'_>,
        outlet: &Outlet,
        forward: bool,
        deadline: Deadline,
    ) -> PyResult<WriteLease> {
        let mut parts = Parts::new();
        let passed_on = self.leases.iter().take(MAX_FORWARDED).zip(1..);
        for (lease, tag) in passed_on.filter(|_| forward) {
            if let Ok(mut more) = lease.pass_on(py, &outlet.producer, self.answer_by)?
                && parts.len() + more.len() <= MAX_PARTS
            {
                more.set_tag(tag);
                parts.append(more);
            }
        }
        let mut lease = if parts.is_empty() {
            outlet.acquire(py, EMPTY, deadline)?
        } else {
            outlet.acquire_for(py, parts, deadline)?
        };
        let kept = Kept::new(self.objects.clone_ref(py));
        lease.set_release_hook(move || drop(kept));
        Ok(lease)
    }
}
