// SPDX-License-Identifier: MPL-2.0

//! Frames that differ in every byte.

use gst_video::{VideoFormat, VideoFrameRef, VideoInfo};

use crate::support::{paint, pixels};

/// A frame in host memory, painted with a number.
pub fn painted(info: &VideoInfo, number: u8) -> gst::Buffer {
    let mut buffer = gst::Buffer::with_size(info.size()).unwrap();
    paint(&mut buffer, info, number);
    buffer
        .make_mut()
        .set_pts(gst::ClockTime::from_mseconds(u64::from(number) * 40));
    buffer
}

/// Paints a buffer with any layout of planes.
pub fn paint_like(buffer: &mut gst::Buffer, caps: &gst::Caps, number: u8) -> Result<(), String> {
    let info = VideoInfo::from_caps(caps).map_err(|error| error.to_string())?;
    let from = painted(&info, number);
    let from =
        VideoFrameRef::from_buffer_ref_readable(&from, &info).map_err(|error| error.to_string())?;
    let buffer = buffer.make_mut();
    let mut to = VideoFrameRef::from_buffer_ref_writable(buffer, &info)
        .map_err(|error| error.to_string())?;
    from.copy(&mut to)
        .map_err(|_| "cannot be copied".to_owned())
}

/// The difference between a frame's pixels and those of the frame with this number. `None` if they are equal.
pub fn difference(sample: &gst::Sample, number: u8) -> Option<String> {
    let caps = sample.caps().unwrap().to_owned();
    let mut host = caps;
    // The same frame in host memory.
    host.make_mut()
        .set_features(0, Some(gst::CapsFeatures::new_empty()));
    let info = VideoInfo::from_caps(&host).unwrap();
    let wanted = gst::Sample::builder()
        .buffer(&painted(&info, number))
        .caps(&host)
        .build();
    let (is, wanted) = (pixels(sample), pixels(&wanted));
    if is == wanted {
        return None;
    }
    let first = is.iter().zip(&wanted).position(|(is, wanted)| is != wanted);
    let differing = is.iter().zip(&wanted).filter(|(is, wanted)| is != wanted);
    Some(format!(
        "frame {number}: {} of {} bytes differ, the first is {first:?}: {:?} in place of {:?}",
        differing.count(),
        wanted.len(),
        first.map(|first| &is[first..(first + 8).min(is.len())]),
        first.map(|first| &wanted[first..(first + 8).min(wanted.len())]),
    ))
}

/// The caps of raw video in host memory.
pub fn caps(format: VideoFormat, width: u32, height: u32) -> String {
    format!(
        "video/x-raw,format={},width={width},height={height},framerate=25/1",
        format.to_str()
    )
}
