// SPDX-License-Identifier: MPL-2.0

//! Sends this element's own events in order with those of GstBaseSrc.

use std::sync::Arc;

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::Sticky;

use super::{
    log::CAT,
    outgoing::{Correction, Outgoing},
    source::Source,
    started::Running,
};
use crate::stream::{
    event::{sticky, text},
    start::Description,
};

/// Corrects the events that leave by this pad. Disconnects at the end of the stream.
pub(super) fn watch(pad: &gst::Pad, outgoing: Arc<Outgoing>, running: Arc<Running>) {
    let kinds = gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::EVENT_FLUSH;
    pad.add_probe(kinds, move |pad, info| {
        let Some(gst::PadProbeData::Event(event)) = &mut info.data else {
            return gst::PadProbeReturn::Ok;
        };
        match outgoing.correct_event(pad, event) {
            Correction::Send => {}
            Correction::Drop => return gst::PadProbeReturn::Handled,
            // The pad sends an event that it stores, and this probe sees it again.
            Correction::Replace(other) => match pad.store_sticky_event(&other) {
                Ok(_) => return gst::PadProbeReturn::Handled,
                Err(_) => *event = other,
            },
        }
        match event.type_() {
            gst::EventType::FlushStop => running.flush(),
            gst::EventType::Eos => {
                // No frames are taken after this, so a lossless producer must not wait for this source.
                running.disconnect();
                if !outgoing.has_begun()
                    && let Some(start) = pad.sticky_event::<gst::event::StreamStart>(0)
                    && let Some(peer) = pad.peer()
                {
                    peer.send_event(start.to_owned());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

/// Sends the start of the stream that this state belongs to. `false`: it was sent before.
pub(super) fn announce(source: Source<'_>, new: &Sticky) -> bool {
    let stream_id = new.text(sticky::STREAM_ID).unwrap_or_default();
    let stream_id = format!("{}/{stream_id}", source.settings.pool.display());
    let description = Description::parse(new.text(sticky::STREAM));
    let caps = new.text(sticky::CAPS).and_then(sticky::parse_caps);
    let tags = new
        .text(sticky::TAGS)
        .and_then(|text| sticky::parse_tags(sticky::TAGS, text));
    let event = description.to_event(&stream_id, caps.as_ref(), tags.as_ref());
    let begins = source
        .outgoing
        .begin(event.seqnum(), stream_id, description);
    if begins {
        gst::debug!(CAT, obj = source.element, "{event:?}");
        source.element.src_pad().push_event(event);
    }
    begins
}

/// Sends the segment of the next buffer, if it was not sent. GstBaseSrc would send it only with that buffer.
pub(super) fn push_segment(source: Source<'_>) {
    if !source.outgoing.has_sent_segment() {
        let event = gst::event::Segment::new(&source.outgoing.segment(source.element));
        source.element.src_pad().push_event(event);
    }
}

/// Sends a segment that applies to the next frame.
#[cold]
pub(super) fn replace_segment(source: Source<'_>, segment: gst::FormattedSegment<gst::ClockTime>) {
    source.outgoing.set_segment(Some(segment.upcast()));
    push_segment(source);
}

/// Sends an event that belongs after the segment, before the next event or buffer.
pub(super) fn push(source: Source<'_>, event: gst::Event) {
    push_segment(source);
    gst::debug!(CAT, obj = source.element, "{event:?}");
    source.element.src_pad().push_event(event);
}

/// Sends the changed sticky events that belong after the segment.
pub(super) fn push_sticky(source: Source<'_>, new: &Sticky, old: &Sticky) {
    for (key, value) in new.iter() {
        if old.get(key) == Some(value) {
            continue;
        }
        let Some(text) = new.text(key) else { continue };
        let event = if [sticky::TAGS, sticky::GLOBAL_TAGS].contains(&key) {
            sticky::parse_tags(key, text).map(gst::event::Tag::new)
        } else if key.starts_with(sticky::CUSTOM) {
            text::to_structure(text).map(gst::event::CustomDownstreamSticky::new)
        } else {
            continue;
        };
        match event {
            Some(event) => push(source, event),
            None => gst::warning!(
                CAT,
                obj = source.element,
                "The producer's {key:?} cannot be parsed"
            ),
        }
    }
}
