// SPDX-License-Identifier: MPL-2.0

//! Observes the frames at a pad.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gst::glib;
use gst::prelude::*;
use gst_video::prelude::*;
use rustix::time::ClockId;
use serde_json::json;

use crate::{now, report};

/// For each frame, its due time on CLOCK_MONOTONIC, which identifies it on both sides, and the time at which it reached the pad.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<Vec<(u64, u64)>>);

impl Times {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.lock())
    }
}

/// The due time of a frame on the clock that all processes share. 0 if it is unknown. All pipelines use this clock.
fn due(pad: &gst::Pad, buffer: &gst::BufferRef) -> u64 {
    let segment = pad.sticky_event::<gst::event::Segment>(0);
    let segment =
        segment.and_then(|event| event.segment().downcast_ref::<gst::ClockTime>().cloned());
    let running = segment.and_then(|segment| segment.to_running_time(buffer.pts()));
    let base = pad.parent_element().and_then(|element| element.base_time());
    match (running, base) {
        (Some(running), Some(base)) => (running + base).nseconds(),
        _ => 0,
    }
}

/// Reports the first frame at once.
pub(crate) fn take_times(pad: &gst::Pad, times: std::sync::Arc<Times>) {
    let reported = std::sync::Once::new();
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let at = now(ClockId::Monotonic);
        if let Some(buffer) = info.buffer() {
            times.lock().push((due(pad, buffer), at));
        }
        reported.call_once(|| report(&json!({"event": "first"})));
        gst::PadProbeReturn::Ok
    });
}

pub(crate) fn print_checksums(pad: &gst::Pad) {
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let caps = pad.current_caps();
        let video = caps.and_then(|caps| gst_video::VideoInfo::from_caps(&caps).ok());
        if let (Some(video), Some(buffer)) = (video, info.buffer()) {
            let sum = checksum(&video, buffer).unwrap_or_else(|| "unreadable".to_owned());
            let (width, height) = (video.width(), video.height());
            report(&json!({"event": "frame", "sum": sum, "width": width, "height": height}));
        }
        gst::PadProbeReturn::Ok
    });
}

/// A checksum of the visible part of a picture. The padding of rows is undefined.
fn checksum(video: &gst_video::VideoInfo, buffer: &gst::BufferRef) -> Option<String> {
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, video).ok()?;
    let mut sum = glib::Checksum::new(glib::ChecksumType::Sha1)?;
    let format = video.format_info();
    for plane in 0..frame.n_planes() {
        let components =
            (0..frame.n_components()).filter(|at| format.plane()[*at as usize] == plane);
        let component = components.min()?;
        let row = frame.comp_width(component) as usize * frame.comp_pstride(component) as usize;
        let stride = usize::try_from(frame.plane_stride()[plane as usize]).ok()?;
        let rows = frame.plane_data(plane).ok()?.chunks(stride);
        for bytes in rows.take(frame.comp_height(component) as usize) {
            sum.update(bytes.get(..row)?);
        }
    }
    sum.string()
}
