// SPDX-License-Identifier: MPL-2.0

//! The part of a frame's description that is the same for most frames of a stream, and its words in shared memory.

use std::num::NonZeroU16;
use std::sync::{Arc, LazyLock};

use crate::abi::dtype::DType;
use crate::abi::limits::{MAX_DIMS, MAX_LAYOUTS, MAX_PLANES};
use crate::abi::text::Text;
use crate::abi::video::VideoLayout;

/// Why consumers would refuse a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaError(pub &'static str);

/// The number of a layout in the table: 1 to [`MAX_LAYOUTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutId(NonZeroU16);

impl LayoutId {
    /// `None`: there is no such layout.
    #[inline]
    pub fn new(number: u16) -> Option<Self> {
        let id = NonZeroU16::new(number)?;
        (usize::from(number) <= MAX_LAYOUTS).then_some(Self(id))
    }

    /// Its number.
    pub fn number(self) -> u16 {
        self.0.get()
    }

    /// Its row in the table.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

/// The number of words of a layout.
pub const LAYOUT_WORDS: usize = 34;

/// A layout as words.
pub type LayoutWords = [u64; LAYOUT_WORDS];

/// How to interpret the bytes of a frame. Frames of a stream [share](crate::abi::meta::FrameMeta::layout) it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct FrameLayout {
    /// Type of one element.
    pub dtype: DType,
    /// The number of valid entries of `shape` and `strides`.
    pub ndim: u8,
    /// Elements per dimension.
    pub shape: [u64; MAX_DIMS],
    /// Bytes from one element to the next, per dimension.
    pub strides: [i64; MAX_DIMS],
    /// The type of the payload, such as `image/raw` or `tensor/float32`.
    pub content_type: Text<32>,
    /// The program that made it.
    pub producer: Text<32>,
    /// The planes, for video.
    pub video: Option<VideoLayout>,
}

/// The layout of frames with unknown content.
static UNKNOWN: LazyLock<Arc<FrameLayout>> = LazyLock::new(Arc::default);

impl FrameLayout {
    /// The layout of frames with unknown content.
    pub(super) fn unknown() -> Arc<Self> {
        UNKNOWN.clone()
    }

    /// Checks that consumers accept the layout.
    pub fn check(&self) -> Result<(), MetaError> {
        if usize::from(self.ndim) > MAX_DIMS {
            return Err(MetaError("there are more than 8 dimensions"));
        }
        let video = self.video.as_ref();
        if video.is_some_and(|video| video.n_planes as usize > MAX_PLANES) {
            return Err(MetaError("there are more than 4 planes"));
        }
        Ok(())
    }

    /// The layout as words.
    pub fn encode(&self) -> LayoutWords {
        let video = self.video.unwrap_or_default();
        let mut words = [0; LAYOUT_WORDS];
        let kind = [self.dtype as u8, self.ndim, self.video.is_some().into(), 0];
        let first = pair(u32::from_le_bytes(kind), video.n_planes);
        let [s0, s1, s2, s3] = video.strides.map(i32::cast_unsigned);
        let values = std::iter::once(first)
            .chain(self.shape)
            .chain(self.strides.map(i64::cast_unsigned))
            .chain(text(&self.content_type))
            .chain(text(&self.producer))
            .chain(text(&video.format))
            .chain([pair(video.width, video.height)])
            .chain(video.offsets)
            .chain([pair(s0, s1), pair(s2, s3)]);
        for (word, value) in words.iter_mut().zip(values) {
            *word = value;
        }
        words
    }

    /// Decodes words that another process wrote. Invalid words are an error, never a panic.
    pub fn decode(words: &LayoutWords) -> Result<Self, MetaError> {
        let mut words = words.iter().copied();
        let mut next = || words.next().unwrap_or(0);
        let (kind, n_planes) = halves(next());
        let [dtype, ndim, has_video, _] = kind.to_le_bytes();
        let dtype = DType::from_code(dtype).ok_or(MetaError("unknown element type"))?;
        let shape = std::array::from_fn(|_| next());
        let strides = std::array::from_fn(|_| next().cast_signed());
        let content_type = Text::from_bytes(bytes(&mut next));
        let producer = Text::from_bytes(bytes(&mut next));
        let format = Text::from_bytes(bytes(&mut next));
        let (width, height) = halves(next());
        let offsets = std::array::from_fn(|_| next());
        let [(s0, s1), (s2, s3)] = [halves(next()), halves(next())];
        let video = VideoLayout {
            format,
            width,
            height,
            n_planes,
            offsets,
            strides: [s0, s1, s2, s3].map(u32::cast_signed),
        };
        let layout = Self {
            dtype,
            ndim,
            shape,
            strides,
            content_type,
            producer,
            video: (has_video != 0).then_some(video),
        };
        layout.check()?;
        Ok(layout)
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn text<const N: usize>(text: &Text<N>) -> impl Iterator<Item = u64> {
    let (words, _) = text.as_bytes().as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

fn bytes<const N: usize>(next: &mut impl FnMut() -> u64) -> [u8; N] {
    let mut bytes = [0; N];
    for word in bytes.as_chunks_mut().0 {
        *word = next().to_le_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> FrameLayout {
        FrameLayout {
            dtype: DType::U16,
            ndim: 2,
            shape: [1080, 1920, 0, 0, 0, 0, 0, 8],
            strides: [-3840, 2, 0, 0, 0, 0, 0, i64::MIN],
            content_type: "video/x-raw".into(),
            producer: "test".into(),
            video: Some(VideoLayout {
                format: "P010_10LE".into(),
                width: 1920,
                height: 1080,
                n_planes: 2,
                offsets: [0, 4_147_200, 0, 1],
                strides: [3840, -3840, 0, i32::MIN],
            }),
        }
    }

    #[test]
    fn every_field_round_trips() {
        for layout in [sample(), FrameLayout::default()] {
            assert_eq!(FrameLayout::decode(&layout.encode()), Ok(layout));
        }
        assert_ne!(
            *sample().encode().last().unwrap(),
            0,
            "the last word is used"
        );
    }

    #[test]
    fn invalid_values_are_refused() {
        let good = sample().encode();
        let planes = good[0] & u64::from(u32::MAX) | 5 << 32;
        for first in [200, 200 << 8, planes] {
            let mut words = good;
            words[0] = first;
            assert!(FrameLayout::decode(&words).is_err(), "{first:x}");
        }
    }

    #[test]
    fn zeros_are_the_default_layout() {
        let zeros = [0; LAYOUT_WORDS];
        assert_eq!(FrameLayout::decode(&zeros), Ok(FrameLayout::default()));
    }
}
