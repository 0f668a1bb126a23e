// SPDX-License-Identifier: MPL-2.0

//! What the streaming thread works with: the parts of a started source, its statistics, and the outcomes of frames.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use xmem_core::{
    Canceller, ConsumerHandle,
    follow::{FollowerHandle, FollowerStats},
    key_frame::KeyFrame,
};

use super::{
    base::{CAT, Outgoing},
    latency::Latency,
    settings::Settings,
    stream::{Playback, SourceStream},
};
use crate::{buffers::allocator::Tally, lock, stream::meta::Losses};

/// The parts of a started source that its streaming thread uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceContext<'a> {
    pub(super) element: &'a gst_base::BaseSrc,
    /// The settings at the start.
    pub(super) settings: &'a Settings,
    pub(super) stream: &'a SourceStream,
    pub(super) outgoing: &'a Arc<Outgoing>,
    pub(super) stats: &'a SourceStats,
    pub(super) latency: &'a Latency,
    pub(super) tally: &'a Arc<Tally>,
    pub(super) losses: &'a Losses,
    pub(super) canceller: &'a Canceller,
}

impl SourceContext<'_> {
    /// The latency of the element for frames that are played so.
    pub(super) fn latency(&self, playback: &Playback) -> gst::ClockTime {
        // The deadline may change meanwhile, and does not matter for a comparison.
        let deadline = gst::ClockTime::ZERO;
        let mode = self.settings.timestamp_mode;
        self.latency.answer(playback, mode, deadline)
    }

    /// Asks the producer to keep frames for as long as downstream needs them.
    pub(super) fn ask_to_keep(&self) {
        self.latency.ask(self.stats.consumer(), self.stream);
    }
}

#[derive(Debug, Default)]
pub(super) struct SourceStats {
    zero_copy: AtomicU64,
    undecodable: AtomicU64,
    /// `None`: the source was never started.
    follower: Mutex<Option<FollowerHandle>>,
}

impl SourceStats {
    /// Starts to count at 0, for a new follower.
    pub(super) fn restart(&self, follower: FollowerHandle) {
        *lock(&self.follower) = Some(follower);
        self.zero_copy.store(0, Ordering::Relaxed);
        self.undecodable.store(0, Ordering::Relaxed);
    }

    /// Counts a frame that is sent downstream in place.
    pub(super) fn note_zero_copy(&self) {
        self.zero_copy.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that depends on a key frame that was not received.
    pub(super) fn note_undecodable(&self) {
        self.undecodable.fetch_add(1, Ordering::Relaxed);
    }

    /// The statistics of the follower, `zero-copy` and `undecodable`.
    pub(super) fn get(&self) -> (FollowerStats, u64, u64) {
        let follower = lock(&self.follower).clone();
        let stats = follower.map(|it| it.stats()).unwrap_or_default();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (stats, count(&self.zero_copy), count(&self.undecodable))
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub(super) fn consumer(&self) -> Option<ConsumerHandle> {
        let follower = lock(&self.follower).clone();
        follower?.consumer()
    }

    /// Requests a key frame from the producer. `false`: there is no producer, or it takes no requests.
    pub(super) fn request(&self, element: &gst_base::BaseSrc, key_frame: KeyFrame) -> bool {
        let Some(consumer) = self.consumer() else {
            return false;
        };
        let asked = consumer.request(KeyFrame::NAME, &key_frame.encode());
        asked
            .inspect_err(|error| {
                gst::debug!(CAT, obj = element, "Cannot ask for {key_frame:?}: {error}");
            })
            .is_ok()
    }
}

/// Where the bytes of a buffer are, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// In the slot of the frame.
    InPlace,
    /// Copied, because the budget was used up.
    OverBudget,
    /// Copied, because downstream can read only the default layout.
    Layout,
    /// Copied with the samples in reverse order, because the producer plays raw sound backward.
    Reversed,
    /// Copied from a device, because `download` is set.
    Downloaded,
}

/// The outcome of a received frame.
pub(super) enum Outcome {
    Buffer(gst::Buffer, Placement),
    Dropped,
    /// The element was stopped while it waited for a frame in device memory.
    Cancelled,
    /// The key frame that this frame needs is missing, or the beginning of the header that it belongs to.
    Undecodable,
}

/// Why a frame's description is invalid.
#[derive(Debug)]
pub(super) struct InvalidFrame(pub(super) String);
