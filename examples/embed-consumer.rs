// SPDX-License-Identifier: MPL-2.0

//! A program that links the elements, and receives frames of a pool with `appsink`. Nothing must be installed for it, and
//! `GST_PLUGIN_PATH` is not needed.
//!
//! ```text
//! cargo run --example embed-consumer -- cam0
//! ```
//!
//! `embed-producer` publishes frames for it.

use std::{
    error::Error,
    io::{self, Write},
};

use gst::prelude::*;
use gst_video::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args()
        .nth(1)
        .filter(|arg| !arg.starts_with('-'))
        .ok_or("usage: embed-consumer POOL")?;
    gst::init()?;
    gstxmem::plugin_register_static()?;

    let source = gst::ElementFactory::make("xmemsrc")
        .property("pool", &pool)
        .property_from_str("on-producer-lost", "eos")
        .build()?;
    let sink = gst_app::AppSink::builder()
        // A frame counts towards this consumer's budget until its sample is dropped.
        .max_buffers(1)
        .drop(true)
        .callbacks(
            gst_app::AppSinkCallbacks::builder()
                .new_sample(|sink| look(&sink.pull_sample().map_err(|_| gst::FlowError::Eos)?))
                .build(),
        )
        .build();
    accept_padded_rows(&sink);
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([&source, sink.upcast_ref()])?;
    source.link(&sink)?;

    pipeline.set_state(gst::State::Playing)?;
    let result = wait(&pipeline);
    pipeline.set_state(gst::State::Null)?;
    result
}

/// Answers allocation queries as an element that reads GstVideoMeta. Otherwise xmemsrc copies frames with padded rows, which most
/// decoders make. Since GStreamer 1.24, `propose_allocation` of the callbacks can do this.
fn accept_padded_rows(sink: &gst_app::AppSink) {
    let Some(pad) = sink.static_pad("sink") else {
        return;
    };
    pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
        match info.query_mut().map(gst::QueryRef::view_mut) {
            Some(gst::QueryViewMut::Allocation(query)) => {
                query.add_allocation_meta::<gst_video::VideoMeta>(None);
                gst::PadProbeReturn::Handled
            }
            _ => gst::PadProbeReturn::Ok,
        }
    });
}

/// Prints the number of the frame, and the brightness of its first plane, which is read in place.
fn look(sample: &gst::Sample) -> Result<gst::FlowSuccess, gst::FlowError> {
    let info = sample
        .caps()
        .and_then(|caps| gst_video::VideoInfo::from_caps(caps).ok());
    let (Some(buffer), Some(info)) = (sample.buffer(), info) else {
        return Err(gst::FlowError::NotNegotiated);
    };
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, &info)
        .map_err(|_| gst::FlowError::Error)?;
    let plane = frame.plane_data(0).map_err(|_| gst::FlowError::Error)?;
    let sum: u64 = plane.iter().map(|byte| u64::from(*byte)).sum();
    // A copied frame does not belong to the pool.
    let number = gstxmem::FrameInfo::of_buffer(buffer).map_or("a copy".to_owned(), |frame| {
        format!("frame {}", frame.sequence)
    });
    let told = writeln!(
        io::stdout(),
        "{number} at {}, {}x{} {}: mean {}",
        buffer.pts().display(),
        frame.width(),
        frame.height(),
        frame.format(),
        sum / plane.len().max(1) as u64
    );
    // The output was closed, for example by `| head`: end the stream.
    told.map(|()| gst::FlowSuccess::Ok)
        .map_err(|_| gst::FlowError::Eos)
}

/// Waits until the producer is gone or an error occurs.
fn wait(pipeline: &gst::Pipeline) -> Result<(), Box<dyn Error>> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    for message in bus.iter_timed(gst::ClockTime::NONE) {
        match message.view() {
            gst::MessageView::Eos(_) => break,
            gst::MessageView::Error(error) => return Err(error.error().into()),
            gst::MessageView::Warning(warning) => eprintln!("{}", warning.error()),
            _ => {}
        }
    }
    Ok(())
}
