// SPDX-License-Identifier: MPL-2.0

//! How many buffers upstream has, and how many of them consumers use. A camera has 4 to 32, and it delivers no frame while all
//! of them are in use.

// Reads the pool of a buffer.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use gst::{glib, glib::translate::*, prelude::*};

use crate::{buffers::bufferpool::XmemBufferPool, lock};

/// The number of buffers that stay with upstream: one that the driver fills, the next one, and one on its way to the sink.
const LEFT_TO_UPSTREAM: u32 = 3;

/// At most this many buffers are told apart, to find out how many upstream has. Video4Linux allows 32.
const MOST_SEEN: usize = 64;

/// A buffer in memory of upstream that consumers may read. It returns to upstream when it is dropped.
#[derive(Debug)]
pub(super) struct Borrowed {
    _buffer: gst::Buffer,
    lent: Option<Arc<AtomicU32>>,
}

impl Borrowed {
    fn new(buffer: &gst::Buffer, lent: Option<Arc<AtomicU32>>) -> Self {
        Self {
            _buffer: buffer.clone(),
            lent,
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(lent) = &self.lent {
            lent.fetch_sub(1, Relaxed);
        }
    }
}

/// What to do with a buffer of upstream.
#[derive(Debug)]
pub(super) enum Loan {
    /// Upstream has enough others.
    Granted(Borrowed),
    /// Most of upstream's buffers are in use. The buffer can still be shared, but then the next frame may have to wait for a
    /// consumer.
    Scarce(Scarcity, Borrowed),
}

/// Upstream has a limited number of buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scarcity {
    /// Their number. `None`: not known yet.
    pub(super) most: Option<u32>,
    /// Whether upstream told the number. Otherwise it was observed.
    pub(super) is_told: bool,
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
pub(super) fn borrow(buffer: &gst::Buffer) -> Loan {
    let Some((pool, own)) = lender(buffer) else {
        return Loan::Granted(Borrowed::new(buffer, None));
    };
    let (lent, scarcity) = account(&pool, own);
    let borrowed = Borrowed::new(buffer, Some(lent));
    match scarcity {
        None => Loan::Granted(borrowed),
        Some(scarcity) => Loan::Scarce(scarcity, borrowed),
    }
}

/// The pool that waits for a buffer, and the address of the buffer that belongs to it. `None`: no pool of upstream does.
fn lender(buffer: &gst::BufferRef) -> Option<(gst::BufferPool, usize)> {
    // SAFETY: a live buffer, which holds a reference to its pool.
    let pool: Option<gst::BufferPool> = unsafe { from_glib_none((*buffer.as_ptr()).pool) };
    match pool {
        Some(pool) => (!pool.is::<XmemBufferPool>()).then(|| (pool, buffer.as_ptr().addr())),
        // An element in between has copied the buffer and not its memory.
        None => lender(buffer.meta::<gst::ParentBufferMeta>()?.parent()),
    }
}

/// Counts one more buffer of the pool as in use. Returns the count, and whether that is too many.
fn account(pool: &gst::BufferPool, buffer: usize) -> (Arc<AtomicU32>, Option<Scarcity>) {
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
        return (Arc::new(AtomicU32::new(1)), None);
    };
    let lent = lender.lent.fetch_add(1, Relaxed);
    // A pool can be configured anew while it has all its buffers.
    if lent == 0 && !matches!(lender.most, Most::Seen(..)) {
        lender.most = Most::of(pool);
    }
    lender.most.note(buffer);
    (lender.lent.clone(), lender.most.scarcity(lent))
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
