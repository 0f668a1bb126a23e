// SPDX-License-Identifier: MPL-2.0

//! Raw sound that is partly outside of its segment. Sinks and encoders remove the samples outside, by the segment, which consumers
//! do not have. So xmemsink removes them. The others stay where they are in memory.

use gst::prelude::*;

/// What is left of a buffer.
#[derive(Debug)]
pub(super) enum Clipped {
    /// It is inside as a whole, or has no time or no samples.
    Whole,
    /// The samples inside, and how many were outside.
    Part(gst::Buffer, u64),
    Nothing,
}

/// The part of a buffer that is inside its segment.
pub(super) fn clip(
    segment: &gst::Segment,
    info: &gst_audio::AudioInfo,
    buffer: &gst::BufferRef,
) -> Clipped {
    let (Some(times), Some(start)) = (segment.downcast_ref::<gst::ClockTime>(), buffer.pts())
    else {
        return Clipped::Whole;
    };
    let end = start.saturating_add(duration(info, buffer));
    let samples = num_samples(info, buffer);
    if samples == 0 || times.clip(start, end) == Some((Some(start), Some(end))) {
        return Clipped::Whole;
    }
    // A copy of the buffer and not of its memory: GStreamer 1.22 would change the GstAudioMeta of a shared buffer.
    let part = gst_audio::audio_buffer_clip(buffer.copy(), segment, info.rate(), info.bpf());
    let left = part.as_ref().map_or(0, |part| num_samples(info, part));
    match part {
        // Less than a sample is outside.
        Some(_) if left == samples => Clipped::Whole,
        Some(part) if left > 0 => Clipped::Part(part, samples.saturating_sub(left)),
        _ => Clipped::Nothing,
    }
}

fn num_samples(info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> u64 {
    let meta = buffer.meta::<gst_audio::AudioMeta>();
    let samples = meta.map_or_else(
        || buffer.size() / (info.bpf().max(1) as usize),
        |meta| meta.samples(),
    );
    samples as u64
}

/// A demuxer may leave out the duration.
fn duration(info: &gst_audio::AudioInfo, buffer: &gst::BufferRef) -> gst::ClockTime {
    let by_samples =
        || gst::ClockTime::SECOND.mul_div_floor(num_samples(info, buffer), info.rate().into());
    buffer.duration().or_else(by_samples).unwrap_or_default()
}
