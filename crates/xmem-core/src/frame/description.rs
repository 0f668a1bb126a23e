// SPDX-License-Identifier: MPL-2.0

//! The description of a frame, shared by its handles.

use std::sync::Arc;

use xmem_shm::abi::frame_info::FrameInfo;
use xmem_shm::abi::meta::FrameMeta;
use xmem_shm::abi::named::Sticky;

use super::parts::Part;

/// The properties of a frame besides its slot.
pub(super) struct Description {
    pub(super) info: FrameInfo,
    pub(super) meta: FrameMeta,
    pub(super) sticky: Arc<Sticky>,
    pub(super) payload: Payload,
}

/// The place of the payload.
pub(super) enum Payload {
    Slot,
    Parts(Box<[Part]>),
    /// In parts. This is the producer's own lease, which does not have them.
    UnknownParts,
}

impl Description {
    /// Whether it holds no memory and no leases of its own.
    fn is_plain(&self) -> bool {
        matches!(self.payload, Payload::Slot) && self.meta.attachments.is_empty()
    }
}

/// The maximum number of kept descriptions.
const MAX_KEPT: usize = 16;

/// Reuses the memory of descriptions. A consumer that releases its frames allocates none for the next frame.
#[derive(Default)]
pub(crate) struct Descriptions(Vec<Arc<Description>>);

impl std::fmt::Debug for Descriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Descriptions").finish_non_exhaustive()
    }
}

impl Descriptions {
    /// Shares a description, in memory that no frame uses any more if there is any.
    pub(super) fn share(&mut self, description: Description) -> Arc<Description> {
        if !description.is_plain() {
            return Arc::new(description);
        }
        let unused = self.0.iter_mut().find(|kept| Arc::strong_count(kept) == 1);
        if let Some(kept) = unused
            && let Some(place) = Arc::get_mut(kept)
        {
            *place = description;
            return kept.clone();
        }
        let shared = Arc::new(description);
        if self.0.len() < MAX_KEPT {
            self.0.push(shared.clone());
        }
        shared
    }
}
