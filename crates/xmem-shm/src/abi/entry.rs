// SPDX-License-Identifier: MPL-2.0

//! An entry of the ring: the description of one frame, as 64-bit words. Its layout is in a table, or in the entry's extension.

use std::sync::Arc;

use crate::abi::frame_layout::{FrameLayout, LayoutId};
use crate::abi::meta::{FrameFlags, FrameMeta, Reserved};
use crate::protocol::ring::PAYLOAD_WORDS;

/// The words of an entry. The stamp before them has the sequence.
pub type EntryWords = [u64; PAYLOAD_WORDS];

const W_SLOT: usize = 0; // and the generation
const W_KIND: usize = 1; // layout, bits, flags of the buffer
const W_EVENTS: usize = 2;
const W_PUBLISHED_AT: usize = 3;
const W_STICKY: usize = 4;
const W_OFFSET: usize = 5;
const W_SIZE: usize = 6;
const W_ATTACHED: usize = 7;
const W_TIMESTAMP: usize = 8;
const W_DECODE_TIMESTAMP: usize = 9;
const W_PTS: usize = 10;
const W_DTS: usize = 11;
const W_DURATION: usize = 12;
const W_BUFFER_OFFSET: usize = 13;
const W_BUFFER_OFFSET_END: usize = 14;

// Bits of `W_KIND`. The bits below are the layout's ID, the bits above are the flags of the buffer.
const IS_EVENT: u64 = 1 << 16;
const HAS_RESERVED: u64 = 1 << 17;
/// The bit that states that the word `W_TIMESTAMP` has a value. The bits of the following words follow.
const HAS_TIMESTAMP: u64 = 1 << 18;
const FLAGS_SHIFT: u32 = 32;

/// The number of bits for the first byte of the attachments. The other bits of the word are their size.
const ATTACHED_AT_BITS: u32 = 39;
/// Attachments begin before this offset of their slot.
pub const MAX_ATTACHED_AT: u64 = 1 << ATTACHED_AT_BITS;

/// An entry. All word values are valid. The places that they refer to are checked when they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    sequence: u64,
    words: EntryWords,
}

fn has(word: usize) -> u64 {
    HAS_TIMESTAMP << (word - W_TIMESTAMP)
}

impl Entry {
    /// The entry of a frame. `offset`: the first byte of the payload, which replaces that in the description. `attached`: the
    /// place of its attachments, counted from the slot's first byte, and their size in bytes. `layout`: `None` if the layout is
    /// in the extension.
    pub fn new(
        info: &FrameInfo,
        meta: &FrameMeta,
        attached: (u64, u64),
        layout: Option<LayoutId>,
    ) -> Self {
        let mut kind = layout.map_or(0, |id| u64::from(id.number()));
        kind |= u64::from(meta.flags.bits()) << FLAGS_SHIFT;
        if meta.event {
            kind |= IS_EVENT;
        }
        if meta.reserved.is_some() {
            kind |= HAS_RESERVED;
        }
        let mut words = [0; PAYLOAD_WORDS];
        let mut value = |word: usize, value: Option<u64>| {
            kind |= value.map_or(0, |_| has(word));
            value.unwrap_or(0)
        };
        words[W_TIMESTAMP] = value(W_TIMESTAMP, meta.timestamp.map(i64::cast_unsigned));
        let decode_timestamp = meta.decode_timestamp.map(i64::cast_unsigned);
        words[W_DECODE_TIMESTAMP] = value(W_DECODE_TIMESTAMP, decode_timestamp);
        words[W_PTS] = value(W_PTS, meta.pts);
        words[W_DTS] = value(W_DTS, meta.dts);
        words[W_DURATION] = value(W_DURATION, meta.duration);
        words[W_BUFFER_OFFSET] = value(W_BUFFER_OFFSET, meta.buffer_offset);
        words[W_BUFFER_OFFSET_END] = value(W_BUFFER_OFFSET_END, meta.buffer_offset_end);
        words[W_SLOT] = u64::from(info.slot) | u64::from(info.generation) << 32;
        words[W_KIND] = kind;
        words[W_EVENTS] = info.events_before.into();
        words[W_PUBLISHED_AT] = info.published_at.cast_unsigned();
        words[W_STICKY] = info.sticky_version;
        words[W_OFFSET] = meta.offset;
        words[W_SIZE] = meta.size;
        words[W_ATTACHED] = attached.0 & (MAX_ATTACHED_AT - 1) | attached.1 << ATTACHED_AT_BITS;
        Self {
            sequence: info.sequence,
            words,
        }
    }

    /// An entry that another process wrote.
    pub fn of_words(sequence: u64, words: EntryWords) -> Self {
        Self { sequence, words }
    }

    /// The words of the entry.
    pub fn words(&self) -> &EntryWords {
        &self.words
    }

    /// The number of the entry in the pool.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The slot of the frame.
    pub fn slot(&self) -> u32 {
        self.words[W_SLOT] as u32
    }

    /// How often that slot was reused. A correct producer writes no 0.
    pub fn generation(&self) -> u32 {
        (self.words[W_SLOT] >> 32) as u32
    }

    /// The number of events before it, modulo 2^32.
    pub fn events_before(&self) -> u32 {
        self.words[W_EVENTS] as u32
    }

    /// Whether it is an event and not a frame.
    pub fn is_event(&self) -> bool {
        self.words[W_KIND] & IS_EVENT != 0
    }

    /// When it was published, in nanoseconds of CLOCK_MONOTONIC.
    pub fn published_at(&self) -> i64 {
        self.words[W_PUBLISHED_AT].cast_signed()
    }

    /// The version of the sticky state that it belongs to.
    pub fn sticky_version(&self) -> u64 {
        self.words[W_STICKY]
    }

    /// The first byte of the payload, counted from the slot's first byte.
    pub fn offset(&self) -> u64 {
        self.words[W_OFFSET]
    }

    /// The size of the payload in bytes.
    pub fn size(&self) -> u64 {
        self.words[W_SIZE]
    }

    /// The place of the attachments, counted from the slot's first byte, and their size in bytes. Size 0: there are none.
    pub fn attached(&self) -> (u64, u64) {
        let word = self.words[W_ATTACHED];
        (word & (MAX_ATTACHED_AT - 1), word >> ATTACHED_AT_BITS)
    }

    /// The number of its layout in the table. 0: its layout is in the extension.
    pub fn layout_number(&self) -> u16 {
        self.words[W_KIND] as u16
    }

    /// Whether `reserved` of its frame is in the extension.
    pub fn has_reserved(&self) -> bool {
        self.words[W_KIND] & HAS_RESERVED != 0
    }

    /// Whether a part of it is in the extension.
    pub fn has_extension(&self) -> bool {
        self.layout_number() == 0 || self.has_reserved()
    }

    /// The values that publishing added to the frame's description, for a slot in this memory.
    pub fn info(&self, storage: Storage, device_id: u8) -> FrameInfo {
        FrameInfo {
            sequence: self.sequence,
            events_before: self.events_before(),
            slot: self.slot(),
            generation: self.generation(),
            published_at: self.published_at(),
            sticky_version: self.sticky_version(),
            storage,
            device_id,
        }
    }

    fn option(&self, word: usize) -> Option<u64> {
        let value = self.words.get(word).copied();
        value.filter(|_| self.words[W_KIND] & has(word) != 0)
    }

    /// The frame's description, without the attachments, which are in the slot.
    pub fn meta(&self, layout: Arc<FrameLayout>, reserved: Option<Box<Reserved>>) -> FrameMeta {
        let mut meta = FrameMeta::with_layout(0, layout);
        meta.reserved = reserved;
        self.describe(&mut meta);
        meta
    }

    /// Changes the values in a description that the entry has. It does not have the layout, `reserved` and the attachments.
    #[inline]
    pub fn describe(&self, meta: &mut FrameMeta) {
        meta.offset = self.offset();
        meta.size = self.size();
        meta.timestamp = self.option(W_TIMESTAMP).map(u64::cast_signed);
        meta.decode_timestamp = self.option(W_DECODE_TIMESTAMP).map(u64::cast_signed);
        meta.pts = self.option(W_PTS);
        meta.dts = self.option(W_DTS);
        meta.duration = self.option(W_DURATION);
        meta.buffer_offset = self.option(W_BUFFER_OFFSET);
        meta.buffer_offset_end = self.option(W_BUFFER_OFFSET_END);
        meta.flags = FrameFlags::from_bits((self.words[W_KIND] >> FLAGS_SHIFT) as u32);
        meta.event = self.is_event();
    }
}

/// The kind of memory of a frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Storage {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a CUDA device.
    Cuda,
}

/// The values that publishing adds to the [description](crate::abi::meta::FrameMeta) of a frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FrameInfo {
    /// Number of the frame in its pool, from 0. Frames and events share one count.
    pub sequence: u64,
    /// Number of events before the frame, modulo 2^32.
    pub events_before: u32,
    /// The slot of the frame.
    pub slot: u32,
    /// How often that slot was reused, never 0.
    pub generation: u32,
    /// When the frame was published, in nanoseconds of CLOCK_MONOTONIC.
    pub published_at: i64,
    /// Version of the sticky state (caps and so on) that the frame belongs to.
    pub sticky_version: u64,
    /// The kind of the slot's memory.
    pub storage: Storage,
    /// Number of the slot's device, 0 for host memory.
    pub device_id: u8,
}

impl FrameInfo {
    /// Number of the frame in its pool, from 0, without the events; right as long as there were fewer than 2^32 events.
    pub fn number(&self) -> u64 {
        self.sequence.saturating_sub(self.events_before.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::limits::MAX_NAMED_SIZE;

    fn samples() -> [(FrameInfo, FrameMeta); 3] {
        let info = FrameInfo {
            sequence: 7,
            events_before: u32::MAX,
            slot: 3,
            generation: u32::MAX,
            published_at: -11,
            sticky_version: 2,
            storage: Storage::Cuda,
            device_id: 3,
        };
        let full = FrameMeta {
            offset: 64,
            size: u64::MAX,
            reserved: Some([5; 64].into()),
            timestamp: Some(i64::MIN),
            decode_timestamp: Some(-1),
            pts: Some(u64::MAX),
            dts: Some(0),
            duration: Some(33),
            buffer_offset: Some(1),
            buffer_offset_end: Some(2),
            flags: FrameFlags::from_bits(u32::MAX),
            event: true,
            ..FrameMeta::default()
        };
        let some = FrameMeta {
            dts: Some(4),
            buffer_offset_end: Some(0),
            ..FrameMeta::new(9)
        };
        let nothing = FrameMeta::default();
        [(info, full), (info, some), (FrameInfo::default(), nothing)]
    }

    #[test]
    fn every_field_round_trips() {
        for (info, meta) in samples() {
            for layout in [None, LayoutId::new(1), LayoutId::new(64)] {
                let entry = Entry::new(&info, &meta, (4096, 8), layout);
                let copy = Entry::of_words(entry.sequence(), *entry.words());
                assert_eq!(copy.info(info.storage, info.device_id), info);
                assert_eq!(copy.meta(meta.layout.clone(), meta.reserved.clone()), meta);
                assert_eq!(copy.attached(), (4096, 8));
                assert_eq!(LayoutId::new(copy.layout_number()), layout);
                assert_eq!(copy.has_reserved(), meta.reserved.is_some());
                assert_eq!(
                    copy.has_extension(),
                    meta.reserved.is_some() || layout.is_none()
                );
            }
        }
    }

    #[test]
    fn the_most_attachments_fit() {
        let attached = (MAX_ATTACHED_AT - 1, MAX_NAMED_SIZE as u64);
        let info = FrameInfo::default();
        let entry = Entry::new(&info, &FrameMeta::default(), attached, None);
        assert_eq!(entry.attached(), attached);
    }
}
