// SPDX-License-Identifier: MPL-2.0

//! Publishes buffers without a copy that are not in one slot of this pool: memories with a file descriptor, several slots,
//! frames of another pool. Upstream may have few of its own: a camera has 4 to 32, and delivers no frame while all of them are in use.

// Reads the pool of a buffer.
#![allow(unsafe_code)]

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use gst::{
    glib::{self, translate::*},
    prelude::*,
};
use xmem_core::{
    Canceller, ForwardError, FrameMeta, FrameParts, ImportedMemory, MAX_PARTS, Parts, Producer,
    PublishError, SlotSpec, Wait, WriteLease,
};

use super::{
    base::CAT,
    run::{Cause, Failure, Outcome, Started},
};
use crate::{
    buffers::{
        bufferpool,
        memory::XmemMemory,
        tied::{Tie, tied, untie, update},
    },
    later::drop_later,
    lock,
    stream::received::{ReceivedPart, TAG_DMABUF, TAG_HOST, received_frame},
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
    let (borrowed, scarcity) = borrow(buffer);
    // Lossless delivery waits for consumers in any case. A number that was observed may be too small.
    if let Some(scarcity) = scarcity
        && (may_copy || (scarcity.is_told && !started.is_lossless()))
    {
        return Ok(Err(Some(Cause::Scarce(scarcity.most))));
    }
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
        return match producer.forward_wait(&frame, FrameParts::All, Wait::FOREVER.unless(cancel)) {
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
    if let Some(known) = known(memory, producer) {
        return Some(known);
    }
    if tied::<ReceivedPart>(memory).is_some_and(|part| part.slot.is_some()) {
        gst::debug!(
            CAT,
            "Copying part of a frame of another pool, whose slot is read-only for consumers"
        );
        return None;
    }
    let fd = duplicate(memory.downcast_memory_ref::<gst_allocators::FdMemory>()?)?;
    match producer.import(fd) {
        Ok(imported) => {
            remember(memory.parent().unwrap_or(memory), imported.clone());
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
fn duplicate(memory: &gst_allocators::FdMemoryRef) -> Option<OwnedFd> {
    let number = memory.fd();
    // SAFETY: the memory keeps its descriptor open while it is borrowed. -1, the number without a descriptor, is excluded.
    let fd = (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })?;
    fd.try_clone_to_owned().ok()
}

/// The imports of one memory: one for each sink that it reaches behind a tee, and for earlier runs of a sink while their pools
/// exist.
#[derive(Debug, Default, Clone)]
pub(super) struct Imports(Vec<ImportedMemory>);

impl Tie for Imports {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-imports");
}

/// The import of the memory into this producer's pool.
pub(super) fn known(memory: &gst::MemoryRef, producer: &Producer) -> Option<ImportedMemory> {
    let Imports(imports) = tied(memory)?;
    imports.into_iter().find(|import| import.is_of(producer))
}

/// Keeps the import while the memory exists.
pub(super) fn remember(memory: &gst::MemoryRef, import: ImportedMemory) {
    let past: Vec<_> = update(memory, |Imports(imports)| {
        let past = imports.extract_if(.., |import| !import.is_used()).collect();
        imports.push(import);
        past
    });
    drop(past);
}

/// Makes consumers release a memory. Called before it is freed.
pub(super) fn forget(memory: &gst::MemoryRef) {
    drop(untie::<Imports>(memory));
}

/// The number of buffers that stay with upstream: one that the driver fills, the next one, and one on its way to the sink.
const LEFT_TO_UPSTREAM: u32 = 3;

/// At most this many buffers are told apart, to find out how many upstream has. Video4Linux allows 32.
const MOST_SEEN: usize = 64;

/// A buffer in memory of upstream that consumers may read. It returns to upstream when it is dropped.
#[derive(Debug)]
struct Borrowed {
    _buffer: gst::Buffer,
    lent: Option<Arc<AtomicU32>>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.fetch_sub(1, Relaxed);
        }
    }
}

/// Most of upstream's buffers are in use. Another one can be borrowed, but then the next frame may have to wait for a consumer.
#[derive(Debug, Clone, Copy)]
struct Scarcity {
    /// The number of upstream's buffers. `None`: not known yet.
    most: Option<u32>,
    /// Whether upstream told the number. Otherwise it was observed.
    is_told: bool,
}

/// One pool of upstream. Behind a tee, several sinks borrow from it.
#[derive(Debug)]
struct Lender {
    pool: glib::WeakRef<gst::BufferPool>,
    /// The number of buffers in use. A buffer counts once for each sink.
    lent: Arc<AtomicU32>,
    most: Most,
}

/// The number of buffers of a pool.
#[derive(Debug)]
enum Most {
    /// As many as are needed.
    Unlimited,
    Limited(u32),
    /// The pool does not tell it, as that of libcamerasrc. The addresses of the buffers that came so far, and whether one of them
    /// came again. A camera uses all of its buffers in turn.
    Seen(Vec<usize>, bool),
}

impl Most {
    fn of(pool: &gst::BufferPool) -> Self {
        match pool.config().params() {
            Some((_, _, _, most)) if most > 0 => Self::Limited(most),
            _ if has_own_acquire(pool) => Self::Seen(Vec::new(), false),
            _ => Self::Unlimited,
        }
    }

    fn note(&mut self, buffer: usize) {
        if let Self::Seen(seen, is_whole) = self {
            if seen.contains(&buffer) {
                *is_whole = true;
            } else if seen.len() < MOST_SEEN {
                seen.push(buffer);
            }
        }
    }

    /// `None`: another buffer can be borrowed while this many are.
    fn scarcity(&self, lent: u32) -> Option<Scarcity> {
        let (most, is_known, is_told) = match self {
            Self::Unlimited => return None,
            Self::Limited(most) => (*most, true, true),
            Self::Seen(seen, is_whole) => (seen.len() as u32, *is_whole, false),
        };
        (lent.saturating_add(1 + LEFT_TO_UPSTREAM) > most).then_some(Scarcity {
            most: is_known.then_some(most),
            is_told,
        })
    }
}

static LENDERS: Mutex<Vec<Lender>> = Mutex::new(Vec::new());

/// Borrows a buffer that consumers are to read in upstream's memory.
fn borrow(buffer: &gst::Buffer) -> (Borrowed, Option<Scarcity>) {
    let lender = lender(buffer);
    let (lent, scarcity) = lender.map_or((None, None), |(pool, own)| account(&pool, own));
    let borrowed = Borrowed {
        _buffer: buffer.clone(),
        lent,
    };
    (borrowed, scarcity)
}

/// The pool that waits for a buffer, and the address of the buffer that belongs to it. `None`: no pool of upstream does.
fn lender(buffer: &gst::BufferRef) -> Option<(gst::BufferPool, usize)> {
    // SAFETY: a live buffer, which holds a reference to its pool.
    let pool: Option<gst::BufferPool> = unsafe { from_glib_none((*buffer.as_ptr()).pool) };
    match pool {
        Some(pool) => (!bufferpool::is_ours(&pool)).then(|| (pool, buffer.as_ptr().addr())),
        // An element in between has copied the buffer and not its memory.
        None => lender(buffer.meta::<gst::ParentBufferMeta>()?.parent()),
    }
}

/// Counts one more buffer of the pool as in use. Returns the count, and whether that is too many.
fn account(pool: &gst::BufferPool, buffer: usize) -> (Option<Arc<AtomicU32>>, Option<Scarcity>) {
    // Dropped after the lock is released, since these may be the last references.
    let mut pools = Vec::new();
    let mut lenders = lock(&LENDERS);
    lenders.retain(|lender| {
        let alive = lender.pool.upgrade();
        let is_alive = alive.is_some();
        pools.push(alive);
        is_alive
    });
    let known = pools.iter().flatten().position(|known| known == pool);
    let at = known.unwrap_or_else(|| {
        lenders.push(Lender {
            pool: pool.downgrade(),
            lent: Arc::default(),
            most: Most::of(pool),
        });
        lenders.len() - 1
    });
    let Some(lender) = lenders.get_mut(at) else {
        return (None, None);
    };
    let lent = lender.lent.fetch_add(1, Relaxed);
    // A pool can be configured anew while it has all its buffers.
    if lent == 0 && !matches!(lender.most, Most::Seen(..)) {
        lender.most = Most::of(pool);
    }
    lender.most.note(buffer);
    (Some(lender.lent.clone()), lender.most.scarcity(lent))
}

/// Whether a pool decides itself whether it has a buffer left.
fn has_own_acquire(pool: &gst::BufferPool) -> bool {
    let base = glib::Class::<gst::BufferPool>::from_type(gst::BufferPool::static_type());
    let base = base.and_then(|base| base.as_ref().acquire_buffer);
    match (base, pool.class().as_ref().acquire_buffer) {
        (Some(base), Some(own)) => !ptr::fn_addr_eq(base, own),
        _ => false,
    }
}
