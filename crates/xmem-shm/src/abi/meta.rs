// SPDX-License-Identifier: MPL-2.0

//! What is known of a frame besides its bytes. It travels in the ring entry, as 64-bit words.

use std::fmt;

use crate::abi::limits::{MAX_DIMS, MAX_PLANES};
use crate::abi::named::Attachments;

/// Text of at most `N` bytes, kept inline. Longer text is cut at a character's boundary.
///
/// ```
/// let t = xmem_core::Text::<32>::new("image/raw");
/// assert_eq!(t.as_str(), "image/raw");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Text from a string; what is longer than `N` bytes, or comes after a NUL, is cut off.
    pub fn new(text: &str) -> Self {
        let mut end = text.bytes().take(N).take_while(|b| *b != 0).count();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; N];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self(bytes)
    }

    /// Text from bytes that another process wrote: cut at the first NUL and at the first byte that is not UTF-8.
    pub fn from_bytes(mut bytes: [u8; N]) -> Self {
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(N);
        let valid = match std::str::from_utf8(&bytes[..len]) {
            Ok(_) => len,
            Err(error) => error.valid_up_to(),
        };
        bytes[valid..].fill(0);
        Self(bytes)
    }

    /// The bytes, padded with zeros.
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(N);
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// Where a frame's bytes lie.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Storage {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a CUDA device.
    Cuda,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $size:literal;)*) => {
        /// The type of one element.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DType { $($(#[$doc])* $name = $code,)* }

        impl DType {
            /// Size of one element in bytes.
            pub fn size(self) -> usize { match self { $(Self::$name => $size,)* } }
            fn from_code(code: u8) -> Option<Self> { match code { $($code => Some(Self::$name),)* _ => None } }
        }
    };
}

dtypes! {
    /// 8-bit unsigned integer.
    #[default] U8 = 0, 1;
    /// 8-bit signed integer.
    I8 = 1, 1;
    /// 16-bit unsigned integer.
    U16 = 2, 2;
    /// 16-bit signed integer.
    I16 = 3, 2;
    /// 32-bit unsigned integer.
    U32 = 4, 4;
    /// 32-bit signed integer.
    I32 = 5, 4;
    /// 64-bit unsigned integer.
    U64 = 6, 8;
    /// 64-bit signed integer.
    I64 = 7, 8;
    /// IEEE 754 binary16.
    F16 = 8, 2;
    /// bfloat16.
    Bf16 = 9, 2;
    /// IEEE 754 binary32.
    F32 = 10, 4;
    /// IEEE 754 binary64.
    F64 = 11, 8;
    /// A boolean in one byte.
    Bool = 12, 1;
}

/// Where the planes of a video frame lie. [`VideoLayout::new`] makes the usual one of a format.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct VideoLayout {
    /// The format's name as GStreamer spells it, such as `NV12` or `P010_10LE`.
    pub format: Text<16>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// How many planes there are, at most [`MAX_PLANES`].
    pub n_planes: u32,
    /// First byte of each plane, counted from the payload's first byte.
    pub offsets: [u64; MAX_PLANES],
    /// Bytes from one row to the next, per plane.
    pub strides: [i32; MAX_PLANES],
}

/// What is known of a frame besides its bytes.
///
/// The first group is set by `publish`; everything else by who publishes. All times are nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameMeta {
    /// Number of the frame among the frames and events of its pool, from 0. Set by `publish`.
    pub sequence: u64,
    /// How many of those before it were events, modulo 2^32. Set by `publish`.
    pub events_before: u32,
    /// The slot the frame lies in. Set by `publish`.
    pub slot: u32,
    /// How often that slot was reused, never 0. Set by `publish`.
    pub generation: u32,
    /// When it was published, on CLOCK_MONOTONIC. Set by `publish`.
    pub published_at: i64,
    /// Version of the sticky state (caps and so on) that the frame belongs to. Set by `publish`.
    pub sticky_version: u64,

    /// First byte of the payload, counted from the slot's first byte.
    pub offset: u64,
    /// Size of the payload in bytes.
    pub size: u64,

    /// Where the bytes lie.
    pub storage: Storage,
    /// Number of the device they lie on, 0 for host memory.
    pub device_id: u8,
    /// Type of one element.
    pub dtype: DType,
    /// How many entries of `shape` and `strides` count.
    pub ndim: u8,
    /// Elements per dimension.
    pub shape: [u64; MAX_DIMS],
    /// Bytes from one element to the next, per dimension.
    pub strides: [i64; MAX_DIMS],
    /// What the payload is, such as `image/raw` or `tensor/float32`.
    pub content_type: Text<32>,
    /// Who made it.
    pub producer: Text<32>,
    /// For the user's own use.
    pub reserved: [u8; 64],

    /// When the frame is to be presented, on CLOCK_MONOTONIC ([`monotonic_ns`](crate::os::clock::monotonic_ns) is now). Negative: before
    /// the host was started.
    ///
    /// This is the time that means the same in every process, so set it: xmemsrc makes each buffer's PTS of it (with its
    /// default `timestamp-mode=clock`), and without it buffers have none. For live frames it is when they were taken.
    pub timestamp: Option<i64>,
    /// The same for its decoding time.
    pub decode_timestamp: Option<i64>,
    /// Presentation time as the producer's pipeline had it. xmemsrc uses it with `timestamp-mode=passthrough` only.
    pub pts: Option<u64>,
    /// Decoding time as the producer's pipeline had it.
    pub dts: Option<u64>,
    /// How long the frame lasts.
    pub duration: Option<u64>,
    /// The producer's own count at the frame's start (GstBuffer's `offset`).
    pub buffer_offset: Option<u64>,
    /// The producer's own count at the frame's end (GstBuffer's `offset-end`).
    pub buffer_offset_end: Option<u64>,
    /// Flags of the frame (GstBufferFlags, those that mean something outside the process). xmemsink sets `1 << 31` on a frame
    /// before which it lost some.
    pub flags: u32,
    /// Where the planes lie, for video.
    pub video: Option<VideoLayout>,
    /// This is no frame but an event of the stream, between two frames: it has attachments, and no payload.
    /// Consumers get it only if they asked for `ConsumerBuilder::events`.
    pub event: bool,
    /// What else is known, by name. It lies behind the payload in the slot, in the
    /// room (`Producer::acquire_with_room`) that was asked for.
    pub attachments: Attachments,
}

impl Default for FrameMeta {
    fn default() -> Self {
        Self {
            sequence: 0,
            events_before: 0,
            slot: 0,
            generation: 0,
            published_at: 0,
            sticky_version: 0,
            offset: 0,
            size: 0,
            storage: Storage::default(),
            device_id: 0,
            dtype: DType::default(),
            ndim: 0,
            shape: [0; MAX_DIMS],
            strides: [0; MAX_DIMS],
            content_type: Text::default(),
            producer: Text::default(),
            reserved: [0; 64],
            timestamp: None,
            decode_timestamp: None,
            pts: None,
            dts: None,
            duration: None,
            buffer_offset: None,
            buffer_offset_end: None,
            flags: 0,
            video: None,
            event: false,
            attachments: Attachments::new(),
        }
    }
}

/// Size of an encoded [`FrameMeta`] in words, without its attachments.
pub const META_WORDS: usize = 58;
/// The words of an encoded [`FrameMeta`].
pub type MetaWords = [u64; META_WORDS];

/// Words that could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaError(pub &'static str);

const HAS_VIDEO: u64 = 1 << 0;
const HAS_TIMESTAMP: u64 = 1 << 1;
const HAS_DECODE_TIMESTAMP: u64 = 1 << 2;
const HAS_PTS: u64 = 1 << 3;
const HAS_DTS: u64 = 1 << 4;
const HAS_DURATION: u64 = 1 << 5;
const HAS_BUFFER_OFFSET: u64 = 1 << 6;
const HAS_BUFFER_OFFSET_END: u64 = 1 << 7;
const IS_EVENT: u64 = 1 << 8;

struct Writer<'a> {
    words: &'a mut MetaWords,
    at: usize,
    present: u64,
}

impl Writer<'_> {
    fn word(&mut self, value: u64) {
        self.words[self.at] = value;
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
        for chunk in bytes.chunks_exact(8) {
            self.word(u64::from_le_bytes(chunk.try_into().expect("chunks of 8")));
        }
    }
}

struct Reader<'a> {
    words: &'a MetaWords,
    at: usize,
    present: u64,
}

impl Reader<'_> {
    fn word(&mut self) -> u64 {
        let word = self.words[self.at];
        self.at += 1;
        word
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
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes());
        }
        bytes
    }
}

impl FrameMeta {
    /// Number of the frame among the frames of its pool, from 0; right as long as there were fewer than 2^32 events.
    pub fn number(&self) -> u64 {
        self.sequence.saturating_sub(self.events_before.into())
    }

    /// A frame of `size` bytes at the start of its slot, and nothing else known.
    pub fn new(size: usize) -> Self {
        Self {
            size: size as u64,
            ..Self::default()
        }
    }

    /// Whether consumers take it. What else can be wrong depends on where the frame lies.
    pub fn check(&self) -> Result<(), MetaError> {
        if usize::from(self.ndim) > MAX_DIMS {
            return Err(MetaError("there are more than 8 dimensions"));
        }
        if self
            .video
            .is_some_and(|video| video.n_planes as usize > MAX_PLANES)
        {
            return Err(MetaError("there are more than 4 planes"));
        }
        Ok(())
    }

    pub fn encode(&self) -> MetaWords {
        let mut words = [0; META_WORDS];
        // Word 0 says which options are there, so it is written last.
        let mut w = Writer {
            words: &mut words,
            at: 1,
            present: 0,
        };
        w.word(self.sequence);
        w.pair(self.slot, self.generation);
        w.word(self.published_at.cast_unsigned());
        w.word(self.sticky_version);
        w.word(self.offset);
        w.word(self.size);
        let storage = match self.storage {
            Storage::Cpu => 0,
            Storage::Cuda => 1,
        };
        let kind = u32::from_le_bytes([storage, self.device_id, self.dtype as u8, self.ndim]);
        w.pair(kind, self.events_before);
        self.shape.iter().for_each(|v| w.word(*v));
        self.strides.iter().for_each(|v| w.word(*v as u64));
        w.bytes(self.content_type.as_bytes());
        w.bytes(self.producer.as_bytes());
        w.bytes(&self.reserved);
        w.option(self.timestamp.map(i64::cast_unsigned), HAS_TIMESTAMP);
        w.option(
            self.decode_timestamp.map(i64::cast_unsigned),
            HAS_DECODE_TIMESTAMP,
        );
        w.option(self.pts, HAS_PTS);
        w.option(self.dts, HAS_DTS);
        w.option(self.duration, HAS_DURATION);
        w.option(self.buffer_offset, HAS_BUFFER_OFFSET);
        w.option(self.buffer_offset_end, HAS_BUFFER_OFFSET_END);
        let video = self.video.unwrap_or_default();
        if self.video.is_some() {
            w.present |= HAS_VIDEO;
        }
        w.pair(self.flags, video.n_planes);
        w.bytes(video.format.as_bytes());
        w.pair(video.width, video.height);
        video.offsets.iter().for_each(|v| w.word(*v));
        w.pair(video.strides[0] as u32, video.strides[1] as u32);
        w.pair(video.strides[2] as u32, video.strides[3] as u32);
        if self.event {
            w.present |= IS_EVENT;
        }
        debug_assert!(w.at <= META_WORDS);
        let present = w.present;
        words[0] = present;
        words
    }

    /// Decodes words that another process wrote; what makes no sense is an error, never a panic. Attachments are not
    /// among them.
    pub fn decode(words: &MetaWords) -> Result<Self, MetaError> {
        let mut r = Reader {
            words,
            at: 1,
            present: words[0],
        };
        let sequence = r.word();
        let (slot, generation) = r.pair();
        let published_at = r.word().cast_signed();
        let sticky_version = r.word();
        let offset = r.word();
        let size = r.word();
        let (kind, events_before) = r.pair();
        let [storage, device_id, dtype, ndim] = kind.to_le_bytes();
        let storage = match storage {
            0 => Storage::Cpu,
            1 => Storage::Cuda,
            _ => return Err(MetaError("unknown kind of storage")),
        };
        let dtype = DType::from_code(dtype).ok_or(MetaError("unknown element type"))?;
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
        let video = if r.present & HAS_VIDEO != 0 {
            Some(VideoLayout {
                format,
                width,
                height,
                n_planes,
                offsets,
                strides: [s0 as i32, s1 as i32, s2 as i32, s3 as i32],
            })
        } else {
            None
        };
        let meta = Self {
            sequence,
            events_before,
            slot,
            generation,
            published_at,
            sticky_version,
            offset,
            size,
            storage,
            device_id,
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
        };
        meta.check()?;
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FrameMeta {
        FrameMeta {
            sequence: 7,
            slot: 3,
            generation: 9,
            published_at: -11,
            sticky_version: 2,
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
        }
    }

    #[test]
    fn every_field_comes_back() {
        assert_eq!(FrameMeta::decode(&sample().encode()), Ok(sample()));
        assert_eq!(
            FrameMeta::decode(&FrameMeta::default().encode()),
            Ok(FrameMeta::default())
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let mut words = sample().encode();
        words[7] = u64::from_le_bytes([9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(FrameMeta::decode(&words).is_err());
        words[7] = u64::from_le_bytes([0, 0, 200, 0, 0, 0, 0, 0]);
        assert!(FrameMeta::decode(&words).is_err());
        words[7] = u64::from_le_bytes([0, 0, 0, 200, 0, 0, 0, 0]);
        assert!(FrameMeta::decode(&words).is_err());
    }

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(Text::<4>::new("abcü").as_str(), "abc");
        assert_eq!(Text::<4>::new("a\0b").as_str(), "a");
        assert_eq!(Text::<4>::from_bytes([b'a', 0xff, b'c', 0]).as_str(), "a");
    }
}
