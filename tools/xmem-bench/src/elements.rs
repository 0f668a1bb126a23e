// SPDX-License-Identifier: MPL-2.0

//! One side of a transport that consists of two GStreamer elements.

use std::sync::Arc;

use gst::prelude::*;

use crate::commands::{self, RECEIVING, SENDING};
use crate::figures::Meter;
use crate::source::Source;
use crate::{Endpoint, Error, decoder, stamp};

pub(crate) fn producer(endpoint: &Endpoint, fps: u32) -> Result<(), Error> {
    init()?;
    let sink = gst::parse::bin_from_description(&endpoint.transport.sink(&endpoint.socket), true)?
        .upcast();
    let meter = Arc::new(Meter::new()?);
    let (pipeline, pad) = source_pipeline(endpoint, fps, &sink)?;
    let counter = meter.clone();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        if counter.count() {
            println!("{SENDING}");
        }
        gst::PadProbeReturn::Ok
    });
    play(&pipeline, &meter)
}

pub(crate) fn consumer(endpoint: &Endpoint) -> Result<(), Error> {
    init()?;
    let description = endpoint.transport.source(&endpoint.socket, endpoint.frames);
    let source = gst::parse::bin_from_description(&description, true)?;
    let meter = Arc::new(Meter::new()?);
    let sink = receiver(&meter, endpoint);
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([source.upcast_ref::<gst::Element>(), sink.upcast_ref()])?;
    source.link(&sink)?;
    play(&pipeline, &meter)
}

/// The source and the receiver in one process, without a transport.
pub(crate) fn alone(endpoint: &Endpoint, fps: u32) -> Result<(), Error> {
    init()?;
    let meter = Arc::new(Meter::new()?);
    let sink = receiver(&meter, endpoint).upcast();
    let (pipeline, _) = source_pipeline(endpoint, fps, &sink)?;
    play(&pipeline, &meter)
}

fn init() -> Result<(), Error> {
    gst::init()?;
    gstxmem::plugin_register_static()?;
    Ok(())
}

fn source_pipeline(
    endpoint: &Endpoint,
    fps: u32,
    sink: &gst::Element,
) -> Result<(gst::Pipeline, gst::Pad), Error> {
    let source: gst::Element = if endpoint.frames.is_decoded() {
        decoder::source(endpoint.frames, fps)?.upcast()
    } else {
        Source::new(endpoint.frames, endpoint.touch, fps).upcast()
    };
    let pad = source.static_pad("src").ok_or("the source has no pad")?;
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([&source, sink])?;
    source.link(sink)?;
    Ok((pipeline, pad))
}

fn receiver(meter: &Arc<Meter>, endpoint: &Endpoint) -> gst_app::AppSink {
    let meter = meter.clone();
    let (touch, is_decoded) = (endpoint.touch, endpoint.frames.is_decoded());
    let receive = move |sink: &gst_app::AppSink| {
        let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
        let buffer = sample.buffer().ok_or(gst::FlowError::Error)?;
        let map = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
        let is_first = if is_decoded {
            stamp::read_without_time(&map, touch, &meter)
        } else {
            stamp::read(&map, touch, &meter).map_err(|_| gst::FlowError::Error)?
        };
        if is_first {
            println!("{RECEIVING}");
        }
        Ok(gst::FlowSuccess::Ok)
    };
    let sink = gst_app::AppSink::builder()
        .sync(false)
        .callbacks(
            gst_app::AppSinkCallbacks::builder()
                .new_sample(receive)
                .build(),
        )
        .build();
    if is_decoded && let Some(pad) = sink.static_pad("sink") {
        accept_padded_rows(&pad);
    }
    sink
}

/// Answers allocation queries as an element that reads GstVideoMeta. Otherwise decoders copy their frames to rows without padding.
fn accept_padded_rows(pad: &gst::Pad) {
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

/// Plays the pipeline until standard input ends.
fn play(pipeline: &gst::Pipeline, meter: &Meter) -> Result<(), Error> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    bus.set_sync_handler(|_, message| {
        if let gst::MessageView::Error(error) = message.view() {
            // The measurement is invalid. The parent process reads the end of the output as a failure.
            eprintln!("xmem-bench: {} {:?}", error.error(), error.debug());
            std::process::exit(1);
        }
        gst::BusSyncReply::Drop
    });
    pipeline.set_state(gst::State::Playing)?;
    commands::serve(meter)?;
    // shmsink before 1.28 posts an error when it is stopped.
    bus.unset_sync_handler();
    pipeline.set_state(gst::State::Null)?;
    Ok(())
}
