// SPDX-License-Identifier: MPL-2.0

//! The state of a sink between start and stop.

use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::Mutex;

use xmem_core::{Producer, Text};

#[cfg(feature = "cuda")]
use super::device;
use super::{XmemSinkDelivery, settings::Settings};
use crate::allocator::{SlotSource, XmemAllocator};

/// What a started sink has.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) producer: Producer,
    pub(super) slots: Arc<SlotSource>,
    pub(super) allocator: XmemAllocator,
    /// As they were at the start; they can be changed only while the sink is stopped.
    pub(super) settings: Settings,
    /// What frames name as their producer.
    pub(super) program: Text<32>,
    #[cfg(feature = "cuda")]
    pub(super) copier: Mutex<Option<device::Copier>>,
}

impl Started {
    pub(super) fn is_lossless(&self) -> bool {
        self.settings.delivery == XmemSinkDelivery::Lossless
    }
}
