// SPDX-License-Identifier: MPL-2.0

//! The description of a frame, which the caller of `publish` supplies in addition to its bytes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::abi::frame_layout::FrameLayout;
use crate::abi::limits::RESERVED_LEN;
use crate::abi::named::Attachments;

/// The bytes of a frame's description that the user defines.
pub type Reserved = [u8; RESERVED_LEN];

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
    /// Flags of the frame: those GstBufferFlags that are meaningful in other processes, and [`FrameMeta::AFTER_GAP`].
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

impl FrameMeta {
    /// A flag: the frame is needed to decode others (GST_BUFFER_FLAG_HEADER).
    pub const HEADER: u32 = 1 << 10;
    /// A flag: the frame depends on earlier frames (GST_BUFFER_FLAG_DELTA_UNIT).
    pub const DELTA_UNIT: u32 = 1 << 13;
    /// A flag: frames before it are missing, and no number shows that. GStreamer's flags are below this bit, those of video at most
    /// `1 << 28`.
    pub const AFTER_GAP: u32 = 1 << 31;

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
