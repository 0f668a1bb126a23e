// SPDX-License-Identifier: MPL-2.0

//! A consumer that did not leave by itself, as an element message.
//!
//! `GstXmemClientDropped`: fields `id` (guint64) and `name` (string) as in #GstXmemSink:stats, `pid` (guint) and
//! `reason` (string): `died`, its process ended without a goodbye; `cut-off`, its lease page made no sense; `timed-out`,
//! it held up lossless delivery for longer than #GstXmemSink:lossless-timeout. Of those that leave,
//! #GstXmemSink::client-disconnected tells.

use gst::prelude::*;
use xmem_core::{ConsumerStats, Departure};

use super::XmemSink;

/// Says that a consumer is gone, if it did not leave by itself. Not with a lock held: a handler of the bus may ask for
/// properties.
pub(super) fn dropped(sink: &XmemSink, client: &ConsumerStats, reason: Departure, word: &str) {
    if matches!(reason, Departure::Left | Departure::Closed) {
        return;
    }
    let structure = gst::Structure::builder("GstXmemClientDropped")
        .field("id", client.id)
        .field("pid", client.pid)
        .field("name", &client.name)
        .field("reason", word)
        .build();
    // It fails only without a bus, and then there is nobody to tell.
    let _ = sink.post_message(gst::message::Element::builder(structure).src(sink).build());
}
