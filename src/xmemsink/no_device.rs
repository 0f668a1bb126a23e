// SPDX-License-Identifier: MPL-2.0

//! Replaces `device` in builds without CUDA. No buffer is in device memory.

use xmem_core::{Canceller, FrameMeta, ProducerBuilder};

use super::{
    run::{Failure, Outcome, Started},
    settings::Settings,
    stream::SinkStream,
};

pub(super) fn configure(builder: ProducerBuilder, _settings: &Settings) -> ProducerBuilder {
    builder
}

pub(super) fn offer(
    _sink: &gst::Element,
    _started: &Started,
    _caps: &gst::Caps,
    _query: &mut gst::query::Allocation,
) {
}

pub(super) fn publish(
    _started: &Started,
    _buffer: &gst::Buffer,
    _meta: &FrameMeta,
    _stream: &SinkStream,
    _cancel: &Canceller,
) -> Result<Option<Outcome>, Failure> {
    Ok(None)
}
