// SPDX-License-Identifier: MPL-2.0

//! The right to read a frame, whichever process published it.
#![allow(unsafe_code)] // slices over shared memory, for as long as the protocol keeps writers out

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::consumer::held::Held;
use crate::meta::FrameMeta;
use crate::producer::OwnHold;
use crate::sticky::Sticky;

/// What keeps a frame where it is.
#[derive(Debug, Clone)]
pub(crate) enum Hold {
    /// A reference of the producer that published it.
    Own(Arc<OwnHold>),
    /// A lease of a consumer.
    Consumer(Arc<Held>),
}

/// The right to read a published frame. As long as a clone of it lives, the frame stays as it is.
///
/// Clones are local to the process and cost no more than an `Arc`; the last one to go ends the lease, from whatever
/// thread. A lease outlives the [`Consumer`](crate::Consumer) or [`Producer`](crate::Producer) it came from, and the
/// process that published the frame.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use xmem_core::{Consumer, FrameMeta, Producer};
///
/// let producer = Producer::builder(pool).build()?;
/// let mut consumer = Consumer::builder(pool).connect()?;
/// let mut slot = producer.acquire(4)?;
/// slot.as_mut_slice()[..4].copy_from_slice(b"abcd");
/// slot.publish(FrameMeta::new(4))?;
///
/// let frame = consumer.receive(None)?;
/// drop((consumer, producer));
/// assert_eq!(&frame[..], b"abcd");
/// assert_eq!(frame.meta().sequence, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ReadLease {
    hold: Hold,
    meta: Arc<FrameMeta>,
    sticky: Arc<Sticky>,
}

/// Whether a payload lies inside a slot of this size.
pub(crate) fn payload_fits(meta: &FrameMeta, slot_len: usize) -> bool {
    meta.offset
        .checked_add(meta.size)
        .is_some_and(|end| end <= slot_len as u64)
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLease")
            .field("pool", &self.pool())
            .field("sequence", &self.meta.sequence)
            .field("slot", &self.meta.slot)
            .field("generation", &self.meta.generation)
            .field("size", &self.meta.size)
            .finish_non_exhaustive()
    }
}

impl ReadLease {
    /// A lease on a frame whose payload lies inside its slot (`payload_fits`).
    pub(crate) fn new(hold: Hold, meta: FrameMeta, sticky: Arc<Sticky>) -> Self {
        let lease = Self {
            hold,
            meta: Arc::new(meta),
            sticky,
        };
        debug_assert!(payload_fits(&lease.meta, lease.slot_len()));
        lease
    }

    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The slot's first byte.
    pub fn slot_ptr(&self) -> *const u8 {
        match &self.hold {
            Hold::Own(hold) => hold.ptr(),
            Hold::Consumer(held) => held.ptr(),
        }
    }

    /// The slot's size in bytes.
    pub fn slot_len(&self) -> usize {
        match &self.hold {
            Hold::Own(hold) => hold.len(),
            Hold::Consumer(held) => held.len(),
        }
    }

    /// The payload's first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.slot_ptr().wrapping_add(self.meta.offset as usize)
    }

    /// The payload's size in bytes.
    pub fn len(&self) -> usize {
        self.meta.size as usize
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload.
    pub fn data(&self) -> &[u8] {
        // SAFETY: the payload lies inside the slot (checked before `new`), the slot inside a mapping that the hold keeps, and while
        // the hold lives no producer that follows the protocol writes there. One that does not can tear its own
        // frames; bytes have no invalid values.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// What is known of the frame besides its bytes.
    pub fn meta(&self) -> &FrameMeta {
        &self.meta
    }

    /// The sticky state that the frame belongs to.
    pub fn sticky(&self) -> &Arc<Sticky> {
        &self.sticky
    }

    /// The name of the frame's pool.
    pub fn pool(&self) -> &str {
        match &self.hold {
            Hold::Own(hold) => hold.pool_name(),
            Hold::Consumer(held) => held.pool_name(),
        }
    }

    /// Whether a producer of this process published the frame, and this is its own reference.
    pub fn is_local(&self) -> bool {
        matches!(self.hold, Hold::Own(_))
    }
}

impl Deref for ReadLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.data()
    }
}

impl AsRef<[u8]> for ReadLease {
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}
