// SPDX-License-Identifier: MPL-2.0

//! Replaces `device` in builds without CUDA. Frames on a device cannot be received.

use xmem_core::ReadLease;

use super::{
    buffer::Outcome,
    run::{SourceContext, Started},
    times::BufferTimes,
};

/// Posts an error.
pub(super) fn receive(
    source: SourceContext<'_>,
    _started: &mut Started,
    _lease: &ReadLease,
    _times: BufferTimes,
    _over_budget: bool,
) -> Result<Outcome, gst::FlowError> {
    gst::element_error!(
        source.element,
        gst::StreamError::Format,
        ("The pool's frames are on a CUDA device, but this plugin was built without CUDA: download the frames in the producer")
    );
    Err(gst::FlowError::Error)
}
