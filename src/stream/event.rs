// SPDX-License-Identifier: MPL-2.0

//! Events between two frames, as attachments of an entry of the pool: xmemsink packs them, xmemsrc unpacks them. Their times are in the
//! entry's metadata, as for a frame. Also a consumer's request for a key frame, as an event.

use gst_video::{DownstreamForceKeyUnitEvent, UpstreamForceKeyUnitEvent};
use xmem_core::{Attachments, FrameMeta, key_frame::KeyFrame};

use super::text;

/// The type of the event.
const KIND: &str = "event";
/// The structure of a custom event.
const STRUCTURE: &str = "structure";

const GAP: &str = "gap";
const CUSTOM: [(&str, gst::EventType); 4] = [
    ("custom-downstream", gst::EventType::CustomDownstream),
    ("custom-downstream-oob", gst::EventType::CustomDownstreamOob),
    ("custom-both", gst::EventType::CustomBoth),
    ("custom-both-oob", gst::EventType::CustomBothOob),
];

/// The data of an event.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) attachments: Attachments,
    /// A buffer with the time of the event.
    pub(crate) when: gst::Buffer,
    pub(crate) flags: u32,
}

/// Packs an event that belongs between two frames. `None`: it is another event. `Err`: why it cannot be shared.
pub(crate) fn pack(event: &gst::EventRef) -> Option<Result<Packed, &'static str>> {
    if let gst::EventView::Gap(gap) = event.view() {
        let (timestamp, duration) = gap.get();
        return Some(Ok(Packed {
            attachments: attachments(GAP),
            when: moment(Some(timestamp), duration),
            flags: gap.gap_flags().bits(),
        }));
    }
    let (kind, _) = CUSTOM.iter().find(|(_, kind)| *kind == event.type_())?;
    let structure = event.structure()?;
    let packed = text::of_whole_structure(structure).map(|text| {
        let mut attachments = attachments(kind);
        attachments.set(STRUCTURE, text);
        // This custom event contains times of its pipeline, so they are converted. The contents of others are not known.
        let timestamp = DownstreamForceKeyUnitEvent::parse(event)
            .ok()
            .and_then(|event| event.timestamp);
        Packed {
            attachments,
            when: moment(timestamp, None),
            flags: 0,
        }
    });
    Some(packed)
}

fn attachments(kind: &str) -> Attachments {
    let mut attachments = Attachments::new();
    attachments.set(KIND, kind);
    attachments
}

fn moment(timestamp: Option<gst::ClockTime>, duration: Option<gst::ClockTime>) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    if let Some(buffer) = buffer.get_mut() {
        buffer.set_pts(timestamp);
        buffer.set_duration(duration);
    }
    buffer
}

/// The event of an entry that is not a frame. `pts` and `duration` are its times in this pipeline. `None`: the type is not
/// known here.
pub(crate) fn unpack(
    meta: &FrameMeta,
    pts: Option<gst::ClockTime>,
    duration: Option<gst::ClockTime>,
    segment: Option<&gst::FormattedSegment<gst::ClockTime>>,
) -> Option<gst::Event> {
    let kind = meta.attachments.text(KIND)?;
    if kind == GAP {
        let flags = gst::GapFlags::from_bits_truncate(meta.flags.bits());
        let gap = gst::event::Gap::builder(pts?).duration(duration);
        return Some(gap.gap_flags(flags).build());
    }
    let (_, kind) = CUSTOM.iter().find(|(name, _)| *name == kind)?;
    let structure = text::to_bounded_structure(meta.attachments.text(STRUCTURE)?)?;
    let event = custom(*kind, structure)?;
    let Ok(key_frame) = DownstreamForceKeyUnitEvent::parse(&event) else {
        return Some(event);
    };
    // Without a time, it applies to the next frame that can be a key frame.
    let key_frame = DownstreamForceKeyUnitEvent::builder()
        .timestamp(pts)
        .running_time(segment.and_then(|segment| segment.to_running_time(pts)))
        .stream_time(segment.and_then(|segment| segment.to_stream_time(pts)))
        .all_headers(key_frame.all_headers)
        .count(key_frame.count);
    Some(key_frame.build())
}

fn custom(kind: gst::EventType, structure: gst::Structure) -> Option<gst::Event> {
    Some(match kind {
        gst::EventType::CustomDownstream => gst::event::CustomDownstream::new(structure),
        gst::EventType::CustomDownstreamOob => gst::event::CustomDownstreamOob::new(structure),
        gst::EventType::CustomBoth => gst::event::CustomBoth::new(structure),
        gst::EventType::CustomBothOob => gst::event::CustomBothOob::new(structure),
        _ => return None,
    })
}

/// The request in an event from downstream. `at` is its running time on CLOCK_MONOTONIC. If that is past, the request is for the
/// next possible frame.
pub(crate) fn requested_key_frame(event: &UpstreamForceKeyUnitEvent, at: Option<i64>) -> KeyFrame {
    KeyFrame {
        all_headers: event.all_headers,
        at: at.filter(|at| *at > xmem_core::monotonic_ns()),
    }
}

/// The event that requests it upstream, for a frame with this running time. `None`: as soon as possible.
pub(crate) fn key_frame_request(
    key_frame: KeyFrame,
    running_time: Option<gst::ClockTime>,
    count: u32,
) -> gst::Event {
    UpstreamForceKeyUnitEvent::builder()
        .running_time(running_time)
        .all_headers(key_frame.all_headers)
        .count(count)
        .build()
}
