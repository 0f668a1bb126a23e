// SPDX-License-Identifier: MPL-2.0

//! Where each word lies in the two kinds of shared control memory. Accessors only; the rules are in `protocol`.
//!
//! Control memory (written by the producer, read-only for consumers), in 64-bit words:
//!
//! | words | what |
//! |---|---|
//! | `0..16` | constants: magic, version, sizes |
//! | `16..32` | what changes with every frame |
//! | `max_slots` | slot words |
//! | `max_slots` in 32 bits each | ids of the regions that are in use |
//! | `max_slots × 64` | the newest entry of each slot |
//! | `ring_len × 64` | the ring of entries |
//!
//! Lease page (one per consumer, written by both sides): 16 words of 64 bits, then a lease word and a `taken` word of
//! 32 bits per slot.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::abi::budget::Share;
use crate::abi::entry::{Entry, EntryWords};
use crate::abi::limits::MAX_SLOTS;
use crate::abi::meta::FrameMeta;
use crate::fault::{self, Point};
use crate::os::mapping::{Access, Mapping};
use crate::os::memfd::{self, Seal};
use crate::protocol::regions;
use crate::protocol::ring::{self, ENTRY_WORDS, PAYLOAD_WORDS};
use crate::protocol::wake;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

const MAGIC: u64 = u64::from_le_bytes(*b"xmemctl\0");
/// Raised with every change to what is shared: memory, messages, or the meaning of either.
pub const VERSION: u32 = 5;

const MAX_RING_LEN: u32 = 1 << 18;

// Constants, in words.
const W_MAGIC: usize = 0;
const W_VERSION: usize = 1;
const W_MAX_SLOTS: usize = 2;
const W_RING_LEN: usize = 3;
const W_POOL_ID: usize = 4;
const W_DELIVERY: usize = 5;
const W_HISTORY: usize = 6;
// What changes.
const W_HEAD: usize = 16;
const W_EOS_AT: usize = 17;
const W_CLOSED: usize = 18;
const W_WAITING: usize = 19;
const W_REGIONS_VERSION: usize = 20;
const W_OLDEST: usize = 21;
const W_SHARE: usize = 22;
const HEADER_WORDS: usize = 32;

/// The sizes from which all places are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The largest number of slots: 1 to [`MAX_SLOTS`].
    pub max_slots: u32,
    /// Entries of the ring, a power of two.
    pub ring_len: u32,
}

impl Shape {
    /// The shape of a pool of at most `max_slots` slots. The same slot may be published more than once, so the ring
    /// is longer than there are slots.
    pub fn new(max_slots: u32) -> Self {
        Self {
            max_slots,
            ring_len: (max_slots * 2).next_power_of_two().max(64),
        }
    }

    fn valid(self) -> bool {
        (1..=MAX_SLOTS).contains(&self.max_slots)
            && self.ring_len.is_power_of_two()
            && (1..=MAX_RING_LEN).contains(&self.ring_len)
    }

    fn slots(self) -> usize {
        self.max_slots as usize
    }

    fn regions_at(self) -> usize {
        HEADER_WORDS + self.slots()
    }

    fn records_at(self) -> usize {
        // Whole cache lines, so that entries do not share one with what lies before.
        (self.regions_at() + self.slots().div_ceil(2)).next_multiple_of(8)
    }

    fn ring_at(self) -> usize {
        self.records_at() + self.slots() * ENTRY_WORDS
    }

    fn control_len(self) -> usize {
        (self.ring_at() + self.ring_len as usize * ENTRY_WORDS) * 8
    }

    fn page_len(self) -> usize {
        PAGE_HEADER_WORDS * 8 + self.slots() * 2 * 4
    }
}

/// Memory that a producer sent cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Which memory, and what is wrong with it.
    Nonsense(&'static str, &'static str),
    /// This process could not map it.
    System(io::Error),
}

/// What does not change in a pool's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constants {
    /// The sizes of the control memory.
    pub shape: Shape,
    /// A random number that identifies the pool.
    pub pool_id: u64,
    /// Whether the producer waits for consumers instead of overtaking them.
    pub lossless: bool,
    /// How many frames the producer keeps for consumers that join later. At least 1.
    pub history: u32,
}

/// Control memory, mapped.
#[derive(Debug)]
pub struct Control {
    mapping: Mapping,
    constants: Constants,
}

impl Control {
    /// Makes control memory and its sealed descriptor.
    pub fn create(constants: Constants) -> io::Result<(Self, OwnedFd)> {
        let len = constants.shape.control_len();
        let fd = memfd::create("xmem-control", len)?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite)?;
        memfd::seal(&fd, Seal::SizeAndFutureWrites)?;
        let fd = memfd::for_reading(fd)?;
        let control = Self { mapping, constants };
        for (word, value) in [
            (W_VERSION, u64::from(VERSION)),
            (W_MAX_SLOTS, constants.shape.max_slots.into()),
            (W_RING_LEN, constants.shape.ring_len.into()),
            (W_POOL_ID, constants.pool_id),
            (W_DELIVERY, constants.lossless.into()),
            (W_HISTORY, constants.history.into()),
            (W_MAGIC, MAGIC),
        ] {
            control.header(word).store(value, Ordering::Relaxed);
        }
        Ok((control, fd))
    }

    /// Maps a descriptor that a producer sent, if it is what it should be.
    pub fn open(fd: impl AsFd) -> Result<Self, OpenError> {
        let nonsense = |reason| OpenError::Nonsense("control memory", reason);
        let len = memfd::sealed_len(&fd, Seal::SizeAndFutureWrites).map_err(nonsense)?;
        if len < HEADER_WORDS * 8 {
            return Err(nonsense("it is too small"));
        }
        // The header alone first: the sizes in it are checked before they are used.
        let map = |len| Mapping::new(&fd, len, Access::Read).map_err(OpenError::System);
        let mapping = map(HEADER_WORDS * 8)?;
        let header = mapping.words64(0, HEADER_WORDS);
        let read = |word: usize| {
            let word = header.get(word);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        if read(W_MAGIC) != MAGIC {
            return Err(nonsense("it is something else"));
        }
        if read(W_VERSION) != u64::from(VERSION) {
            return Err(nonsense("it has another version"));
        }
        let shape = Shape {
            max_slots: u32::try_from(read(W_MAX_SLOTS)).unwrap_or(0),
            ring_len: u32::try_from(read(W_RING_LEN)).unwrap_or(0),
        };
        if !shape.valid() || shape.control_len() > len {
            return Err(nonsense("it has impossible sizes"));
        }
        let constants = Constants {
            shape,
            pool_id: read(W_POOL_ID),
            lossless: read(W_DELIVERY) != 0,
            history: u32::try_from(read(W_HISTORY)).unwrap_or(1).max(1),
        };
        Ok(Self {
            mapping: map(shape.control_len())?,
            constants,
        })
    }

    /// The constants, as they were when the memory was mapped.
    #[inline]
    pub fn constants(&self) -> Constants {
        self.constants
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "`create` and `open` map the whole header"
    )]
    fn header(&self, word: usize) -> &AtomicU64 {
        &self.mapping.words64(0, HEADER_WORDS)[word]
    }

    /// How many frames were published: the sequence of the next one.
    #[inline]
    pub fn head(&self) -> u64 {
        let head = self.header(W_HEAD).load(Ordering::Relaxed);
        // Pairs with the release store in `set_head`: the entries below it are written.
        fence(Ordering::Acquire);
        head
    }

    /// Sets the sequence of the next frame. Write the entries below it first.
    #[inline]
    pub fn set_head(&self, head: u64) {
        self.header(W_HEAD).store(head, Ordering::Release);
    }

    /// The sequence at which the stream is over, if it is.
    #[inline]
    pub fn eos_at(&self) -> Option<u64> {
        self.header(W_EOS_AT).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets or clears the sequence at which the stream is over.
    pub fn set_eos_at(&self, sequence: Option<u64>) {
        let word = sequence.map_or(0, |sequence| sequence + 1);
        self.header(W_EOS_AT).store(word, Ordering::Release);
    }

    /// Whether the producer closed the pool. A head that is read after `true` is the last one.
    #[inline]
    pub fn closed(&self) -> bool {
        let closed = self.header(W_CLOSED).load(Ordering::Relaxed) != 0;
        // Pairs with the release store in `set_closed`: the head that is read after this is the last one.
        fence(Ordering::Acquire);
        closed
    }

    /// Marks the pool as closed. Store the last head first.
    pub fn set_closed(&self) {
        self.header(W_CLOSED).store(1, Ordering::Release);
    }

    /// How many of the producer's threads wait for consumers to give something back.
    #[inline]
    pub fn waiting(&self) -> &AtomicU64 {
        self.header(W_WAITING)
    }

    /// The oldest sequence that is kept for consumers; in a live pool they skip what is older. Not beyond the head.
    pub fn oldest(&self) -> u64 {
        self.header(W_OLDEST).load(Ordering::Relaxed)
    }

    /// Sets the oldest sequence that is kept.
    pub fn set_oldest(&self, sequence: u64) {
        self.header(W_OLDEST).store(sequence, Ordering::Relaxed);
    }

    /// The largest budget of a consumer.
    #[inline]
    pub fn share(&self) -> Share {
        Share::of_word(self.header(W_SHARE).load(Ordering::Relaxed))
    }

    /// Sets the largest budget of a consumer.
    pub fn set_share(&self, share: Share) {
        self.header(W_SHARE).store(share.word(), Ordering::Relaxed);
    }

    /// Changes when a region goes.
    #[inline]
    pub fn regions_version(&self) -> u32 {
        regions::version(self.header(W_REGIONS_VERSION))
    }

    /// The ids of the regions in use, 0 = none. As new as the version that was read before.
    pub fn region_ids(&self) -> impl Iterator<Item = u32> {
        regions::list(self.region_words())
    }

    /// Shows the ids of the regions in use, ascending, and the version.
    pub fn show_regions(&self, ids: impl Iterator<Item = u32>, version: u32) {
        regions::show(
            self.region_words(),
            self.header(W_REGIONS_VERSION),
            ids,
            version,
        );
    }

    fn region_words(&self) -> &[AtomicU32] {
        self.mapping.words32(
            self.constants.shape.regions_at() * 8,
            self.constants.shape.slots(),
        )
    }

    /// The word of a slot; `None` for a slot that there cannot be.
    #[inline]
    pub fn slot(&self, slot: u32) -> Option<&AtomicU64> {
        self.mapping
            .words64(HEADER_WORDS * 8, self.constants.shape.slots())
            .get(slot as usize)
    }

    fn entry(&self, word: usize) -> &[AtomicU64] {
        self.mapping.words64(word * 8, ENTRY_WORDS)
    }

    fn ring_entry(&self, sequence: u64) -> &[AtomicU64] {
        let at = (sequence & u64::from(self.constants.shape.ring_len - 1)) as usize;
        self.entry(self.constants.shape.ring_at() + at * ENTRY_WORDS)
    }

    fn slot_record(&self, slot: u32) -> &[AtomicU64] {
        if slot >= self.constants.shape.max_slots {
            return &[];
        }
        self.entry(self.constants.shape.records_at() + slot as usize * ENTRY_WORDS)
    }

    /// Writes the entry of a frame: into the ring, and as the newest one of its slot.
    pub fn write_entry(&self, entry: &Entry<&FrameMeta>) {
        let (sequence, words) = (entry.info.sequence, entry.encode());
        ring::write(self.slot_record(entry.info.slot), sequence, &words);
        ring::write(self.ring_entry(sequence), sequence, &words);
    }

    /// The entry of a sequence number, unless it is gone.
    pub fn read_entry(&self, sequence: u64) -> Option<EntryWords> {
        let mut words = [0; PAYLOAD_WORDS];
        ring::read(self.ring_entry(sequence), sequence, &mut words).then_some(words)
    }

    /// The newest entry of a slot, unless it is just being written.
    pub fn read_slot_record(&self, slot: u32) -> Option<EntryWords> {
        let mut words = [0; PAYLOAD_WORDS];
        ring::read_any(self.slot_record(slot), &mut words).then_some(words)
    }
}

const PAGE_HEADER_WORDS: usize = 16;
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
        let nonsense = |reason| OpenError::Nonsense("lease page", reason);
        let len = memfd::sealed_len(&fd, Seal::Size).map_err(nonsense)?;
        if len < shape.page_len() {
            return Err(nonsense("it is too small"));
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
    use crate::abi::frame_info::FrameInfo;

    fn constants(max_slots: u32) -> Constants {
        Constants {
            shape: Shape::new(max_slots),
            pool_id: 7,
            lossless: true,
            history: 2,
        }
    }

    #[test]
    fn a_consumer_sees_what_the_producer_wrote() {
        let (control, fd) = Control::create(constants(5)).unwrap();
        let view = Control::open(&fd).unwrap();
        assert_eq!(view.constants(), constants(5));
        control.set_head(3);
        control.set_eos_at(Some(0));
        control.slot(4).unwrap().store(9, Ordering::Relaxed);
        control.show_regions([3, 8].into_iter(), 1);
        let entry = Entry {
            region: 3,
            offset: 4096,
            len: 8192,
            attached: (4, 8),
            info: FrameInfo {
                sequence: 2,
                slot: 4,
                ..FrameInfo::default()
            },
            meta: &FrameMeta::default(),
        };
        control.write_entry(&entry);
        let words = entry.encode();
        assert_eq!(view.head(), 3);
        assert_eq!(view.eos_at(), Some(0));
        assert_eq!(view.slot(4).unwrap().load(Ordering::Relaxed), 9);
        assert!(view.slot(5).is_none());
        assert_eq!(view.region_ids().filter(|id| *id != 0).sum::<u32>(), 11);
        assert_eq!(view.regions_version(), 1);
        assert_eq!(view.read_entry(2), Some(words));
        assert_eq!(view.read_entry(2 + u64::from(Shape::new(5).ring_len)), None);
        assert_eq!(view.read_slot_record(4), Some(words));
        assert_eq!(view.read_slot_record(3), None);
    }

    #[test]
    fn parts_do_not_overlap() {
        for max_slots in [1, 2, 3, 255, 256] {
            let shape = Shape::new(max_slots);
            assert!(shape.valid());
            assert!(shape.regions_at() >= HEADER_WORDS + shape.slots());
            assert!(shape.records_at() * 2 >= shape.regions_at() * 2 + shape.slots());
            let (control, _fd) = Control::create(constants(max_slots)).unwrap();
            assert_eq!(control.region_words().len(), shape.slots());
            assert_eq!(control.slot_record(max_slots - 1).len(), ENTRY_WORDS);
            assert_eq!(control.ring_entry(u64::MAX).len(), ENTRY_WORDS);
        }
    }

    #[test]
    fn a_consumer_cannot_write_the_control_memory() {
        let (_control, fd) = Control::create(constants(4)).unwrap();
        assert!(Mapping::new(&fd, 4096, Access::ReadWrite).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    }

    #[test]
    fn other_memory_is_refused() {
        let fd = memfd::create("t", 1 << 16).unwrap();
        assert!(Control::open(&fd).is_err(), "not sealed");
        memfd::seal(&fd, Seal::Size).unwrap();
        assert!(Control::open(&fd).is_err(), "no magic");
        assert!(
            LeasePage::open(&fd, Shape::new(MAX_SLOTS)).is_err(),
            "too small"
        );
        let (_control, fd) = Control::create(constants(4)).unwrap();
        assert!(Control::open(&fd).is_ok());
        assert!(Control::open(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
