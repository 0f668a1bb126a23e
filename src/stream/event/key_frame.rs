// SPDX-License-Identifier: MPL-2.0

//! A consumer's request for a key frame, as an event.

use gst::prelude::*;
use gst_video::UpstreamForceKeyUnitEvent;
use xmem_core::key_frame::KeyFrame;

use crate::stream::timing;

/// The request in an event from downstream. `at` is its running time on CLOCK_MONOTONIC. If that is past, the request is for the
/// next possible frame.
pub(crate) fn from_event(event: &UpstreamForceKeyUnitEvent, at: Option<i64>) -> KeyFrame {
    KeyFrame {
        all_headers: event.all_headers,
        at: at.filter(|at| *at > xmem_core::monotonic_ns()),
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
