// SPDX-License-Identifier: MPL-2.0

//! Messages about consumers: warnings, and an element message for one that did not leave by itself.
//!
//! `GstXmemClientDropped`: fields `id` (guint64) and `name` (string) as in #GstXmemSink:stats, `pid` (guint) and
//! `reason` (string): `died`, its process ended without leaving; `cut-off`, its lease page was invalid; `timed-out`,
//! it held up lossless delivery for longer than #GstXmemSink:lossless-timeout. Consumers that leave emit
//! #GstXmemSink::client-disconnected.

use gst::prelude::*;
use xmem_core::{ConsumerEvent, ConsumerStats, Departure};

/// Posts a message if a consumer did not leave by itself. The caller holds no lock, because a bus handler may read properties.
pub(super) fn dropped(
    sink: &gst_base::BaseSink,
    client: &ConsumerStats,
    reason: Departure,
    word: &str,
) {
    if matches!(reason, Departure::Left | Departure::Closed) {
        return;
    }
    let structure = gst::Structure::builder("GstXmemClientDropped")
        .field("id", client.id)
        .field("pid", client.pid)
        .field("name", &client.name)
        .field("reason", word)
        .build();
    // It fails only if the element has no bus.
    let _ = sink.post_message(gst::message::Element::builder(structure).src(sink).build());
}

/// Warns that upstream has few buffers left. The caller holds no lock.
#[cold]
pub(super) fn scarce(sink: &gst_base::BaseSink, verb: &str, most: u32) {
    gst::element_warning!(
        sink,
        gst::ResourceError::NoSpaceLeft,
        ("Frames are {verb}: upstream has {most} buffers, and consumers hold most of them. `xmem show` lists the consumers. \
             v4l2src io-mode=userptr writes into the slots of the pool instead, of which there are more")
    );
}

/// Warns that consumers copy frames, that the pool cannot grow, or that a consumer holds up the stream. The caller holds no lock.
pub(super) fn warn(sink: &gst_base::BaseSink, event: &ConsumerEvent) {
    match event {
        ConsumerEvent::BudgetsCut {
            budget,
            consumers,
            limit,
        } => gst::element_warning!(
            sink,
            gst::ResourceError::NoSpaceLeft,
            ("Consumers may have to copy frames: {limit} has room for a budget of {budget} for each consumer, of which there are \
                 {consumers}. Raise {limit}")
        ),
        ConsumerEvent::CannotGrow(error) => gst::element_warning!(
            sink,
            gst::ResourceError::NoSpaceLeft,
            ("The pool cannot grow. While consumers hold all slots, frames are dropped, or wait with delivery=lossless: {error}")
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

/// Warns that the pool cannot keep frames as long as upstream's latency. The caller holds no lock.
#[cold]
pub(super) fn warn_of_latency(
    sink: &gst_base::BaseSink,
    latency: gst::ClockTime,
    kept: gst::ClockTime,
) {
    gst::element_warning!(
        sink,
        gst::ResourceError::NoSpaceLeft,
        (
            "Upstream's latency is {} ms, and the pool can keep frames of this size for {} ms. Consumers that wait for the frames' \
             times wait for that time only, and show no frame that comes later. Reduce the latency of upstream, such as \
             latency=200 of rtspsrc, or set pace=always. Raise history or max-bytes if they are set",
            latency.mseconds(),
            kept.mseconds()
        )
    );
}
