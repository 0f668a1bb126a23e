// SPDX-License-Identifier: MPL-2.0

//! A consumer's request for a key frame, as an event.

use gst::prelude::*;
use gst_video::UpstreamForceKeyUnitEvent;
use xmem_core::key_frame::KeyFrame;

use crate::stream::timing;

/// The request in an event from downstream.
pub(crate) fn from_event(event: &UpstreamForceKeyUnitEvent, element: &gst::Element) -> KeyFrame {
    let now = xmem_core::monotonic_ns();
    let at = event
        .running_time
        .zip(element.current_running_time())
        .map(|(time, running)| now.saturating_add_unsigned(time.saturating_sub(running).nseconds()))
        .filter(|at| *at > now);
    KeyFrame {
        all_headers: event.all_headers,
        at,
    }
}

/// The event that asks for it upstream of an element.
pub(crate) fn to_event(key_frame: KeyFrame, element: &gst::Element, count: u32) -> gst::Event {
    let now = xmem_core::monotonic_ns();
    let running_time = key_frame.at.and_then(|at| {
        let running = element.current_running_time()?;
        Some(running.saturating_add(timing::elapsed(now, at)))
    });
    UpstreamForceKeyUnitEvent::builder()
        .running_time(running_time)
        .all_headers(key_frame.all_headers)
        .count(count)
        .build()
}
