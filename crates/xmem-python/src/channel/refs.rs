// SPDX-License-Identifier: MPL-2.0

//! What holds the objects that references of a message lead to. Whoever has such a reference has a lease of the frame that
//! stands for it: here that keeps the object itself, or what this process has of another one's.

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::{ForwardError, MAX_PARTS, Parts, Producer, ReadLease, WriteLease};

use super::end::ChannelEnd;
use super::incoming::RefLease;
use super::outgoing::MAX_FORWARDED;
use super::reaper::Kept;
use super::send::EMPTY;
use crate::signals::{Deadline, wait_apart};

/// The references of a message.
#[derive(Debug)]
pub(super) struct Refs {
    objects: Py<PyAny>,
    /// Those that came from other processes.
    leases: Vec<Arc<ReadLease>>,
}

impl Refs {
    pub(super) fn new(objects: Py<PyAny>, leases: &[Bound<'_, RefLease>]) -> Self {
        let mut known: Vec<Arc<ReadLease>> = Vec::new();
        for lease in leases {
            let lease = &lease.get().0;
            if !known.iter().any(|other| Arc::ptr_eq(other, lease)) {
                known.push(lease.clone());
            }
        }
        Self {
            objects,
            leases: known,
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
        for lease in self.leases.iter().take(MAX_FORWARDED).filter(|_| forward) {
            if let Ok(more) = pass_on(py, producer, lease)?
                && parts.len() + more.len() <= MAX_PARTS
            {
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

/// Waits for receivers that have not said yet whether they reach the pool that it comes from: nobody else holds what is lost,
/// and it cannot be copied.
fn pass_on(
    py: Python<'_>,
    producer: &Producer,
    lease: &ReadLease,
) -> PyResult<Result<Parts, ForwardError>> {
    match producer.forward(lease) {
        Err(ForwardError::NotReached) => {
            wait_apart(py, |cancel| producer.forward_wait(lease, cancel))
        }
        forwarded => Ok(forwarded),
    }
}
