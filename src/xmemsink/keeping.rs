// SPDX-License-Identifier: MPL-2.0

//! How long the pool can keep frames for consumers that wait for their times.

use gst::prelude::*;

use super::started::Started;

/// Frames come and go irregularly.
const SLACK: gst::ClockTime = gst::ClockTime::from_mseconds(100);
/// If the caps do not have the rate.
const USUAL_RATE: i32 = 30;
/// Memory that the pool did not allocate, such as a decoder's, is kept for a few frames only.
const BORROWED: u32 = 3;

/// The longest time for frames with these caps. `None`: not known. Only raw video is so large that the limit matters.
pub(super) fn longest(caps: &gst::CapsRef, started: &Started) -> Option<gst::ClockTime> {
    if started.is_lossless() {
        return None;
    }
    let info = gst_video::VideoInfo::from_caps(caps).ok()?;
    let is_borrowed = caps
        .features(0)
        .is_some_and(|features| features.contains(gst_allocators::CAPS_FEATURE_MEMORY_DMABUF));
    let frames = if is_borrowed {
        BORROWED
    } else {
        started.producer.most_kept(info.size())
    };
    let rate = info.fps();
    let (frames_per, seconds) = match (rate.numer(), rate.denom()) {
        (1.., 1..) => (rate.numer(), rate.denom()),
        _ => (USUAL_RATE, 1),
    };
    let interval = gst::ClockTime::SECOND.mul_div_floor(
        u64::from(seconds.unsigned_abs()),
        u64::from(frames_per.unsigned_abs()),
    )?;
    let time = interval.saturating_mul(frames.saturating_sub(1).into());
    Some(time.saturating_sub(SLACK).max(interval))
}
