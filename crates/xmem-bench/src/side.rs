// SPDX-License-Identifier: MPL-2.0

//! One side of a transport, in a process of its own. It measures when it is told to on its standard input.

use std::io::{BufRead, Write};
use std::sync::Arc;

use gst::prelude::*;
use rustix::time::ClockId;

use crate::figures::{Meter, now};
use crate::source::{PAGE, Source};
use crate::{Error, Place};

/// Bytes of the time at the head of a frame.
pub(crate) const STAMP: usize = 8;
/// A path that does not exist. Asking for it leaves a mark among the system calls.
pub(crate) const MARK: &str = "/xmem-bench-mark";

pub(crate) const RECEIVING: &str = "receiving";
pub(crate) const MEASURE: &str = "measure";
pub(crate) const STOP: &str = "stop";

pub(crate) fn producer(place: &Place, fps: u32) -> Result<(), Error> {
    init()?;
    let sink =
        gst::parse::bin_from_description(&place.transport.sink(&place.socket), true)?.upcast();
    let meter = Arc::new(Meter::new()?);
    let pipeline = source_pipeline(place, fps, &sink, &meter)?;
    serve(&pipeline, &meter)
}

pub(crate) fn consumer(place: &Place) -> Result<(), Error> {
    init()?;
    let source = gst::parse::bin_from_description(
        &place.transport.source(&place.socket, place.scenario),
        true,
    )?;
    let meter = Arc::new(Meter::new()?);
    let sink = receiver(&meter, place.touch);
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([source.upcast_ref::<gst::Element>(), sink.upcast_ref()])?;
    source.link(&sink)?;
    serve(&pipeline, &meter)
}

pub(crate) fn alone(place: &Place, fps: u32) -> Result<(), Error> {
    init()?;
    let meter = Arc::new(Meter::new()?);
    let sink = receiver(&meter, place.touch).upcast();
    // The receiver counts, so the source need not.
    let pipeline = source_pipeline(place, fps, &sink, &Arc::new(Meter::new()?))?;
    serve(&pipeline, &meter)
}

fn init() -> Result<(), Error> {
    gst::init()?;
    gstxmem::plugin_register_static()?;
    Ok(())
}

fn source_pipeline(
    place: &Place,
    fps: u32,
    sink: &gst::Element,
    meter: &Arc<Meter>,
) -> Result<gst::Pipeline, Error> {
    let source: gst::Element = Source::new(place.scenario, place.touch, fps).upcast();
    let meter = meter.clone();
    let pad = source.static_pad("src").ok_or("the source has no pad")?;
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        meter.count();
        gst::PadProbeReturn::Ok
    });
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([&source, sink])?;
    source.link(sink)?;
    Ok(pipeline)
}

/// Takes the time of each frame's arrival, and then looks at its pages, if it is to touch them.
fn receiver(meter: &Arc<Meter>, touch: bool) -> gst_app::AppSink {
    let meter = meter.clone();
    let receive = move |sink: &gst_app::AppSink| {
        let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
        let arrival = now(ClockId::Monotonic);
        let buffer = sample.buffer().ok_or(gst::FlowError::Error)?;
        let map = buffer.map_readable().map_err(|_| gst::FlowError::Error)?;
        let stamp = map.first_chunk::<STAMP>().ok_or(gst::FlowError::Error)?;
        meter.latency(arrival.saturating_sub(u64::from_le_bytes(*stamp)));
        if touch {
            let pages = map.iter().step_by(PAGE);
            std::hint::black_box(pages.fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
        }
        if meter.count() {
            println!("{RECEIVING}");
        }
        Ok(gst::FlowSuccess::Ok)
    };
    gst_app::AppSink::builder()
        .sync(false)
        .callbacks(
            gst_app::AppSinkCallbacks::builder()
                .new_sample(receive)
                .build(),
        )
        .build()
}

/// Plays, and measures between `measure` and `stop`.
fn serve(pipeline: &gst::Pipeline, meter: &Meter) -> Result<(), Error> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    bus.set_sync_handler(|_, message| {
        if let gst::MessageView::Error(error) = message.view() {
            // Nothing measured is worth anything now; whoever started us sees the end of our output.
            eprintln!("xmem-bench: {} {:?}", error.error(), error.debug());
            std::process::exit(1);
        }
        gst::BusSyncReply::Drop
    });
    pipeline.set_state(gst::State::Playing)?;
    let mut start = None;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            MEASURE => {
                start = Some(meter.start()?);
                mark();
            }
            STOP => {
                mark();
                let start = start.as_ref().ok_or("stop before measure")?;
                println!("{}", serde_json::to_string(&meter.figures_since(start)?)?);
                std::io::stdout().flush()?;
                break;
            }
            other => return Err(format!("unknown order {other:?}").into()),
        }
    }
    // shmsink before 1.28 posts an error when it is stopped.
    bus.unset_sync_handler();
    pipeline.set_state(gst::State::Null)?;
    Ok(())
}

fn mark() {
    // That it is not there is the point.
    let _ = std::fs::metadata(MARK);
}
