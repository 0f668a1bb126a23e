// SPDX-License-Identifier: MPL-2.0

//! One side of a transport, which runs under Valgrind.

use std::path::PathBuf;

use gst::glib::ffi as glib;
use gst::prelude::*;

use crate::Error;
use crate::figures::{Column, name};
use crate::mark::{MARKS_AT, Mark};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A plugin to load. No other plugins are loaded
    #[arg(long)]
    plugin: Vec<PathBuf>,
    /// The frames are in the producer's own memory
    #[arg(long)]
    foreign: bool,
    /// The description of the sink or the source, as for gst-launch-1.0
    elements: String,
}

/// The functions whose calls are counted. Mutexes of Rust's standard library have no function.
const FUNCTIONS: &[(Column, *const ())] = &[
    (Column::Mutexes, glib::g_mutex_lock as _),
    (Column::Mutexes, glib::g_mutex_trylock as _),
    (Column::Mutexes, libc::pthread_mutex_lock as _),
    (Column::Mutexes, libc::pthread_mutex_trylock as _),
    (Column::Allocations, libc::malloc as _),
    (Column::Allocations, libc::calloc as _),
    (Column::Allocations, libc::realloc as _),
    (Column::Allocations, libc::memalign as _),
    (Column::Allocations, libc::aligned_alloc as _),
    (Column::Allocations, libc::posix_memalign as _),
    (Column::Frees, libc::free as _),
];

/// Prints the addresses that are needed to read the trace.
pub(crate) fn announce() {
    for (column, function) in FUNCTIONS {
        println!("{} {}", name(*column), function.addr());
    }
    println!("{MARKS_AT} {}", Mark::all_at());
}

pub(crate) fn producer(args: &Args) -> Result<(), Error> {
    init(args)?;
    let sink = gst::parse::launch(&args.elements)?;
    let pipeline = gst::Pipeline::new();
    pipeline.add(&sink)?;
    let pad = gst::Pad::builder(gst::PadDirection::Src).build();
    pad.set_active(true)?;
    pad.link(&sink.static_pad("sink").ok_or("the sink has no pad")?)?;
    play(&pipeline)?;
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, 1920, 1080)
        .fps(60)
        .build()?;
    let caps = info.to_caps()?;
    pad.push_event(gst::event::StreamStart::new("count"));
    pad.push_event(gst::event::Caps::new(&caps));
    pad.push_event(gst::event::Segment::new(&gst::FormattedSegment::<
        gst::ClockTime,
    >::new()));
    let pool = pool(&pad, &caps, info.size() as u32, args.foreign)?;
    pool.set_active(true)?;
    announce();
    for (line, time) in std::io::stdin().lines().zip(0..) {
        line?;
        Mark::Acquire.set();
        let acquired = pool.acquire_buffer(None);
        Mark::Rest.set();
        let mut buffer = acquired?;
        let writable = buffer
            .get_mut()
            .ok_or("the pool's buffer has other owners")?;
        writable.set_pts(gst::ClockTime::SECOND * time / 60);
        Mark::Push.set();
        let pushed = pad.push(buffer);
        Mark::Rest.set();
        pushed?;
    }
    stop(&pipeline)
}

/// The buffer pool of the producer, chosen as GStreamer's own sources and decoders do: the sink's pool, a new pool with the sink's
/// allocator, or a new pool in the producer's memory.
fn pool(
    pad: &gst::Pad,
    caps: &gst::Caps,
    size: u32,
    foreign: bool,
) -> Result<gst::BufferPool, Error> {
    let mut query = gst::query::Allocation::new(Some(caps), true);
    let answered = !foreign && pad.peer_query(&mut query);
    let offered = query.allocation_pools().next().filter(|_| answered);
    let (pool, size, min, max) = match offered {
        Some((Some(pool), size, min, max)) => (pool, size, min, max),
        _ => (gst_video::VideoBufferPool::new().upcast(), size, 4, 0),
    };
    let mut config = pool.config();
    config.set_params(Some(caps), size, min, max);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    if let Some((allocator, params)) = query.allocation_params().next().filter(|_| answered) {
        config.set_allocator(allocator.as_ref(), Some(&params));
    }
    pool.set_config(config)?;
    Ok(pool)
}

pub(crate) fn consumer(args: &Args) -> Result<(), Error> {
    init(args)?;
    let description = format!("{} ! fakesink name=end sync=false", args.elements);
    let pipeline = gst::parse::launch(&description)?
        .downcast::<gst::Pipeline>()
        .map_err(|_| "not a pipeline")?;
    let end = pipeline.by_name("end").ok_or("no sink")?;
    let pad = end.static_pad("sink").ok_or("the sink has no pad")?;
    pad.add_probe(gst::PadProbeType::BUFFER, |_, _| {
        Mark::Loop.set();
        gst::PadProbeReturn::Ok
    });
    announce();
    let mut stdin = std::io::stdin().lines();
    // The first line: the producer is ready.
    stdin.next().transpose()?;
    play(&pipeline)?;
    stdin.next().transpose()?;
    Mark::Rest.set();
    stop(&pipeline)
}

fn init(args: &Args) -> Result<(), Error> {
    gst::init()?;
    for plugin in &args.plugin {
        gst::Plugin::load_file(plugin)?;
    }
    Ok(())
}

fn play(pipeline: &gst::Pipeline) -> Result<(), Error> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    bus.set_sync_handler(|_, message| {
        if let gst::MessageView::Error(error) = message.view() {
            eprintln!("xmem-count: {} {:?}", error.error(), error.debug());
            std::process::exit(1);
        }
        gst::BusSyncReply::Drop
    });
    pipeline.set_state(gst::State::Playing)?;
    Ok(())
}

fn stop(pipeline: &gst::Pipeline) -> Result<(), Error> {
    // shmsink before 1.28 posts an error when it is stopped.
    pipeline
        .bus()
        .ok_or("a pipeline without a bus")?
        .unset_sync_handler();
    pipeline.set_state(gst::State::Null)?;
    Ok(())
}
