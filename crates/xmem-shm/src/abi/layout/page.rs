// SPDX-License-Identifier: MPL-2.0

//! A consumer's lease page.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::shape::PAGE_HEADER_WORDS;
use super::{OpenError, Shape};
use crate::fault::{self, Point};
use crate::os::mapping::{Access, Mapping};
use crate::os::memfd::{self, Seal};
use crate::os::wake_socket;
use crate::protocol::wake::{self, Sleeper};
use crate::sync::{AtomicU32, AtomicU64};

// Words of the header, in 64 bits. The consumer writes all except FLAGS.
const P_CURSOR: usize = 0;
const P_FLAGS: usize = 1;
const P_REGIONS_SEEN: usize = 2;
const P_RECEIVED: usize = 3;
const P_MISSED: usize = 4;
const P_COPIED: usize = 5;
const P_LATENCY: usize = 6;
const P_DROPPED: usize = 7;
const P_WAKE: usize = 8; // in a separate cache line, as a 32-bit word
const P_KEEP_FOR: usize = 9; // in the line of the wake word, which the producer reads for each frame
const P_SKIPPED: usize = 10;
const P_END_SEEN: usize = 11;

/// The cursor of a consumer that takes no more frames.
pub const CURSOR_LEFT: u64 = u64::MAX;

/// The `regions_seen` of a consumer that has unmapped all regions except those of held frames.
pub const REGIONS_LET_GO: u64 = u64::MAX;

/// The producer disconnected the consumer.
pub const FLAG_CUT_OFF: u64 = 1;
/// The producer no longer waits for this consumer. Its leases are still valid.
pub const FLAG_TIMED_OUT: u64 = 2;

/// How often a consumer read a frame: the generation in the high half, and the number in the low half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads(pub u64);

impl Reads {
    /// The number of reads of this generation.
    pub fn of(self, generation: u32) -> u32 {
        if (self.0 >> 32) as u32 == generation {
            self.0 as u32
        } else {
            0
        }
    }

    /// After one more read of this generation.
    pub fn and_one_of(self, generation: u32) -> Self {
        let reads = self.of(generation).saturating_add(1);
        Self(u64::from(generation) << 32 | u64::from(reads))
    }
}

/// The mapped lease page of a consumer.
#[derive(Debug)]
pub struct LeasePage {
    mapping: Mapping,
    shape: Shape,
}

impl LeasePage {
    /// Creates a lease page and its sealed descriptor.
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

    /// The version of the list of regions up to which the consumer has unmapped removed regions.
    #[inline]
    pub fn regions_seen(&self) -> &AtomicU64 {
        self.header(P_REGIONS_SEEN)
    }

    /// The number of frames that the consumer received.
    #[inline]
    pub fn received(&self) -> &AtomicU64 {
        self.header(P_RECEIVED)
    }

    /// The number of frames that the consumer missed.
    #[inline]
    pub fn missed(&self) -> &AtomicU64 {
        self.header(P_MISSED)
    }

    /// The number of frames that the consumer skipped, because it limits its rate.
    pub fn skipped(&self) -> &AtomicU64 {
        self.header(P_SKIPPED)
    }

    /// The number of frames that the consumer copied, because its budget was used up or it needs another layout.
    pub fn copied(&self) -> &AtomicU64 {
        self.header(P_COPIED)
    }

    /// The number of frames that the consumer took and dropped.
    pub fn dropped(&self) -> &AtomicU64 {
        self.header(P_DROPPED)
    }

    /// Nanoseconds from the publication of a frame to its reception, as a moving average.
    #[inline]
    pub fn latency(&self) -> &AtomicU64 {
        self.header(P_LATENCY)
    }

    /// How long frames are kept for the consumer after they were published, in nanoseconds. The producer sets it once, before the
    /// consumer joins.
    #[inline]
    pub fn keep_for(&self) -> &AtomicU64 {
        self.header(P_KEEP_FOR)
    }

    /// The sequence after the last end of the stream that the consumer got. 0: none.
    pub fn end_seen(&self) -> &AtomicU64 {
        self.header(P_END_SEEN)
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

    /// The last generation that the consumer took of each slot.
    #[inline]
    pub fn taken(&self) -> &[AtomicU32] {
        let slots = self.shape.slots();
        self.mapping
            .words32(PAGE_HEADER_WORDS * 8 + slots * 4, slots)
    }

    /// The reads of buffers by number, one word per slot. Empty in other pools.
    pub fn reads(&self) -> &[AtomicU64] {
        let at = PAGE_HEADER_WORDS * 8 + self.shape.slots() * 2 * 4;
        self.mapping.words64(at, self.shape.records())
    }

    /// Wakes the consumer if it sleeps on the wake word. Makes a system call only then. For the producer. Returns whether the consumer
    /// waits for its wake socket, so that [`wake_by_socket`](Self::wake_by_socket) must be called.
    pub fn wake(&self) -> bool {
        let Some(sleeper) = wake::wake(self.wake_word()) else {
            return false;
        };
        fault::point(Point::WakeChanged);
        if sleeper == Sleeper::Socket {
            return true;
        }
        crate::os::futex::wake_one(self.wake_word());
        fault::point(Point::WakeSent);
        false
    }

    /// Wakes the consumer by the producer's end of its wake socket.
    pub fn wake_by_socket(&self, socket: impl AsFd) {
        if !wake_socket::wake(socket) {
            wake::mark_by_socket(self.wake_word());
        }
        fault::point(Point::WakeSent);
    }

    /// Wakes the consumer, also if a producer was killed or stopped while it did so. For the consumer's own process. A consumer that
    /// waits by its socket must be woken by its own process as well.
    pub fn wake_own(&self) {
        wake::change(self.wake_word());
        crate::os::futex::wake_one(self.wake_word());
    }

    /// Begins a wait for the wake socket. Call [`wake::announced`] after this, also for several pages at once, and check for work before
    /// the wait.
    pub fn announce_by_socket(&self) {
        wake::announce_by_socket(self.wake_word());
    }

    /// Sleeps like [`sleep`](Self::sleep), but the producer does not wake the consumer. Its own process does.
    pub fn pause(&self, time: std::time::Duration, ready: impl FnOnce() -> bool) {
        let value = wake::current(self.wake_word());
        if !ready() {
            crate::os::futex::wait(self.wake_word(), value, Some(time));
        }
    }

    /// Sleeps unless `ready` returns true.
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
    fn reads_are_of_one_generation() {
        let twice = Reads(0).and_one_of(7).and_one_of(7);
        assert_eq!((twice.of(7), twice.of(8)), (2, 0));
        assert_eq!(twice.and_one_of(8).of(8), 1);
        // Whatever is in the word.
        assert_eq!(Reads(u64::MAX).and_one_of(u32::MAX).of(u32::MAX), u32::MAX);
    }

    #[test]
    fn only_pools_of_buffers_have_a_word_of_reads_for_each_slot() {
        for (by_number, words) in [(true, 3), (false, 0)] {
            let shape = Shape {
                by_number,
                ..shape(3)
            };
            let (page, _fd) = LeasePage::create(shape).unwrap();
            assert_eq!(page.reads().len(), words);
            assert_eq!(page.taken().len(), 3);
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
