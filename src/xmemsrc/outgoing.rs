// SPDX-License-Identifier: MPL-2.0

//! What leaves the element as it is meant to, whatever GstBaseSrc makes of it: it gives each stream a segment of its
//! own, has the first frame begin at 0 if it has no time, and takes a decoding time for the presentation time where that
//! is missing.

use std::sync::{Arc, Mutex};

use gst::prelude::*;

use crate::lock::lock;

#[derive(Debug, Default)]
pub(super) struct Outgoing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The DTS of the frame on its way, which has no PTS.
    without_pts: Option<Option<gst::ClockTime>>,
    /// Buffers are looked at. Most streams have no frame that needs it, and each look costs something.
    is_watching: bool,
    /// In the place of GstBaseSrc's segment.
    segment: Option<gst::Segment>,
}

impl Outgoing {
    /// Has a frame leave with the times that it has. GstBaseSrc changes those of frames without a PTS only.
    pub(super) fn keep_times(self: &Arc<Self>, pad: &gst::Pad, buffer: &gst::BufferRef) {
        let watch = self.state(|state| {
            state.without_pts = buffer.pts().is_none().then(|| buffer.dts());
            state.without_pts.is_some() && !std::mem::replace(&mut state.is_watching, true)
        });
        if watch {
            let outgoing = self.clone();
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
                if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
                    outgoing.mend_buffer(buffer);
                }
                gst::PadProbeReturn::Ok
            });
        }
    }

    pub(super) fn set_segment(&self, segment: Option<gst::Segment>) {
        self.state(|state| state.segment = segment);
    }

    /// What is in the place of GstBaseSrc's segment, if anything is.
    pub(super) fn segment(&self) -> Option<gst::Segment> {
        self.state(|state| state.segment.clone())
    }

    fn state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut lock(&self.0))
    }

    fn mend_buffer(&self, buffer: &mut gst::Buffer) {
        let Some(dts) = self.state(|state| state.without_pts.take()) else {
            return;
        };
        if (buffer.pts(), buffer.dts()) != (None, dts) {
            let buffer = buffer.make_mut();
            buffer.set_pts(None);
            buffer.set_dts(dts);
        }
    }

    /// Replaces GstBaseSrc's segment, if it has to be.
    pub(super) fn mend_event(&self, event: &mut gst::Event) {
        if event.type_() != gst::EventType::Segment {
            return;
        }
        let Some(segment) = self.state(|state| state.segment.clone()) else {
            return;
        };
        *event = gst::event::Segment::builder(&segment)
            .seqnum(event.seqnum())
            .build();
    }
}
