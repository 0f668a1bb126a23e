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
    /// PTS and DTS of the frame on its way. `None`: whatever GstBaseSrc makes of them.
    times: Option<(Option<gst::ClockTime>, Option<gst::ClockTime>)>,
    /// In the place of GstBaseSrc's segment.
    segment: Option<gst::Segment>,
}

impl Outgoing {
    /// Looks after what leaves through a pad.
    pub(super) fn watch(self: &Arc<Self>, pad: &gst::Pad) {
        let outgoing = self.clone();
        pad.add_probe(
            gst::PadProbeType::BUFFER | gst::PadProbeType::EVENT_DOWNSTREAM,
            move |_, info| {
                match &mut info.data {
                    Some(gst::PadProbeData::Buffer(buffer)) => outgoing.mend_buffer(buffer),
                    Some(gst::PadProbeData::Event(event)) => outgoing.mend_event(event),
                    _ => {}
                }
                gst::PadProbeReturn::Ok
            },
        );
    }

    pub(super) fn set_times(
        &self,
        times: Option<(Option<gst::ClockTime>, Option<gst::ClockTime>)>,
    ) {
        self.state(|state| state.times = times);
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
        let Some((pts, dts)) = self.state(|state| state.times.take()) else {
            return;
        };
        if (buffer.pts(), buffer.dts()) != (pts, dts) {
            let buffer = buffer.make_mut();
            buffer.set_pts(pts);
            buffer.set_dts(dts);
        }
    }

    fn mend_event(&self, event: &mut gst::Event) {
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
