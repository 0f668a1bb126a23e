// SPDX-License-Identifier: MPL-2.0

//! An entry of the ring as 64-bit words: what describes a frame, what publishing adds, and where its slot lies.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::abi::frame_info::{FrameInfo, Storage};
use crate::abi::meta::{DType, FrameMeta, MetaError, Text, VideoLayout};
use crate::abi::named::Attachments;
use crate::protocol::ring::PAYLOAD_WORDS;

/// The words of an entry.
pub type EntryWords = [u64; PAYLOAD_WORDS];

/// An entry. It refers to the metadata, which are large, so that they are not moved with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<M = Arc<FrameMeta>> {
    /// The region that the slot lies in.
    pub region: u32,
    /// First byte of the slot in its region.
    pub offset: u64,
    /// Size of the slot in bytes.
    pub len: u64,
    /// Where the attachments lie, counted from the slot's first byte, and their size in bytes: 0, there are none.
    pub attached: (u64, u64),
    /// Facts that publishing adds.
    pub info: FrameInfo,
    /// Without the attachments, which lie in the slot.
    pub meta: M,
}

/// The word that has a bit for each optional field.
const W_PRESENT: usize = 5;

const HAS_VIDEO: u64 = 1 << 0;
const HAS_TIMESTAMP: u64 = 1 << 1;
const HAS_DECODE_TIMESTAMP: u64 = 1 << 2;
const HAS_PTS: u64 = 1 << 3;
const HAS_DTS: u64 = 1 << 4;
const HAS_DURATION: u64 = 1 << 5;
const HAS_BUFFER_OFFSET: u64 = 1 << 6;
const HAS_BUFFER_OFFSET_END: u64 = 1 << 7;
const IS_EVENT: u64 = 1 << 8;

struct Writer {
    words: EntryWords,
    at: usize,
    present: u64,
}

impl Writer {
    fn word(&mut self, value: u64) {
        if let Some(word) = self.words.get_mut(self.at) {
            *word = value;
        }
        self.at += 1;
    }

    fn pair(&mut self, low: u32, high: u32) {
        self.word(u64::from(low) | u64::from(high) << 32);
    }

    fn option(&mut self, value: Option<u64>, flag: u64) {
        if value.is_some() {
            self.present |= flag;
        }
        self.word(value.unwrap_or(0));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.as_chunks().0 {
            self.word(u64::from_le_bytes(*chunk));
        }
    }
}

struct Reader<'a> {
    words: &'a EntryWords,
    at: usize,
    present: u64,
}

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word.unwrap_or(0)
    }

    fn pair(&mut self) -> (u32, u32) {
        let word = self.word();
        (word as u32, (word >> 32) as u32)
    }

    fn option(&mut self, flag: u64) -> Option<u64> {
        let word = self.word();
        (self.present & flag != 0).then_some(word)
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.as_chunks_mut().0 {
            *chunk = self.word().to_le_bytes();
        }
        bytes
    }
}

impl<M: Borrow<FrameMeta>> Entry<M> {
    /// The entry as words of the ring.
    pub fn encode(&self) -> EntryWords {
        let (info, meta) = (&self.info, self.meta.borrow());
        let mut w = Writer {
            words: [0; PAYLOAD_WORDS],
            at: 0,
            present: 0,
        };
        w.word(self.region.into());
        w.word(self.offset);
        w.word(self.len);
        w.word(self.attached.0);
        w.word(self.attached.1);
        // The bits are known when the last field is written.
        w.at = W_PRESENT + 1;
        w.word(info.sequence);
        w.pair(info.slot, info.generation);
        w.word(info.published_at.cast_unsigned());
        w.word(info.sticky_version);
        w.word(meta.offset);
        w.word(meta.size);
        let storage = match info.storage {
            Storage::Cpu => 0,
            Storage::Cuda => 1,
        };
        let kind = u32::from_le_bytes([storage, info.device_id, meta.dtype as u8, meta.ndim]);
        w.pair(kind, info.events_before);
        meta.shape.iter().for_each(|v| w.word(*v));
        meta.strides.iter().for_each(|v| w.word(*v as u64));
        w.bytes(meta.content_type.as_bytes());
        w.bytes(meta.producer.as_bytes());
        w.bytes(&meta.reserved);
        w.option(meta.timestamp.map(i64::cast_unsigned), HAS_TIMESTAMP);
        w.option(
            meta.decode_timestamp.map(i64::cast_unsigned),
            HAS_DECODE_TIMESTAMP,
        );
        w.option(meta.pts, HAS_PTS);
        w.option(meta.dts, HAS_DTS);
        w.option(meta.duration, HAS_DURATION);
        w.option(meta.buffer_offset, HAS_BUFFER_OFFSET);
        w.option(meta.buffer_offset_end, HAS_BUFFER_OFFSET_END);
        let video = meta.video.unwrap_or_default();
        if meta.video.is_some() {
            w.present |= HAS_VIDEO;
        }
        w.pair(meta.flags, video.n_planes);
        w.bytes(video.format.as_bytes());
        w.pair(video.width, video.height);
        video.offsets.iter().for_each(|v| w.word(*v));
        w.pair(video.strides[0] as u32, video.strides[1] as u32);
        w.pair(video.strides[2] as u32, video.strides[3] as u32);
        if meta.event {
            w.present |= IS_EVENT;
        }
        w.words[W_PRESENT] = w.present;
        w.words
    }
}

impl Entry {
    /// Decodes words that another process wrote. Only their form is checked, and what is not valid is an error, never a
    /// panic.
    pub fn decode(words: &EntryWords) -> Result<Self, MetaError> {
        let mut r = Reader {
            words,
            at: 0,
            present: words[W_PRESENT],
        };
        let region = u32::try_from(r.word()).map_err(|_| MetaError("impossible region"))?;
        let (offset, len) = (r.word(), r.word());
        let attached = (r.word(), r.word());
        r.at = W_PRESENT + 1;
        let sequence = r.word();
        let (slot, generation) = r.pair();
        let published_at = r.word().cast_signed();
        let sticky_version = r.word();
        let (payload_offset, payload_size) = (r.word(), r.word());
        let (kind, events_before) = r.pair();
        let [storage, device_id, dtype, ndim] = kind.to_le_bytes();
        let storage = match storage {
            0 => Storage::Cpu,
            1 => Storage::Cuda,
            _ => return Err(MetaError("unknown kind of storage")),
        };
        let dtype = DType::from_code(dtype).ok_or(MetaError("unknown element type"))?;
        let info = FrameInfo {
            sequence,
            events_before,
            slot,
            generation,
            published_at,
            sticky_version,
            storage,
            device_id,
        };
        let shape = std::array::from_fn(|_| r.word());
        let strides = std::array::from_fn(|_| r.word() as i64);
        let content_type = Text::from_bytes(r.bytes());
        let producer = Text::from_bytes(r.bytes());
        let reserved = r.bytes();
        let timestamp = r.option(HAS_TIMESTAMP).map(u64::cast_signed);
        let decode_timestamp = r.option(HAS_DECODE_TIMESTAMP).map(u64::cast_signed);
        let pts = r.option(HAS_PTS);
        let dts = r.option(HAS_DTS);
        let duration = r.option(HAS_DURATION);
        let buffer_offset = r.option(HAS_BUFFER_OFFSET);
        let buffer_offset_end = r.option(HAS_BUFFER_OFFSET_END);
        let (flags, n_planes) = r.pair();
        let format = Text::from_bytes(r.bytes());
        let (width, height) = r.pair();
        let offsets = std::array::from_fn(|_| r.word());
        let (s0, s1) = r.pair();
        let (s2, s3) = r.pair();
        let video = (r.present & HAS_VIDEO != 0).then_some(VideoLayout {
            format,
            width,
            height,
            n_planes,
            offsets,
            strides: [s0 as i32, s1 as i32, s2 as i32, s3 as i32],
        });
        let meta = Arc::new(FrameMeta {
            offset: payload_offset,
            size: payload_size,
            dtype,
            ndim,
            shape,
            strides,
            content_type,
            producer,
            reserved,
            timestamp,
            decode_timestamp,
            pts,
            dts,
            duration,
            buffer_offset,
            buffer_offset_end,
            flags,
            video,
            event: r.present & IS_EVENT != 0,
            attachments: Attachments::new(),
        });
        meta.check()?;
        Ok(Self {
            region,
            offset,
            len,
            attached,
            info,
            meta,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Entry {
        let meta = FrameMeta {
            offset: 64,
            size: 1920 * 1080 * 3 / 2,
            dtype: DType::U16,
            ndim: 2,
            shape: [1080, 1920, 0, 0, 0, 0, 0, 0],
            strides: [-3840, 2, 0, 0, 0, 0, 0, 0],
            content_type: "video/x-raw".into(),
            producer: "test".into(),
            reserved: [5; 64],
            timestamp: Some(0),
            decode_timestamp: Some(-1),
            pts: Some(u64::MAX - 1),
            dts: None,
            duration: Some(33),
            flags: 0xffff,
            event: true,
            video: Some(VideoLayout {
                format: "P010_10LE".into(),
                width: 1920,
                height: 1080,
                n_planes: 2,
                offsets: [0, 4_147_200, 0, 0],
                strides: [3840, -3840, 0, 0],
            }),
            ..FrameMeta::default()
        };
        Entry {
            region: 3,
            offset: 4096,
            len: 1 << 22,
            attached: (64, 8),
            info: FrameInfo {
                sequence: 7,
                events_before: 2,
                slot: 3,
                generation: 9,
                published_at: -11,
                sticky_version: 2,
                storage: Storage::Cuda,
                device_id: 3,
            },
            meta: Arc::new(meta),
        }
    }

    fn empty() -> Entry {
        Entry {
            region: 0,
            offset: 0,
            len: 0,
            attached: (0, 0),
            info: FrameInfo::default(),
            meta: Arc::default(),
        }
    }

    #[test]
    fn every_field_comes_back() {
        for entry in [sample(), empty()] {
            assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for kind in [
            [9, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 200, 0, 0, 0, 0, 0],
            [0, 0, 0, 200, 0, 0, 0, 0],
        ] {
            let mut words = sample().encode();
            words[12] = u64::from_le_bytes(kind);
            assert!(Entry::decode(&words).is_err());
        }
    }
}
