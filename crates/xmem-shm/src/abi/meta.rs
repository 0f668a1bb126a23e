// SPDX-License-Identifier: MPL-2.0

//! The description of a frame, which the caller of `publish` supplies in addition to its bytes.

use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use crate::abi::frame_layout::FrameLayout;
use crate::abi::limits::RESERVED_LEN;
use crate::abi::named::Attachments;

/// The bytes of a frame's description that the user defines.
pub type Reserved = [u8; RESERVED_LEN];

/// The description of a frame. The caller of `publish` fills it in. [`FrameInfo`](crate::abi::entry::FrameInfo) has the
/// values that publishing adds. All times are in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FrameMeta {
    /// First byte of the payload, counted from the slot's first byte.
    pub offset: u64,
    /// Size of the payload in bytes.
    pub size: u64,

    /// How to interpret the bytes. A program that publishes many frames creates a layout once and uses it for [all of
    /// them](Self::with_layout).
    pub layout: Arc<FrameLayout>,
    /// For the user's own data.
    pub reserved: Option<Box<Reserved>>,

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
    /// Flags of the frame.
    pub flags: FrameFlags,
    /// This is an event of the stream between two frames, and not a frame. It has attachments and no payload. Consumers get it
    /// only with `ConsumerBuilder::events`.
    pub event: bool,
    /// Further data, by name. They are in the slot after the payload, in the requested room (`SlotSpec::attachments`).
    pub attachments: Attachments,
}

impl Default for FrameMeta {
    fn default() -> Self {
        Self::new(0)
    }
}

impl FrameMeta {
    /// A frame of `size` bytes at the start of its slot. All other properties are unknown.
    pub fn new(size: usize) -> Self {
        Self::with_layout(size, FrameLayout::unknown())
    }

    /// A frame of `size` bytes with this layout.
    pub fn with_layout(size: usize, layout: impl Into<Arc<FrameLayout>>) -> Self {
        Self {
            offset: 0,
            size: size as u64,
            layout: layout.into(),
            reserved: None,
            timestamp: None,
            decode_timestamp: None,
            pts: None,
            dts: None,
            duration: None,
            buffer_offset: None,
            buffer_offset_end: None,
            flags: FrameFlags::default(),
            event: false,
            attachments: Attachments::new(),
        }
    }

    /// With this layout.
    pub fn layout(mut self, layout: impl Into<Arc<FrameLayout>>) -> Self {
        self.layout = layout.into();
        self
    }

    /// With this presentation time on CLOCK_MONOTONIC.
    pub fn timestamp(mut self, timestamp: i64) -> Self {
        self.timestamp = Some(timestamp);
        self
    }

    /// With this presentation time of the producer's pipeline.
    pub fn pts(mut self, pts: u64) -> Self {
        self.pts = Some(pts);
        self
    }

    /// With this duration.
    pub fn duration(mut self, duration: u64) -> Self {
        self.duration = Some(duration);
        self
    }

    /// With these flags.
    pub fn flags(mut self, flags: FrameFlags) -> Self {
        self.flags = flags;
        self
    }

    /// With these attachments.
    pub fn attachments(mut self, attachments: Attachments) -> Self {
        self.attachments = attachments;
        self
    }

    /// The layout, for a change of this frame's only. Copies the layout if other frames share it.
    pub fn layout_mut(&mut self) -> &mut FrameLayout {
        Arc::make_mut(&mut self.layout)
    }
}

/// Flags of a frame: those GstBufferFlags that are meaningful in other processes, and [`AFTER_GAP`](Self::AFTER_GAP).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FrameFlags(u32);

impl FrameFlags {
    /// The frame is needed to decode others (GST_BUFFER_FLAG_HEADER).
    pub const HEADER: Self = Self(1 << 10);
    /// The frame depends on earlier frames (GST_BUFFER_FLAG_DELTA_UNIT).
    pub const DELTA_UNIT: Self = Self(1 << 13);
    /// Frames before it are missing, and no number shows that. GStreamer's flags are below this bit, those of video at most
    /// `1 << 28`.
    pub const AFTER_GAP: Self = Self(1 << 31);

    /// These bits, as in GstBufferFlags.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits, as in GstBufferFlags.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of these flags are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for FrameFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for FrameFlags {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}
