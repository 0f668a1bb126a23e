// SPDX-License-Identifier: MPL-2.0

//! The control memory of a pool.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::shape::{
    EXTENSION_STRIDE, HEADER_WORDS, LAYOUT_STRIDE, Offsets, PLACE_STRIDE, RECORD_WORDS,
};
use super::{Constants, OpenError, Shape, VERSION};
use crate::abi::budget::Share;
use crate::abi::entry::Entry;
use crate::abi::entry::FrameInfo;
use crate::abi::extension::{EXTENSION_WORDS, Extension};
use crate::abi::frame_layout::{FrameLayout, LAYOUT_WORDS, LayoutId, LayoutWords};
use crate::abi::meta::FrameMeta;
use crate::abi::place::{PLACE_WORDS, SharedPlace};
use crate::fault::{self, Point};
use crate::os::mapping::{Access, Mapping};
use crate::os::memfd::{self, Seal};
use crate::prefetch;
use crate::protocol::regions;
use crate::protocol::ring::{self, ENTRY_WORDS, PAYLOAD_WORDS};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Words of a cache line.
const LINE_WORDS: usize = 8;

const MAGIC: u64 = u64::from_le_bytes(*b"xmemctl\0");

// Constants, in words.
const W_MAGIC: usize = 0;
const W_VERSION: usize = 1;
const W_MAX_SLOTS: usize = 2;
const W_RING_LEN: usize = 3;
const W_POOL_ID: usize = 4;
const W_DELIVERY: usize = 5;
const W_HISTORY: usize = 6;
const W_BY_NUMBER: usize = 7;
// The words that change. Consumers read the first line of them for each frame, so of these only the head changes that often.
const W_HEAD: usize = 16;
const W_EOS_AT: usize = 17;
const W_CLOSED: usize = 18;
const W_WAITING: usize = 19;
const W_REGIONS_VERSION: usize = 20;
const W_SHARE: usize = 22;
// In the second line: the producer writes it after the head, when consumers read the first line.
const W_OLDEST: usize = 24;

/// The mapped control memory.
#[derive(Debug)]
pub struct Control {
    mapping: Mapping,
    constants: Constants,
    /// Computed once, because each frame needs some of them several times.
    at: Offsets,
}

impl Control {
    /// Creates control memory and its sealed descriptor.
    pub fn create(constants: Constants) -> io::Result<(Self, OwnedFd)> {
        let at = Offsets::of(constants.shape);
        let len = at.len();
        let fd = memfd::create("xmem-control", len)?;
        let mapping = Mapping::new(&fd, len, Access::ReadWrite)?;
        memfd::seal(&fd, Seal::SizeAndFutureWrites)?;
        let fd = memfd::for_reading(fd)?;
        let control = Self {
            mapping,
            constants,
            at,
        };
        for (word, value) in [
            (W_VERSION, u64::from(VERSION)),
            (W_MAX_SLOTS, constants.shape.max_slots.into()),
            (W_RING_LEN, constants.shape.ring_len.into()),
            (W_POOL_ID, constants.pool_id),
            (W_DELIVERY, constants.lossless.into()),
            (W_HISTORY, constants.history.into()),
            (W_BY_NUMBER, constants.shape.by_number.into()),
            (W_MAGIC, MAGIC),
        ] {
            control.header(word).store(value, Ordering::Relaxed);
        }
        Ok((control, fd))
    }

    /// Maps a descriptor that a producer sent, if it is valid control memory.
    pub fn open(fd: impl AsFd) -> Result<Self, OpenError> {
        let invalid = |reason| OpenError::Invalid("control memory", reason);
        let len = memfd::sealed_len(&fd, Seal::SizeAndFutureWrites).map_err(invalid)?;
        if len < HEADER_WORDS * 8 {
            return Err(invalid("it is too small"));
        }
        // Map only the header first, because the sizes in it must be checked before they are used.
        let map = |len| Mapping::new(&fd, len, Access::Read).map_err(OpenError::System);
        let mapping = map(HEADER_WORDS * 8)?;
        let header = mapping.words64(0, HEADER_WORDS);
        let read = |word: usize| {
            let word = header.get(word);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        };
        if read(W_MAGIC) != MAGIC {
            return Err(invalid("it is something else"));
        }
        if read(W_VERSION) != u64::from(VERSION) {
            return Err(invalid("it has another version"));
        }
        let shape = Shape {
            max_slots: u32::try_from(read(W_MAX_SLOTS)).unwrap_or(0),
            ring_len: u32::try_from(read(W_RING_LEN)).unwrap_or(0),
            by_number: read(W_BY_NUMBER) != 0,
        };
        if !shape.is_valid() {
            return Err(invalid("it has impossible sizes"));
        }
        let at = Offsets::of(shape);
        if at.len() > len {
            return Err(invalid("it has impossible sizes"));
        }
        let constants = Constants {
            shape,
            pool_id: read(W_POOL_ID),
            lossless: read(W_DELIVERY) != 0,
            history: u32::try_from(read(W_HISTORY))
                .unwrap_or(1)
                .clamp(1, shape.ring_len),
        };
        Ok(Self {
            mapping: map(at.len())?,
            constants,
            at,
        })
    }

    /// The constants, as read when the memory was mapped.
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

    /// The sequence of the next entry, which is the number of published entries.
    #[inline]
    pub fn head(&self) -> u64 {
        let head = self.header(W_HEAD).load(Ordering::Relaxed);
        // Pairs with the release store in `set_head`: the entries below the head are written.
        fence(Ordering::Acquire);
        head
    }

    /// Sets the sequence of the next entry. The entries below it must be written before.
    #[inline]
    pub fn set_head(&self, head: u64) {
        self.header(W_HEAD).store(head, Ordering::Release);
    }

    /// The sequence at which the stream has ended, if it has.
    #[inline]
    pub fn eos_at(&self) -> Option<u64> {
        self.header(W_EOS_AT).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets or clears the sequence at which the stream ends.
    pub fn set_eos_at(&self, sequence: Option<u64>) {
        let word = sequence.map_or(0, |sequence| sequence + 1);
        self.header(W_EOS_AT).store(word, Ordering::Release);
    }

    /// Whether the producer has closed the pool. A head that is read after `true` is final.
    #[inline]
    pub fn closed(&self) -> bool {
        let closed = self.header(W_CLOSED).load(Ordering::Relaxed) != 0;
        // Pairs with the release store in `set_closed`: a head that is read after this is final.
        fence(Ordering::Acquire);
        closed
    }

    /// Marks the pool as closed. The final head must be stored before.
    pub fn set_closed(&self) {
        self.header(W_CLOSED).store(1, Ordering::Release);
    }

    /// The number of the producer's threads that wait for consumers to release something.
    #[inline]
    pub fn waiting(&self) -> &AtomicU64 {
        self.header(W_WAITING)
    }

    /// The oldest sequence that is kept for consumers. In a live pool they skip older ones. Never larger than the head.
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

    /// The version of the list of regions, which changes when a region is removed.
    #[inline]
    pub fn regions_version(&self) -> u32 {
        regions::version(self.header(W_REGIONS_VERSION))
    }

    /// The IDs of the regions in use; 0: none. At least as new as the version that was read before.
    pub fn region_ids(&self) -> impl Iterator<Item = u32> {
        regions::list(self.region_words())
    }

    /// Stores the IDs of the regions in use, ascending, and the version.
    pub fn show_regions(&self, ids: impl Iterator<Item = u32>, version: u32) {
        regions::show(
            self.region_words(),
            self.header(W_REGIONS_VERSION),
            ids,
            version,
        );
    }

    fn region_words(&self) -> &[AtomicU32] {
        let count = self.constants.shape.max_regions();
        self.mapping.words32(self.at.regions * 8, count)
    }

    /// The word of a slot; `None` if the number exceeds the maximum.
    #[inline]
    pub fn slot(&self, slot: u32) -> Option<&AtomicU64> {
        self.mapping
            .words64(HEADER_WORDS * 8, self.constants.shape.slots())
            .get(slot as usize)
    }

    fn words(&self, word: usize, count: usize) -> &[AtomicU64] {
        self.mapping.words64(word * 8, count)
    }

    /// The words of one row of the table at `at`.
    fn row(&self, at: usize, row: usize, stride: usize) -> &[AtomicU64] {
        self.words(at + row * stride, stride)
    }

    fn place_row(&self, slot: u32) -> &[AtomicU64] {
        if slot >= self.constants.shape.max_slots {
            return &[];
        }
        self.row(self.at.places, slot as usize, PLACE_STRIDE)
    }

    /// Stores the place of a slot. Only before the slot is first used there, because consumers read it without a lock.
    pub fn set_place(&self, slot: u32, place: &SharedPlace) {
        ring::store(self.place_row(slot), &place.encode());
        fault::point(Point::PlaceStored);
    }

    /// The place of a slot. It is the place of an entry's frame if a lease on that frame [is
    /// taken](crate::protocol::lease::hold) afterwards. `None`: there is no such slot, or its memory is of an unknown kind.
    #[inline]
    pub fn place(&self, slot: u32) -> Option<SharedPlace> {
        let row = self.place_row(slot).first_chunk::<PLACE_WORDS>()?;
        SharedPlace::decode(row.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    fn layout_row(&self, id: LayoutId) -> &[AtomicU64] {
        self.row(self.at.layouts, id.index(), LAYOUT_STRIDE)
    }

    /// Stores a layout. Once, before the first entry that refers to it.
    pub fn set_layout(&self, id: LayoutId, layout: &FrameLayout) {
        ring::store(self.layout_row(id), &layout.encode());
        fault::point(Point::LayoutStored);
    }

    /// The words of a layout that an entry refers to.
    pub fn layout(&self, id: LayoutId) -> LayoutWords {
        let mut words = [0; LAYOUT_WORDS];
        for (value, word) in words.iter_mut().zip(self.layout_row(id)) {
            *value = word.load(Ordering::Relaxed);
        }
        words
    }

    fn ring_index(&self, sequence: u64) -> usize {
        (sequence & u64::from(self.constants.shape.ring_len - 1)) as usize
    }

    fn ring_entry(&self, sequence: u64) -> &[AtomicU64] {
        self.row(self.at.ring, self.ring_index(sequence), ENTRY_WORDS)
    }

    /// The next entry is written soon, for the frame in this slot.
    #[inline]
    pub fn expect_entry(&self, slot: u32) {
        if let Some(word) = self.slot(slot) {
            prefetch::to_write(word);
        }
        for line in self.ring_entry(self.head()).chunks(LINE_WORDS) {
            prefetch::to_write(line.as_ptr());
        }
        prefetch::to_write(self.header(W_HEAD));
    }

    fn extension(&self, sequence: u64) -> &[AtomicU64] {
        let index = self.ring_index(sequence);
        self.row(self.at.extensions, index, EXTENSION_STRIDE)
    }

    /// The entry and the extension of a slot's record.
    fn record(&self, slot: u32) -> Option<(&[AtomicU64], &[AtomicU64])> {
        let shape = self.constants.shape;
        if !shape.by_number || slot >= shape.max_slots {
            return None;
        }
        self.row(self.at.records, slot as usize, RECORD_WORDS)
            .split_at_checked(ENTRY_WORDS)
    }

    /// Writes the entry of a frame to the ring, and with buffers by number also to the record of its slot. `attached`,
    /// `layout`: as in [`Entry::new`].
    pub fn write_entry(
        &self,
        info: &FrameInfo,
        meta: &FrameMeta,
        attached: (u64, u64),
        layout: Option<LayoutId>,
    ) {
        let sequence = info.sequence;
        if self.constants.shape.by_number {
            self.write_record(info, meta, attached);
        }
        let entry = Entry::new(info, meta, attached, layout);
        let words = self.ring_entry(sequence);
        if entry.has_extension() {
            write_extended(words, self.extension(sequence), &entry, meta);
        } else {
            ring::write(words, sequence, entry.words(), None);
        }
    }

    #[inline(never)]
    fn write_record(&self, info: &FrameInfo, meta: &FrameMeta, attached: (u64, u64)) {
        let Some((words, room)) = self.record(info.slot) else {
            return;
        };
        write_extended(words, room, &Entry::new(info, meta, attached, None), meta);
    }

    /// Whether the entry with this sequence is written. It counts as published only below the [head](Self::head).
    #[inline]
    pub fn has_entry(&self, sequence: u64) -> bool {
        ring::is_written(self.ring_entry(sequence), sequence)
    }

    /// This entry is written, and is read soon, as is the head.
    #[inline]
    pub fn expect_to_read(&self, sequence: u64) {
        prefetch::to_read(self.header(W_HEAD));
        if let Some(word) = self.ring_entry(sequence).get(LINE_WORDS) {
            prefetch::to_read(word);
        }
    }

    /// The entry with this sequence, unless it was overwritten.
    #[inline]
    pub fn read_entry(&self, sequence: u64) -> Option<Entry> {
        let mut words = [0; PAYLOAD_WORDS];
        ring::read(self.ring_entry(sequence), sequence, &mut words)
            .then(|| Entry::of_words(sequence, words))
    }

    /// The extension of the entry with this sequence, unless it was overwritten.
    pub fn read_extension(&self, sequence: u64) -> Option<Extension> {
        let mut words = [0; EXTENSION_WORDS];
        let (entry, extension) = (self.ring_entry(sequence), self.extension(sequence));
        ring::read_extension(entry, extension, sequence, &mut words)
            .then(|| Extension::of_words(words))
    }

    /// The newest entry of a slot, with its layout in the extension. `None`: it is being written, or there are no records.
    pub fn read_record(&self, slot: u32) -> Option<(Entry, Extension)> {
        let (entry, extension) = self.record(slot)?;
        let (mut words, mut more) = ([0; PAYLOAD_WORDS], [0; EXTENSION_WORDS]);
        let sequence = ring::read_any(entry, &mut words)?;
        // With the stamp of that entry.
        ring::read_extension(entry, extension, sequence, &mut more)
            .then(|| (Entry::of_words(sequence, words), Extension::of_words(more)))
    }
}

#[inline(never)]
fn write_extended(words: &[AtomicU64], room: &[AtomicU64], entry: &Entry, meta: &FrameMeta) {
    let extension = Extension::of(meta);
    let extension = Some((room, extension.words()));
    ring::write(words, entry.sequence(), entry.words(), extension);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(max_slots: u32) -> Constants {
        Constants {
            shape: Shape {
                max_slots,
                ring_len: 64,
                by_number: true,
            },
            pool_id: 7,
            lossless: true,
            history: 2,
        }
    }

    /// Writes an entry. Returns the values that a reader must get.
    fn write(control: &Control, sequence: u64, reserved: u8) -> (Entry, Extension) {
        let info = FrameInfo {
            sequence,
            slot: 4,
            ..FrameInfo::default()
        };
        let meta = FrameMeta {
            reserved: Some([reserved; 64].into()),
            ..FrameMeta::default()
        };
        control.write_entry(&info, &meta, (4, 8), None);
        (Entry::new(&info, &meta, (4, 8), None), Extension::of(&meta))
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
        assert_eq!(view.head(), 3);
        assert_eq!(view.eos_at(), Some(0));
        assert_eq!(view.slot(4).unwrap().load(Ordering::Relaxed), 9);
        assert!(view.slot(5).is_none());
        assert_eq!(view.region_ids().filter(|id| *id != 0).sum::<u32>(), 11);
        assert_eq!(view.regions_version(), 1);
    }

    #[test]
    fn a_consumer_sees_entries_places_and_layouts() {
        let (control, fd) = Control::create(constants(5)).unwrap();
        let view = Control::open(&fd).unwrap();
        let (first, extension) = write(&control, 2, 5);
        assert_eq!(view.read_entry(2), Some(first));
        assert_eq!(view.read_extension(2), Some(extension));
        assert_eq!(view.read_entry(2 + 64), None);
        assert_eq!(view.read_extension(2 + 64), None);
        assert_eq!(view.read_record(4), Some((first, extension)));
        assert_eq!(view.read_record(3), None);
        assert_eq!(view.read_record(5), None);

        let (later, later_extension) = write(&control, 2 + 64, 6);
        assert_eq!((view.read_entry(2), view.read_extension(2)), (None, None));
        assert_eq!(view.read_entry(2 + 64), Some(later));
        assert_eq!(view.read_record(4), Some((later, later_extension)));

        let place = SharedPlace {
            region: 3,
            offset: 4096,
            ..SharedPlace::default()
        };
        control.set_place(4, &place);
        assert_eq!(view.place(4), Some(place));
        assert_eq!(view.place(3), Some(SharedPlace::default()));
        assert_eq!(view.place(5), None);

        let layout = FrameLayout {
            content_type: "a".into(),
            ..FrameLayout::default()
        };
        let id = LayoutId::new(64).unwrap();
        control.set_layout(id, &layout);
        assert_eq!(FrameLayout::decode(&view.layout(id)), Ok(layout));
        assert_eq!((LayoutId::new(0), LayoutId::new(65)), (None, None));
        assert_eq!(view.read_entry(2 + 64), Some(later), "and nothing else");
    }

    #[test]
    fn only_pools_of_buffers_by_number_have_records() {
        let constants = Constants {
            shape: Shape {
                by_number: false,
                ..constants(5).shape
            },
            ..constants(5)
        };
        let (control, _fd) = Control::create(constants).unwrap();
        let (entry, _) = write(&control, 2, 5);
        assert_eq!(control.read_entry(2), Some(entry));
        assert_eq!(control.read_record(4), None);
    }

    #[test]
    fn all_rows_are_inside_of_the_memory() {
        for max_slots in [1, 2, 3, 255, 256] {
            let (control, _fd) = Control::create(constants(max_slots)).unwrap();
            let slot = max_slots - 1;
            assert_eq!(control.region_words().len(), 2 * max_slots as usize);
            assert_eq!(control.place_row(slot).len(), PLACE_STRIDE);
            assert_eq!(control.ring_entry(u64::MAX).len(), ENTRY_WORDS);
            assert_eq!(control.extension(u64::MAX).len(), EXTENSION_STRIDE);
            assert_eq!(control.record(slot).unwrap().1.len(), EXTENSION_STRIDE);
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
        let (_control, fd) = Control::create(constants(4)).unwrap();
        assert!(Control::open(&fd).is_ok());
        assert!(Control::open(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
