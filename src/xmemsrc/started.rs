// SPDX-License-Identifier: MPL-2.0

//! The state of a source between start and stop.

use std::sync::Arc;

use xmem_core::{Consumer, ConsumerBuilder, ConsumerHandle, Sticky};

#[cfg(feature = "cuda")]
use super::device::OnDevice;
use super::{
    key_frame_gate::KeyFrameGate,
    messages::Loss,
    settings::Settings,
    times::{Course, Stamper},
};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::{
    frame::{Format, Memory},
    stats::SourceFigures,
};

/// What the streaming thread works with. It takes it out of its lock while it waits.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) builder: ConsumerBuilder,
    /// As they were at the start; they can be changed only while the source is stopped.
    pub(super) settings: Settings,
    /// `None`: none yet, or lost.
    pub(super) consumer: Option<Consumer>,
    /// There was a producer before.
    pub(super) was_connected: bool,
    /// Version of the sticky state that `stream` has, of this producer.
    pub(super) sticky_version: Option<u64>,
    /// Sequence of the frame that would follow the last one without a gap.
    pub(super) next_sequence: Option<u64>,
    /// The next buffer does not follow the last one.
    pub(super) discont: bool,
    pub(super) gate: KeyFrameGate,
    /// Nothing of this producer's went out yet.
    pub(super) header_is_due: bool,
    pub(super) stamper: Stamper,
    /// The next buffer, which was there only when a pause had begun.
    pub(super) kept: Option<gst::Buffer>,
    pub(super) said_budget: bool,
    pub(super) said_copied: bool,
    pub(super) said_dropped: bool,
    pub(super) said_missed: bool,
    #[cfg(feature = "cuda")]
    pub(super) on_device: Option<OnDevice>,
}

/// What the sticky state of the producer comes to.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) sticky: Sticky,
    pub(super) caps: Option<gst::Caps>,
    /// The application was told that they are refused.
    pub(super) said_refused: bool,
    /// Whether frames are handed on in the memory of a device. `None`: not known yet.
    pub(super) on_device: Option<bool>,
    pub(super) format: Arc<Format>,
    pub(super) course: Course,
    /// Downstream can read a GstVideoMeta.
    pub(super) video_meta: bool,
    /// The stream on which downstream works, as far as it says.
    #[cfg(feature = "cuda")]
    pub(super) reader: Option<Arc<cuda::Stream>>,
}

impl Stream {
    /// Whether frames lie elsewhere than the caps say that are out.
    pub(super) fn is_elsewhere(&self, on_device: Option<bool>) -> bool {
        self.caps.is_some() && on_device.is_some_and(|on_device| on_device != self.is_cuda())
    }

    /// Whether the caps that are out are of memory on CUDA devices.
    pub(super) fn is_cuda(&self) -> bool {
        self.format.memory == Memory::Cuda
    }
}

/// What the stats are made of, in one place: as a connection ends, what it counted moves into the figures.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) figures: SourceFigures,
    /// The connection to the current producer, for others than the streaming thread.
    pub(super) connection: Option<ConsumerHandle>,
}

/// Why there is no frame.
#[derive(Debug)]
pub(super) enum Stop {
    /// The streaming thread ends with this.
    Flow(gst::FlowError),
    /// The producer went away.
    Lost(Loss),
    /// The stream is over.
    Over,
}
