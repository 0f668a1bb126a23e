// SPDX-License-Identifier: MPL-2.0

//! A producer that goes away and comes back, as element messages.
//!
//! * `GstXmemProducerLost`: the producer is gone, or goes on without this source, and the stream had not ended. Fields
//!   `pool` (string), `pid` (guint, the producer's) and `reason` (string): `gone`, it was stopped or killed;
//!   `timed-out`, it did not want to wait for this source any longer. What comes next is up to
//!   #GstXmemSrc:on-producer-lost.
//! * `GstXmemProducerBack`: connected again, to the same or to another producer. Fields `pool` (string) and `pid`
//!   (guint).

use std::ffi::OsStr;

use gst::prelude::*;

use super::XmemSrc;

/// Why a producer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// It was stopped or killed.
    Gone,
    /// It waits for this source no longer.
    TimedOut,
}

impl Loss {
    fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::TimedOut => "timed-out",
        }
    }
}

/// Says that a producer is lost. Not with a lock held: a handler of the bus may ask for properties.
pub(super) fn lost(src: &XmemSrc, pool: &OsStr, pid: u32, loss: Loss) {
    post(
        src,
        gst::Structure::builder("GstXmemProducerLost")
            .field("pool", pool.to_string_lossy().into_owned())
            .field("pid", pid)
            .field("reason", loss.word())
            .build(),
    );
}

/// Says that there is a producer again. Not with a lock held.
pub(super) fn back(src: &XmemSrc, pool: &OsStr, pid: u32) {
    post(
        src,
        gst::Structure::builder("GstXmemProducerBack")
            .field("pool", pool.to_string_lossy().into_owned())
            .field("pid", pid)
            .build(),
    );
}

/// Whether this is GstBaseSrc's error for frames that were refused.
pub(super) fn is_not_negotiated(message: &gst::Message) -> bool {
    let gst::MessageView::Error(error) = message.view() else {
        return false;
    };
    let flow = error
        .details()
        .and_then(|details| details.get("flow-return").ok());
    flow == Some(gst::ffi::GST_FLOW_NOT_NEGOTIATED)
}

fn post(src: &XmemSrc, structure: gst::Structure) {
    // It fails only without a bus, and then there is nobody to tell.
    let _ = src.post_message(gst::message::Element::builder(structure).src(src).build());
}
