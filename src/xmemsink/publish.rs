// SPDX-License-Identifier: MPL-2.0

//! A buffer into a slot: where it lies if upstream wrote it into one of ours, with one copy if not.

use xmem_core::{AcquireError, Canceller, FrameMeta, PublishError, WriteLease};

use super::{XmemSinkCopy, imp::Started};
use crate::memory::{XmemMemory, XmemMemoryRef};

/// What became of a buffer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was published where it lies.
    InPlace,
    /// It was published from a copy.
    Copied,
    /// There was no slot for it, and nobody waits in live delivery.
    Dropped,
}

/// Why a buffer could not be published.
#[derive(Debug)]
pub(super) enum Failure {
    /// Waiting was called off.
    Cancelled,
    /// The sink is being stopped.
    Closed,
    /// It would have to be copied, and that is forbidden.
    CopyForbidden(String),
    /// There cannot be a slot for it.
    NoSlot(AcquireError),
    /// Its bytes cannot be read.
    Unreadable,
    /// The pool refused it.
    Publish(PublishError),
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Closed => Self::Closed,
            error => Self::Publish(error),
        }
    }
}

impl Started {
    /// Publishes a buffer that `meta` describes.
    pub(super) fn publish(
        &self,
        buffer: &gst::BufferRef,
        meta: FrameMeta,
        cancel: &Canceller,
    ) -> Result<Outcome, Failure> {
        if let Some(memory) = self.own_memory(buffer) {
            memory.publish(&self.producer, meta)?;
            return Ok(Outcome::InPlace);
        }
        if self.settings.copy == XmemSinkCopy::Forbid {
            return Err(Failure::CopyForbidden(self.why_foreign(buffer)));
        }
        // A slot has at least one byte, also for a frame that has none.
        let Some(mut lease) = self.slot_for_copy(buffer.size().max(1), cancel)? else {
            self.producer.note_dropped();
            return Ok(Outcome::Dropped);
        };
        let room = lease
            .as_mut_slice()
            .get_mut(..buffer.size())
            .ok_or(Failure::Unreadable)?;
        buffer
            .copy_to_slice(0, room)
            .map_err(|_| Failure::Unreadable)?;
        self.producer.note_copied();
        lease.publish(meta).map_err(|failure| failure.error)?;
        Ok(Outcome::Copied)
    }

    /// The one memory of the buffer, if it lies in a slot of our pool.
    fn own_memory<'a>(&self, buffer: &'a gst::BufferRef) -> Option<&'a XmemMemoryRef> {
        if buffer.n_memory() != 1 {
            return None;
        }
        let memory = buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()?;
        memory.belongs_to(&self.producer).then_some(memory)
    }

    fn slot_for_copy(
        &self,
        size: usize,
        cancel: &Canceller,
    ) -> Result<Option<WriteLease>, Failure> {
        let lease = if self.is_lossless() {
            self.producer.acquire_wait(size, None, cancel)
        } else {
            self.producer.acquire(size)
        };
        match lease {
            Ok(lease) => Ok(Some(lease)),
            Err(AcquireError::Exhausted { .. }) if !self.is_lossless() => Ok(None),
            Err(AcquireError::Cancelled) => Err(Failure::Cancelled),
            Err(AcquireError::Closed) => Err(Failure::Closed),
            Err(error) => Err(Failure::NoSlot(error)),
        }
    }

    /// Why a buffer does not lie in a slot of ours, in words.
    pub(super) fn why_foreign(&self, buffer: &gst::BufferRef) -> String {
        let memories = buffer.n_memory();
        if memories == 0 {
            return "the buffer is empty".to_owned();
        }
        if memories > 1 {
            return format!("the buffer is made of {memories} memories, and a frame is one piece");
        }
        let memory = buffer.peek_memory(0);
        if let Some(memory) = memory.downcast_memory_ref::<XmemMemory>() {
            let pool = memory.pool().map_or_else(
                || "another pool".to_owned(),
                |pool| format!("pool {pool:?}"),
            );
            return format!("the buffer lies in a slot of {pool}");
        }
        let kind = memory.allocator().map_or_else(
            || "unknown".into(),
            |allocator| allocator.memory_type().to_string(),
        );
        let private = self.slots.private();
        if private > 0 {
            return format!(
                "the buffer is {kind}: {private} times no slot was free when upstream asked for one; \
                 raise max-slots or max-bytes"
            );
        }
        format!(
            "the buffer is {kind}: upstream did not take the pool and allocator that it was offered (parsers, \
             x264enc and everything behind a tee never do, and decoders not for their first frames)"
        )
    }
}
