// SPDX-License-Identifier: MPL-2.0

//! The state of a sink between start and stop.

use std::sync::Arc;

use xmem_core::{AcquireError, Canceller, Producer, SlotSpec, Text, WriteLease};

use super::{enums::XmemSinkDelivery, outcome::Failure, settings::Settings};
use crate::{
    buffers::allocator::{SlotSource, XmemAllocator},
    cuda::Copier,
};

/// The state of a started sink.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) producer: Producer,
    pub(super) slots: Arc<SlotSource>,
    pub(super) allocator: XmemAllocator,
    /// The settings at the start. They can be changed only while the sink is stopped.
    pub(super) settings: Settings,
    /// The producer's name in its frames.
    pub(super) program: Text<32>,
    /// Copies frames on devices.
    pub(super) copier: Copier,
}

impl Started {
    pub(super) fn is_lossless(&self) -> bool {
        self.settings.delivery == XmemSinkDelivery::Lossless
    }

    /// Acquires a slot. Lossless delivery waits for one. `None`: no slot is free, and live delivery does not wait.
    pub(super) fn slot(
        &self,
        spec: SlotSpec,
        cancel: &Canceller,
    ) -> Result<Option<WriteLease>, Failure> {
        let lease = if self.is_lossless() {
            self.producer.acquire_wait(spec, None, cancel)
        } else {
            self.producer.acquire(spec)
        };
        match lease {
            Ok(lease) => Ok(Some(lease)),
            Err(AcquireError::Exhausted { .. }) if !self.is_lossless() => Ok(None),
            Err(AcquireError::Cancelled) => Err(Failure::Cancelled),
            Err(AcquireError::Closed) => Err(Failure::Closed),
            Err(error) => Err(Failure::NoSlot(error)),
        }
    }
}
