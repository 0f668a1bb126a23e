// SPDX-License-Identifier: MPL-2.0

//! An item on its way into the local pool.

use xmem_core::{Named, WriteLease};

use crate::window::Target;
use crate::wire::Begin;

/// The name under which xmem-core keeps the places of a frame's parts. They would be places on the other host.
const PARTS: &str = "xmem:parts";

/// Where the bytes of an item go: those of a frame into a slot, so that they are not copied again.
#[derive(Debug)]
pub(super) struct Assembly {
    begin: Box<Begin>,
    slot: Option<WriteLease>,
    attached: Vec<u8>,
}

impl Assembly {
    /// `slot`: for a frame.
    pub(super) fn new(begin: Box<Begin>, slot: Option<WriteLease>) -> Self {
        Self {
            begin,
            slot,
            attached: Vec::new(),
        }
    }

    /// The description, the slot with the payload, and the attachments or the sticky state. `None`: these are not valid.
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
