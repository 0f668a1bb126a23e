// SPDX-License-Identifier: MPL-2.0

//! The description of a frame, which the caller of `publish` supplies in addition to its bytes.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::abi::frame_layout::FrameLayout;
use crate::abi::limits::{MAX_PLANES, RESERVED_LEN};
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
    /// Text from a string; bytes past `N`, or after a NUL, are cut off.
    pub fn new(text: &str) -> Self {
        let end = text.bytes().take(N).take_while(|b| *b != 0).count();
        let end = text.floor_char_boundary(end);
        let mut bytes = [0; N];
        for (to, from) in bytes.iter_mut().zip(text.bytes().take(end)) {
            *to = from;
        }
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

    /// Whether the text is empty.
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
            pub(super) fn from_code(code: u8) -> Option<Self> { match code { $($code => Some(Self::$name),)* _ => None } }
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

/// The planes of a video frame. [`VideoLayout::new`] creates the default layout of a format.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct VideoLayout {
    /// The format's name as GStreamer spells it, such as `NV12` or `P010_10LE`.
    pub format: Text<16>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The number of planes, at most [`MAX_PLANES`].
    pub n_planes: u32,
    /// First byte of each plane, counted from the payload's first byte.
    pub offsets: [u64; MAX_PLANES],
    /// Bytes from one row to the next, per plane.
    pub strides: [i32; MAX_PLANES],
}

/// The description of a frame. The caller of `publish` fills it in. [`FrameInfo`](crate::abi::frame_info::FrameInfo) has the
/// values that publishing adds. All times are in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameMeta {
    /// First byte of the payload, counted from the slot's first byte.
    pub offset: u64,
    /// Size of the payload in bytes.
    pub size: u64,

    /// How to interpret the bytes. Its fields are accessible as fields of this type: `meta.video`. Setting one copies the
    /// layout if other frames share it. So a program that publishes many frames should create a layout once and use it for [all
    /// of them](Self::with_layout).
    pub layout: Arc<FrameLayout>,
    /// For the user's own data.
    pub reserved: Option<Box<[u8; RESERVED_LEN]>>,

    /// The presentation time on CLOCK_MONOTONIC ([`monotonic_ns`](crate::os::clock::monotonic_ns) returns the present time).
    /// Negative: before the host's start.
    ///
    /// This time has the same meaning in every process, so set it. xmemsrc converts it to the PTS of each buffer (with its
    /// default `timestamp-mode=clock`), and without it buffers have no PTS. For live frames it is the time when they were
    /// captured.
    pub timestamp: Option<i64>,
    /// The decoding time on CLOCK_MONOTONIC.
    pub decode_timestamp: Option<i64>,
    /// Presentation time of the producer's pipeline. xmemsrc uses it only with `timestamp-mode=passthrough`.
    pub pts: Option<u64>,
    /// Decoding time of the producer's pipeline.
    pub dts: Option<u64>,
    /// The duration of the frame.
    pub duration: Option<u64>,
    /// The producer's offset at the frame's start (GstBuffer's `offset`).
    pub buffer_offset: Option<u64>,
    /// The producer's offset at the frame's end (GstBuffer's `offset-end`).
    pub buffer_offset_end: Option<u64>,
    /// Flags of the frame (those GstBufferFlags that are meaningful in other processes). xmemsink sets `1 << 31` on a frame if
    /// frames before it were lost.
    pub flags: u32,
    /// This is an event of the stream between two frames, and not a frame. It has attachments and no payload. Consumers get it
    /// only with `ConsumerBuilder::events`.
    pub event: bool,
    /// Further data, by name. They are in the slot after the payload, in the requested room (`SlotSpec::attachments`).
    pub attachments: Attachments,
}

impl Default for FrameMeta {
    fn default() -> Self {
        Self {
            offset: 0,
            size: 0,
            layout: FrameLayout::unknown(),
            reserved: None,
            timestamp: None,
            decode_timestamp: None,
            pts: None,
            dts: None,
            duration: None,
            buffer_offset: None,
            buffer_offset_end: None,
            flags: 0,
            event: false,
            attachments: Attachments::new(),
        }
    }
}

/// Why consumers would refuse a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaError(pub &'static str);

impl FrameMeta {
    /// A frame of `size` bytes at the start of its slot. All other properties are unknown.
    pub fn new(size: usize) -> Self {
        Self {
            size: size as u64,
            ..Self::default()
        }
    }

    /// Returns the description with this layout.
    pub fn with_layout(self, layout: impl Into<Arc<FrameLayout>>) -> Self {
        Self {
            layout: layout.into(),
            ..self
        }
    }
}

impl Deref for FrameMeta {
    type Target = FrameLayout;

    fn deref(&self) -> &FrameLayout {
        &self.layout
    }
}

impl DerefMut for FrameMeta {
    fn deref_mut(&mut self) -> &mut FrameLayout {
        Arc::make_mut(&mut self.layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(Text::<4>::new("abcü").as_str(), "abc");
        assert_eq!(Text::<4>::new("a\0b").as_str(), "a");
        assert_eq!(Text::<4>::from_bytes([b'a', 0xff, b'c', 0]).as_str(), "a");
    }
}
