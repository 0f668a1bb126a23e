// SPDX-License-Identifier: MPL-2.0

//! The context of the streaming thread.

use std::sync::Arc;

use xmem_core::Canceller;

use super::{
    figures::Figures, latency::Latency, outgoing::Outgoing, settings::Settings, stream::Stream,
    times::Playback,
};
use crate::{buffers::tally::Tally, stream::meta::Losses};

/// The parts of a started source that its streaming thread uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) element: &'a gst_base::BaseSrc,
    /// The settings at the start.
    pub(super) settings: &'a Settings,
    pub(super) stream: &'a Stream,
    pub(super) outgoing: &'a Arc<Outgoing>,
    pub(super) figures: &'a Figures,
    pub(super) latency: &'a Latency,
    pub(super) tally: &'a Arc<Tally>,
    pub(super) losses: &'a Losses,
    pub(super) canceller: &'a Canceller,
}

impl Source<'_> {
    /// The latency of the element for frames that are played so.
    pub(super) fn latency(&self, playback: &Playback) -> gst::ClockTime {
        // The deadline may change meanwhile, and does not matter for a comparison.
        let deadline = gst::ClockTime::ZERO;
        let mode = self.settings.timestamp_mode;
        self.latency.answer(playback, mode, deadline)
    }
}
