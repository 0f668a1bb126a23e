// SPDX-License-Identifier: MPL-2.0

//! A consumer's lease page.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{OpenError, Shape};
use crate::fault::{self, Point};
use crate::os::mapping::{Access, Mapping};
use crate::os::memfd::{self, Seal};
use crate::protocol::wake;
use crate::sync::{AtomicU32, AtomicU64};

pub(super) const PAGE_HEADER_WORDS: usize = 16;
// Words of the header, in 64 bits. The consumer writes all but FLAGS.
const P_CURSOR: usize = 0;
const P_FLAGS: usize = 1;
const P_REGIONS_SEEN: usize = 2;
const P_RECEIVED: usize = 3;
const P_MISSED: usize = 4;
const P_COPIED: usize = 5;
const P_LATENCY: usize = 6;
const P_DROPPED: usize = 7;
const P_WAKE: usize = 8; // in its own cache line, as a 32-bit word

/// A cursor that means: the consumer takes no more frames.
pub const CURSOR_LEFT: u64 = u64::MAX;

/// A `regions_seen` that means: only held frames keep regions mapped.
pub const REGIONS_LET_GO: u64 = u64::MAX;

/// The producer cut the consumer off.
pub const FLAG_CUT_OFF: u64 = 1;
/// The producer does not wait for this consumer any more; its leases hold.
pub const FLAG_TIMED_OUT: u64 = 2;

/// A consumer's lease page, mapped.
#[derive(Debug)]
pub struct LeasePage {
    mapping: Mapping,
    shape: Shape,
}

impl LeasePage {
    /// Makes a lease page and its sealed descriptor.
    pub fn create(shape: Shape) -> io::Result<(Self, OwnedFd)> {
        let len = shape.page_len();
        let fd = memfd::create("xmem-lease", len)?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite)?;
        memfd::seal(&fd, Seal::Size)?;
        Ok((Self { mapping, shape }, fd))
    }

    /// Maps a descriptor that a producer sent.
    pub fn open(fd: impl AsFd, shape: Shape) -> Result<Self, OpenError> {
        let invalid = |reason| OpenError::Invalid("lease page", reason);
        let len = memfd::sealed_len(&fd, Seal::Size).map_err(invalid)?;
        if len < shape.page_len() {
            return Err(invalid("it is too small"));
        }
        let mut mapping =
            Mapping::new(&fd, shape.page_len(), Access::ReadWrite).map_err(OpenError::System)?;
        // A forked child must not write the words of its parent.
        let _ = mapping.keep_from_children();
        Ok(Self { mapping, shape })
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "`create` and `open` map the whole header"
    )]
    fn header(&self, word: usize) -> &AtomicU64 {
        &self.mapping.words64(0, PAGE_HEADER_WORDS)[word]
    }

    /// The sequence of the next frame that the consumer takes.
    #[inline]
    pub fn cursor(&self) -> &AtomicU64 {
        self.header(P_CURSOR)
    }

    /// [`FLAG_CUT_OFF`] and [`FLAG_TIMED_OUT`]. The producer writes this word.
    #[inline]
    pub fn flags(&self) -> &AtomicU64 {
        self.header(P_FLAGS)
    }

    /// The version of the list up to which the consumer has unmapped regions that left it.
    #[inline]
    pub fn regions_seen(&self) -> &AtomicU64 {
        self.header(P_REGIONS_SEEN)
    }

    /// How many frames the consumer received.
    #[inline]
    pub fn received(&self) -> &AtomicU64 {
        self.header(P_RECEIVED)
    }

    /// How many frames the consumer missed.
    #[inline]
    pub fn missed(&self) -> &AtomicU64 {
        self.header(P_MISSED)
    }

    /// How many frames the consumer copied, because its budget was used up or it needs another layout.
    pub fn copied(&self) -> &AtomicU64 {
        self.header(P_COPIED)
    }

    /// How many frames the consumer took and gave up.
    pub fn dropped(&self) -> &AtomicU64 {
        self.header(P_DROPPED)
    }

    /// Nanoseconds from the publication of a frame to its reception, smoothed.
    #[inline]
    pub fn latency(&self) -> &AtomicU64 {
        self.header(P_LATENCY)
    }

    /// Its pages, for a device to write lease words in.
    pub fn memory(&self) -> (*mut u8, usize) {
        let len = self
            .mapping
            .len()
            .next_multiple_of(rustix::param::page_size());
        (self.mapping.ptr(), len)
    }

    #[expect(clippy::indexing_slicing, reason = "as in `header`")]
    fn wake_word(&self) -> &AtomicU32 {
        &self.mapping.words32(P_WAKE * 8, 1)[0]
    }

    /// The lease words, one per slot.
    #[inline]
    pub fn leases(&self) -> &[AtomicU32] {
        self.mapping
            .words32(PAGE_HEADER_WORDS * 8, self.shape.slots())
    }

    /// The last generation that the consumer took, one word per slot.
    #[inline]
    pub fn taken(&self) -> &[AtomicU32] {
        let slots = self.shape.slots();
        self.mapping
            .words32(PAGE_HEADER_WORDS * 8 + slots * 4, slots)
    }

    /// Wakes the consumer if it sleeps. A system call only if it does.
    pub fn wake(&self) {
        if wake::wake(self.wake_word()) {
            fault::point(Point::WakeChanged);
            crate::os::futex::wake_one(self.wake_word());
            fault::point(Point::WakeSent);
        }
    }

    /// Sleeps unless `ready` finds something to do.
    pub fn sleep(&self, timeout: Option<std::time::Duration>, ready: impl FnOnce() -> bool) {
        let value = wake::prepare(self.wake_word());
        if !ready() {
            crate::os::futex::wait(self.wake_word(), value, timeout);
        }
        wake::awake(self.wake_word());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::limits::MAX_SLOTS;

    fn shape(max_slots: u32) -> Shape {
        Shape {
            max_slots,
            ring_len: 64,
            by_number: false,
        }
    }

    #[test]
    fn other_memory_is_refused() {
        let fd = memfd::create("t", 1 << 16).unwrap();
        assert!(LeasePage::open(&fd, shape(4)).is_err(), "not sealed");
        memfd::seal(&fd, Seal::Size).unwrap();
        assert!(LeasePage::open(&fd, shape(4)).is_ok());
        assert!(LeasePage::open(&fd, shape(MAX_SLOTS)).is_err(), "too small");
    }
}
