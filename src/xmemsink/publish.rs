// SPDX-License-Identifier: MPL-2.0

//! A buffer into a slot: where it lies if upstream wrote it into one of ours, with one copy if not.

#[cfg(feature = "cuda")]
use xmem_core::cuda::CudaError;
use xmem_core::{AcquireError, Canceller, FrameMeta, PublishError, WriteLease};

use super::{XmemSinkCopy, started::Started};
use crate::frame::{Format, Memory};
use crate::memory::{XmemMemory, XmemMemoryRef};

/// What became of a buffer.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was published where it lies.
    InPlace,
    /// It was published from a copy.
    Copied(Cause),
    /// There was no slot for it, and nobody waits in live delivery.
    Dropped,
}

/// Why a buffer is copied.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cause {
    /// It does not lie in a slot of ours.
    Foreign,
    /// Its metas do not fit behind it: how many bytes they have, and how many fit.
    Metas { needed: usize, room: usize },
    /// It lies on a device, where others cannot reach it, and why not.
    #[cfg(feature = "cuda")]
    Unreachable(&'static str),
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
    /// Its caps are those of DMA buffers, and it is none that can be shared.
    NotShareable,
    /// There cannot be a slot for it.
    NoSlot(AcquireError),
    /// Its bytes cannot be read.
    Unreadable,
    /// The device does not do what it should.
    #[cfg(feature = "cuda")]
    Device(CudaError),
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
        buffer: &gst::Buffer,
        meta: &FrameMeta,
        format: &Format,
        cancel: &Canceller,
    ) -> Result<Outcome, Failure> {
        if !format.keeps_its_word(buffer) {
            return Err(Failure::NotShareable);
        }
        let room = meta.attachments.encoded_len();
        self.slots.expect_metas(room);
        #[cfg(feature = "cuda")]
        if let Some(outcome) = self.publish_device(buffer, meta, format, cancel)? {
            return Ok(outcome);
        }
        let mut cause = Cause::Foreign;
        if let Some(memory) = self.own_memory(buffer) {
            match memory.publish(&self.producer, meta.clone()) {
                Ok(_) => return Ok(Outcome::InPlace),
                Err(PublishError::NoRoomForAttachments { needed, room }) => {
                    cause = Cause::Metas { needed, room };
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(outcome) = self.publish_pieces(buffer, meta, cancel)? {
            return Ok(outcome);
        }
        if self.settings.copy == XmemSinkCopy::Forbid {
            return Err(Failure::CopyForbidden(self.why_copied(buffer, cause)));
        }
        if format.memory == Memory::Dmabuf {
            return Err(Failure::NotShareable);
        }
        // A slot has at least one byte, also for a frame that has none.
        let Some(mut lease) = self.slot_for_copy(buffer.size().max(1), room, cancel)? else {
            self.producer.note_dropped();
            return Ok(Outcome::Dropped);
        };
        let payload = lease
            .as_mut_slice()
            .get_mut(..buffer.size())
            .ok_or(Failure::Unreadable)?;
        buffer
            .copy_to_slice(0, payload)
            .map_err(|_| Failure::Unreadable)?;
        self.producer.note_copied();
        lease
            .publish(meta.clone())
            .map_err(|failure| failure.error)?;
        Ok(Outcome::Copied(cause))
    }

    /// The one memory of the buffer, if it lies in a slot of our pool.
    fn own_memory<'a>(&self, buffer: &'a gst::BufferRef) -> Option<&'a XmemMemoryRef> {
        if buffer.n_memory() != 1 {
            return None;
        }
        let memory = buffer.peek_memory(0).downcast_memory_ref::<XmemMemory>()?;
        memory.belongs_to(&self.producer).then_some(memory)
    }

    pub(super) fn slot_for_copy(
        &self,
        size: usize,
        room: usize,
        cancel: &Canceller,
    ) -> Result<Option<WriteLease>, Failure> {
        self.slot_by(cancel, || self.producer.acquire_with_room(size, room))
    }

    /// A slot as the mode of delivery has it: at once or not at all, or waited for.
    pub(super) fn slot_by(
        &self,
        cancel: &Canceller,
        acquire: impl Fn() -> Result<WriteLease, AcquireError>,
    ) -> Result<Option<WriteLease>, Failure> {
        let lease = if self.is_lossless() {
            self.producer.acquire_wait_by(None, cancel, acquire)
        } else {
            acquire()
        };
        match lease {
            Ok(lease) => Ok(Some(lease)),
            Err(AcquireError::Exhausted { .. }) if !self.is_lossless() => Ok(None),
            Err(AcquireError::Cancelled) => Err(Failure::Cancelled),
            Err(AcquireError::Closed) => Err(Failure::Closed),
            Err(error) => Err(Failure::NoSlot(error)),
        }
    }

    /// Why a buffer is copied, in words.
    pub(super) fn why_copied(&self, buffer: &gst::BufferRef, cause: Cause) -> String {
        match cause {
            Cause::Foreign => self.why_foreign(buffer),
            Cause::Metas { needed, room } => format!(
                "its metas have {needed} bytes, and its slot has room for {room} behind it; set meta-room to {} or more",
                needed.checked_next_power_of_two().unwrap_or(needed)
            ),
            #[cfg(feature = "cuda")]
            Cause::Unreachable(why) => {
                format!("the buffer lies on a CUDA device in memory that cannot be shared: {why}")
            }
        }
    }

    fn why_foreign(&self, buffer: &gst::BufferRef) -> String {
        let memories = buffer.n_memory();
        if memories == 0 {
            return "the buffer is empty".to_owned();
        }
        if memories > 1 {
            return format!(
                "the buffer is made of {memories} memories, which do not all lie in slots or in memory with a descriptor"
            );
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
