// SPDX-License-Identifier: MPL-2.0

//! Element messages about a producer that is lost or found again.
//!
//! * `GstXmemProducerLost`: the connection to the producer was lost before the end of the stream. Fields `pool` (string),
//!   `pid` (guint, the producer's) and `reason` (string): `gone`, the producer was stopped or killed; `timed-out`, the
//!   producer disconnected this source because it blocked lossless delivery. #GstXmemSrc:on-producer-lost sets the next
//!   step.
//! * `GstXmemProducerBack`: connected again, to the same or to another producer. Fields `pool` (string) and `pid`
//!   (guint).

use std::ffi::OsStr;

use gst::prelude::*;
use xmem_core::{ReceiveError, follow::Lost};

/// Posts that a producer is lost. The caller holds no lock, because a bus handler may read properties.
pub(super) fn lost(src: &gst_base::BaseSrc, pool: &OsStr, lost: &Lost) {
    let reason = match lost.error {
        ReceiveError::TimedOut => "timed-out",
        _ => "gone",
    };
    post(
        src,
        gst::Structure::builder("GstXmemProducerLost")
            .field("pool", pool.to_string_lossy().into_owned())
            .field("pid", lost.producer_pid)
            .field("reason", reason)
            .build(),
    );
}

/// Posts that a producer was found again. The caller holds no lock.
pub(super) fn back(src: &gst_base::BaseSrc, pool: &OsStr, pid: u32) {
    post(
        src,
        gst::Structure::builder("GstXmemProducerBack")
            .field("pool", pool.to_string_lossy().into_owned())
            .field("pid", pid)
            .build(),
    );
}

/// Posts that the latency has changed. The application then makes the pipeline query it.
pub(super) fn latency_changed(src: &gst_base::BaseSrc) {
    let _ = src.post_message(gst::message::Latency::builder().src(src).build());
}

/// Whether this is GstBaseSrc's error for caps that were refused.
pub(super) fn is_not_negotiated(message: &gst::Message) -> bool {
    let gst::MessageView::Error(error) = message.view() else {
        return false;
    };
    let flow = error
        .details()
        .and_then(|details| details.get("flow-return").ok());
    flow == Some(gst::ffi::GST_FLOW_NOT_NEGOTIATED)
}

fn post(src: &gst_base::BaseSrc, structure: gst::Structure) {
    // It fails only if the element has no bus.
    let _ = src.post_message(gst::message::Element::builder(structure).src(src).build());
}
