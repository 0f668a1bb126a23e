// SPDX-License-Identifier: MPL-2.0

//! Publishes buffers without a copy that are not in one slot of this pool: memories with a file descriptor, several slots,
//! frames of another pool.

use std::os::fd::{BorrowedFd, OwnedFd};

use xmem_core::{
    Canceller, ForwardError, FrameMeta, FrameParts, ImportedMemory, MAX_PARTS, Parts, Producer,
    PublishError, SlotSpec, WriteLease,
};

use super::{
    imports,
    log::CAT,
    outcome::{Cause, Failure, Outcome},
    started::Started,
    upstream::{self, Loan},
};
use crate::{
    buffers::memory::XmemMemory,
    later::drop_later,
    stream::received::{TAG_DMABUF, TAG_HOST, received_frame},
};

/// The outcome, or why the buffer is not shared, if it could be.
pub(super) type Shared = Result<Outcome, Option<Cause>>;

/// Publishes a buffer whose memories can be shared. `may_copy`: a copy can take its place.
pub(super) fn publish(
    started: &Started,
    buffer: &gst::Buffer,
    meta: &FrameMeta,
    may_copy: bool,
    cancel: &Canceller,
) -> Result<Shared, Failure> {
    let Some(parts) = parts(&started.producer, buffer, cancel)? else {
        return Ok(Err(None));
    };
    let borrowed = match upstream::borrow(buffer) {
        Loan::Granted(borrowed) => borrowed,
        // Lossless delivery waits for consumers in any case. A number that was observed may be too small.
        Loan::Scarce(scarcity, borrowed)
            if !may_copy && (started.is_lossless() || !scarcity.is_told) =>
        {
            borrowed
        }
        Loan::Scarce(scarcity, _) => return Ok(Err(Some(Cause::Scarce(scarcity.most)))),
    };
    let room = parts.room() + meta.attachments.encoded_len();
    let spec = SlotSpec::new(1).attachments(room);
    let Some(mut lease) = started.slot(spec, cancel)? else {
        started.producer.note_dropped();
        return Ok(Ok(Outcome::Dropped));
    };
    set_buffer_parts(&mut lease, parts, borrowed);
    match lease.publish(meta.clone()).map_err(|failure| failure.error) {
        Ok(_) => Ok(Ok(Outcome::InPlace)),
        Err(PublishError::NotReached) => Ok(Err(None)),
        Err(error) => Err(error.into()),
    }
}

fn parts(
    producer: &Producer,
    buffer: &gst::BufferRef,
    cancel: &Canceller,
) -> Result<Option<Parts>, Failure> {
    if let Some(frame) = received_frame(buffer) {
        // It does not wait in live delivery.
        return match producer.forward_wait(&frame, FrameParts::All, None, cancel) {
            Ok(parts) => Ok(Some(parts)),
            Err(ForwardError::Cancelled) => Err(Failure::Cancelled),
            Err(reason @ ForwardError::NotReached) => {
                gst::log!(CAT, "Copying a frame of another pool: {reason}");
                Ok(None)
            }
            Err(reason) => {
                gst::debug!(CAT, "Copying a frame of another pool: {reason}");
                Ok(None)
            }
        };
    }
    Ok(own_parts(producer, buffer))
}

/// The memories of a buffer as parts. Each is in a slot of this pool or has a file descriptor.
fn own_parts(producer: &Producer, buffer: &gst::BufferRef) -> Option<Parts> {
    if !(1..=MAX_PARTS).contains(&buffer.n_memory()) {
        return None;
    }
    let mut parts = Parts::new();
    for memory in buffer.iter_memories() {
        if let Some(memory) = memory.downcast_memory_ref::<XmemMemory>() {
            memory.add_to(&mut parts, producer)?;
            continue;
        }
        let tag = if memory.is_memory_type::<gst_allocators::DmaBufMemory>() {
            TAG_DMABUF
        } else {
            TAG_HOST
        };
        let imported = import(producer, memory)?;
        parts.add_imported(&imported, memory.offset() as u64, memory.size() as u64, tag);
    }
    Some(parts)
}

/// Imports a memory with a descriptor into the pool. Consumers get the descriptor once, and keep it while upstream reuses the
/// memory.
fn import(producer: &Producer, memory: &gst::MemoryRef) -> Option<ImportedMemory> {
    if let Some(known) = imports::known(memory, producer) {
        return Some(known);
    }
    let fd = duplicate(memory.downcast_memory_ref::<gst_allocators::FdMemory>()?)?;
    match producer.import(fd) {
        Ok(imported) => {
            imports::remember(memory.parent().unwrap_or(memory), imported.clone());
            Some(imported)
        }
        Err(reason) => {
            gst::debug!(CAT, "Copying {memory:?}: {reason}");
            None
        }
    }
}

/// Publishes a frame in parts of a buffer's memory. The buffer returns to upstream when the last consumer releases the frame.
/// `kept` is the buffer itself: a copy would not return the memory to its pool.
pub(super) fn set_buffer_parts(lease: &mut WriteLease, parts: Parts, kept: impl Send + 'static) {
    lease.set_parts(parts);
    lease.set_release_hook(move || drop_later(kept));
}

/// Duplicates the file descriptor of a memory.
#[allow(unsafe_code)]
fn duplicate(memory: &gst_allocators::FdMemoryRef) -> Option<OwnedFd> {
    let number = memory.fd();
    // SAFETY: the memory keeps its descriptor open while it is borrowed. -1, the number without a descriptor, is excluded.
    let fd = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })?;
    fd.try_clone_to_owned().ok()
}
