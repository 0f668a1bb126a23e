// SPDX-License-Identifier: MPL-2.0

//! A program that links the elements, and writes its frames directly into a pool's slots. Nothing must be installed for it, and
//! `GST_PLUGIN_PATH` is not needed.
//!
//! ```text
//! cargo run --example embed-producer -- cam0 [FRAMES]
//! ```

use std::{error::Error, thread, time::Duration};

use gst::prelude::*;

const FRAME_TIME: Duration = Duration::from_millis(40);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let pool = args.next().ok_or("usage: embed-producer POOL [FRAMES]")?;
    let frames = args.next().map_or(Ok(u64::MAX), |text| text.parse())?;
    gst::init()?;
    gstxmem::plugin_register_static()?;

    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Gray8, 320, 240)
        .fps((25, 1))
        .build()?;
    let source = gst_app::AppSrc::builder()
        .caps(&info.to_caps()?)
        .format(gst::Format::Time)
        .is_live(true)
        .do_timestamp(true)
        .build();
    let sink = gst::ElementFactory::make("xmemsink")
        .property("pool", &pool)
        .property("wait-for-connection", true)
        .build()?;
    let pipeline = gst::Pipeline::default();
    pipeline.add_many([source.upcast_ref(), &sink])?;
    source.link(&sink)?;

    pipeline.set_state(gst::State::Playing)?;
    let result = produce(&source, &info, frames).and_then(|()| wait(&pipeline));
    pipeline.set_state(gst::State::Null)?;
    result
}

/// Frames of increasing brightness, which then starts again.
fn produce(
    source: &gst_app::AppSrc,
    info: &gst_video::VideoInfo,
    frames: u64,
) -> Result<(), Box<dyn Error>> {
    let slots = offered_pool(source, info)?;
    slots.set_active(true)?;
    for number in 0..frames {
        let mut buffer = slots.acquire_buffer(None)?;
        paint(&mut buffer, info, number as u8)?;
        if source.push_buffer(buffer).is_err() {
            // It has stopped. The error is on the bus.
            break;
        }
        thread::sleep(FRAME_TIME);
    }
    slots.set_active(false)?;
    source.end_of_stream()?;
    Ok(())
}

/// `appsrc` does not use an offered buffer pool by itself.
fn offered_pool(
    source: &gst_app::AppSrc,
    info: &gst_video::VideoInfo,
) -> Result<gst::BufferPool, Box<dyn Error>> {
    let pad = source.static_pad("src").ok_or("an appsrc without a pad")?;
    let mut query = gst::query::Allocation::new(Some(&info.to_caps()?), true);
    if !pad.peer_query(&mut query) {
        return Err("downstream offers no buffers".into());
    }
    let pool = query.allocation_pools().find_map(|(pool, ..)| pool);
    pool.ok_or_else(|| "downstream offers no pool".into())
}

fn paint(
    buffer: &mut gst::Buffer,
    info: &gst_video::VideoInfo,
    brightness: u8,
) -> Result<(), Box<dyn Error>> {
    let buffer = buffer.get_mut().ok_or("the buffer is shared")?;
    // The distance between rows may be larger than their width: the layout of the slot applies.
    let mut frame = gst_video::VideoFrameRef::from_buffer_ref_writable(buffer, info)?;
    frame.plane_data_mut(0)?.fill(brightness);
    Ok(())
}

/// Waits until the stream has ended or an error occurs.
fn wait(pipeline: &gst::Pipeline) -> Result<(), Box<dyn Error>> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    for message in bus.iter_timed(gst::ClockTime::NONE) {
        match message.view() {
            gst::MessageView::Eos(_) => break,
            gst::MessageView::Error(error) => return Err(error.error().into()),
            _ => {}
        }
    }
    Ok(())
}
