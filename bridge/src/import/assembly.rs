// SPDX-License-Identifier: MPL-2.0

//! Assembles an item from its chunks.

use xmem_core::{Named, WriteLease};

use crate::window::Target;
use crate::wire::Begin;

/// The attachment in which xmem-core describes the parts of a frame. It is removed, because it refers to memory of the other host.
const PARTS: &str = "xmem:parts";

/// An item that is received. The payload of a frame is written directly into a slot, to avoid a second copy.
#[derive(Debug)]
pub(super) struct Assembly {
    begin: Box<Begin>,
    slot: Option<WriteLease>,
    attached: Vec<u8>,
}

impl Assembly {
    /// `slot` receives the payload of a frame. Other items have none.
    pub(super) fn new(begin: Box<Begin>, slot: Option<WriteLease>) -> Self {
        Self {
            begin,
            slot,
            attached: Vec::new(),
        }
    }

    /// Returns the description, the slot with the payload, and the attachments or the sticky state. `None` if the attachments or
    /// the sticky state are invalid.
    pub(super) fn finish(self) -> Option<(Box<Begin>, Option<WriteLease>, Named)> {
        let mut attached = Named::decode(&self.attached)?;
        attached.remove(PARTS);
        Some((self.begin, self.slot, attached))
    }
}

impl Target for Assembly {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let left = self.begin.meta.size.saturating_sub(offset);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        let (payload, attached) = bytes.split_at(left.min(bytes.len()));
        if let Some(slot) = &mut self.slot
            && let Ok(offset) = usize::try_from(offset)
            && let Some((_, rest)) = slot.as_mut_slice().split_at_mut_checked(offset)
            && let Some((to, _)) = rest.split_at_mut_checked(payload.len())
        {
            to.copy_from_slice(payload);
        }
        self.attached.extend_from_slice(attached);
    }
}
