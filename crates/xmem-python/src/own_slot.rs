// SPDX-License-Identifier: MPL-2.0

//! A slot of a channel's pool that this process writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xmem_core::{PartLease, Parts, Producer, WriteLease};

use crate::lock;

/// A slot that stays claimed while an object of this process, or an unreleased message, refers to it.
#[derive(Debug)]
pub(crate) struct OwnSlot {
    /// Only guards the lease. Arrays write the bytes without the lock.
    lease: Mutex<Lease>,
    start: usize,
    /// The requested size in bytes.
    len: usize,
    /// A message contains it, so it must not be written any more.
    sent: AtomicBool,
}

/// The right that keeps the slot claimed.
#[derive(Debug)]
enum Lease {
    Writing(WriteLease),
    /// Since the first message that contains it as a part.
    Part(PartLease),
    /// Only during `as_part`.
    Moving,
}

impl Lease {
    fn as_part(&mut self) -> Option<&PartLease> {
        if let Self::Writing(_) = self {
            let Self::Writing(lease) = std::mem::replace(self, Self::Moving) else {
                return None;
            };
            *self = Self::Part(lease.into_part());
        }
        match self {
            Self::Part(part) => Some(part),
            _ => None,
        }
    }
}

impl OwnSlot {
    pub(crate) fn new(lease: WriteLease, len: usize) -> Self {
        Self {
            start: lease.as_ptr() as usize,
            len: len.min(lease.len()),
            lease: Mutex::new(Lease::Writing(lease)),
            sent: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn is_of(&self, producer: &Producer) -> bool {
        match &*lock(&self.lease) {
            Lease::Writing(lease) => lease.is_of(producer),
            Lease::Part(part) => part.is_of(producer),
            Lease::Moving => false,
        }
    }

    /// Adds the whole slot to a frame's parts.
    pub(crate) fn add_to(&self, parts: &mut Parts) {
        if let Some(part) = lock(&self.lease).as_part() {
            parts.add_slot(part, 0, self.len as u64, 0);
        }
    }

    /// The requested size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// The lease to publish the slot itself. `Err`: it is a part of a message.
    pub(crate) fn into_lease(self) -> Result<WriteLease, Arc<Self>> {
        let lease = self.lease.into_inner();
        match lease.unwrap_or_else(PoisonError::into_inner) {
            Lease::Writing(lease) => Ok(lease),
            part => Err(Arc::new(Self {
                lease: Mutex::new(part),
                ..self
            })),
        }
    }
}
