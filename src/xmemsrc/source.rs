// SPDX-License-Identifier: MPL-2.0

//! The context of the streaming thread.

use std::sync::Arc;

use xmem_core::Canceller;

use super::{figures::Figures, outgoing::Outgoing, settings::Settings, stream::Stream};
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
    pub(super) tally: &'a Arc<Tally>,
    pub(super) losses: &'a Losses,
    pub(super) canceller: &'a Canceller,
}
