// SPDX-License-Identifier: MPL-2.0

//! A live source of decoded frames: an H.264 clip in memory, repeated, and a decoder.

use gst::prelude::*;

use crate::Error;
use crate::frames::Frames;
use crate::pace::Pace;

/// The number of frames in the clip. The first one is a key frame.
const LENGTH: u32 = 60;
const ELEMENTS: &[&str] = &["x264enc", "h264parse", "avdec_h264"];

/// An element that GStreamer lacks here.
pub(crate) fn missing_element() -> Option<&'static str> {
    let is_missing = |name: &&&str| gst::ElementFactory::find(name).is_none();
    ELEMENTS.iter().find(is_missing).copied()
}

/// The source. The decoder has one thread, so that its processor time differs little between runs.
pub(crate) fn source(frames: Frames, fps: u32) -> Result<gst::Bin, Error> {
    let clip = encode(frames)?;
    let description =
        "appsrc name=clip is-live=true format=time do-timestamp=true ! avdec_h264 max-threads=1";
    let bin = gst::parse::bin_from_description(description, true)?;
    let source = bin.by_name("clip").ok_or("no appsrc")?;
    let source: gst_app::AppSrc = source.downcast().map_err(|_| "appsrc is not an AppSrc")?;
    source.set_caps(clip.first().and_then(|sample| sample.caps_owned()).as_ref());
    let buffers = clip.iter().filter_map(|sample| sample.buffer_owned());
    let mut buffers = buffers.collect::<Vec<_>>().into_iter().cycle();
    let mut pace = Pace::new(fps);
    let callbacks = gst_app::AppSrcCallbacks::builder().need_data(move |source, _| {
        pace.wait(false);
        if let Some(mut buffer) = buffers.next() {
            let buffer_ref = buffer.make_mut();
            buffer_ref.set_pts(None);
            buffer_ref.set_dts(None);
            // The result is an error only while the pipeline is being stopped.
            let _ = source.push_buffer(buffer);
        }
    });
    source.set_callbacks(callbacks.build());
    Ok(bin)
}

/// Encodes the clip: one sample for each frame.
fn encode(frames: Frames) -> Result<Vec<gst::Sample>, Error> {
    let pipeline = gst::parse::launch(&format!(
        "videotestsrc pattern=ball num-buffers={LENGTH} ! {} ! \
         x264enc tune=zerolatency speed-preset=veryfast key-int-max={LENGTH} ! h264parse ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! appsink name=end sync=false",
        frames.caps()
    ))?;
    let pipeline: gst::Pipeline = pipeline.downcast().map_err(|_| "not a pipeline")?;
    let end = pipeline.by_name("end").ok_or("no appsink")?;
    let end: gst_app::AppSink = end.downcast().map_err(|_| "appsink is not an AppSink")?;
    pipeline.set_state(gst::State::Playing)?;
    let clip: Vec<_> = std::iter::from_fn(|| end.pull_sample().ok()).collect();
    pipeline.set_state(gst::State::Null)?;
    if clip.is_empty() {
        return Err("the clip could not be encoded".into());
    }
    Ok(clip)
}
