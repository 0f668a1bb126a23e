// SPDX-License-Identifier: MPL-2.0

//! What applications should know of consumers: warnings, and an element message for one that did not leave by itself.
//!
//! `GstXmemClientDropped`: fields `id` (guint64) and `name` (string) as in #GstXmemSink:stats, `pid` (guint) and
//! `reason` (string): `died`, its process ended without a goodbye; `cut-off`, its lease page made no sense; `timed-out`,
//! it held up lossless delivery for longer than #GstXmemSink:lossless-timeout. Of those that leave,
//! #GstXmemSink::client-disconnected tells.

use gst::prelude::*;
use xmem_core::{ConsumerEvent, ConsumerStats, Departure};

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

/// Warns that consumers copy frames, or that one holds up the stream. Not with a lock held.
pub(super) fn warn(sink: &XmemSink, event: &ConsumerEvent) {
    match event {
        ConsumerEvent::BudgetsCut {
            budget,
            consumers,
            limit,
        } => gst::element_warning!(
            sink,
            gst::ResourceError::NoSpaceLeft,
            ("Consumers of this pool copy frames: there are {consumers}, and {limit} has room for {budget} slots that each \
                 may hold at once. Raise {limit}")
        ),
        ConsumerEvent::HoldsUp(client) => gst::element_warning!(
            sink,
            gst::ResourceError::Busy,
            (
                "The stream waits for consumer {:?} (process {}), which has taken no frame for two seconds. Stop that consumer, or set \
                 lossless-timeout",
                client.name,
                client.pid
            )
        ),
        _ => {}
    }
}
