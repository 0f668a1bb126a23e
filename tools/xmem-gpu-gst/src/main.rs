// SPDX-License-Identifier: MPL-2.0

//! Runs a pipeline and reports its events on standard output, one JSON object with an `event` per line. `gpu/elements.py` starts
//! one for each side.
//!
//! Commands are lines on standard input:
//!
//! * `measure`: starts to record times and CPU time; the reply is `measuring`
//! * `figures`: the figures since then; the reply is `figures`
//! * `kernels`: the number of frames that were read on the device, and of their wrong bytes; the reply is `kernels`
//! * `stats ELEMENT`: the property `stats` of the element; the reply is `stats`
//! * `set ELEMENT PROPERTY VALUE`: sets a property; the reply is `set`
//! * `stop`: stops the pipeline and reports the duration; the reply is `stopped`

#[path = "../../../crates/xmem-core/tests/cuda/gpu.rs"]
#[allow(unsafe_code, unreachable_pub)] // of a test program
mod gpu;
#[path = "../../../tests/cuda_elements/gstcuda.rs"]
#[allow(dead_code, unreachable_pub)]
mod gstcuda;
mod json;
#[allow(unsafe_code)] // streams that other libraries made
mod kernels;
mod taps;

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use gst::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use self::kernels::{Kernels, On};
use self::taps::Times;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    /// Pipeline description, as for gst-launch-1.0
    description: String,
    /// Record the time of each frame at this pad: ELEMENT.PAD
    #[arg(long)]
    times: Option<String>,
    /// Print a checksum of each frame in host memory at this pad
    #[arg(long)]
    checksums: Option<String>,
    /// Write each frame at this pad with a kernel
    #[arg(long)]
    write: Option<String>,
    /// Read each frame at this pad with a kernel, on the stream of its memory
    #[arg(long)]
    read: Option<String>,
    /// As --read, on a stream of this program
    #[arg(long)]
    read_elsewhere: Option<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&json!({"event": "error", "text": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

fn report(line: &serde_json::Value) {
    println!("{line}");
}

fn run(cli: &Cli) -> Result<(), Error> {
    gst::init()?;
    let pipeline = gst::parse::launch(&cli.description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>();
    let pipeline = pipeline.map_err(|_| "one element alone is no pipeline")?;
    // Some sinks add the latency to the times of frames, by which the other side identifies them.
    pipeline.set_latency(gst::ClockTime::ZERO);
    let times = Arc::new(Times::default());
    if let Some(place) = &cli.times {
        taps::take_times(&pad(&pipeline, place)?, times.clone());
    }
    if let Some(place) = &cli.checksums {
        taps::print_checksums(&pad(&pipeline, place)?);
    }
    let places = [&cli.write, &cli.read, &cli.read_elsewhere];
    let kernels = places
        .iter()
        .any(|place| place.is_some())
        .then(Kernels::new);
    if let Some(kernels) = &kernels {
        if let Some(place) = &cli.write {
            kernels.clone().write(&pad(&pipeline, place)?);
        }
        for (place, on) in [(&cli.read, On::Its), (&cli.read_elsewhere, On::Another)] {
            if let Some(place) = place {
                kernels.clone().read(&pad(&pipeline, place)?, on);
            }
        }
    }
    watch(&pipeline)?;
    pipeline.set_state(gst::State::Playing)?;
    let mut cpu = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().unwrap_or_default();
        match word() {
            "measure" => {
                times.clear();
                cpu = now(ClockId::ProcessCPUTime);
                report(&json!({"event": "measuring"}));
            }
            "figures" => {
                let cpu = now(ClockId::ProcessCPUTime) - cpu;
                report(&json!({"event": "figures", "cpu_ns": cpu, "times": times.take()}));
            }
            "kernels" => {
                let kernels = kernels.as_ref().ok_or("no kernels were asked for")?;
                let (frames, wrong) = kernels.figures();
                report(&json!({"event": "kernels", "frames": frames, "wrong": wrong}));
            }
            "stats" => {
                let stats = element(&pipeline, word())?.property::<gst::Structure>("stats");
                report(&json!({"event": "stats", "stats": json::of_structure(&stats)}));
            }
            "set" => {
                element(&pipeline, word())?.set_property_from_str(word(), word());
                report(&json!({"event": "set"}));
            }
            "stop" => {
                let start = Instant::now();
                pipeline.set_state(gst::State::Null)?;
                report(&json!({"event": "stopped", "ns": start.elapsed().as_nanos() as u64}));
                return Ok(());
            }
            other => return Err(format!("unknown order {other:?}").into()),
        }
    }
    pipeline.set_state(gst::State::Null)?;
    Ok(())
}

/// Reports the messages of the bus, in the thread that posts them.
fn watch(pipeline: &gst::Pipeline) -> Result<(), Error> {
    let bus = pipeline.bus().ok_or("a pipeline without a bus")?;
    bus.set_sync_handler(|_, message| {
        match message.view() {
            gst::MessageView::Eos(_) => report(&json!({"event": "eos"})),
            gst::MessageView::Error(error) => {
                let text = format!("{} ({:?})", error.error(), error.debug());
                report(&json!({"event": "error", "text": text}));
            }
            gst::MessageView::Warning(warning) => {
                let text = format!("{} ({:?})", warning.error(), warning.debug());
                report(&json!({"event": "warning", "text": text}));
            }
            gst::MessageView::Element(element) => {
                let name = element
                    .structure()
                    .map(|structure| structure.name().as_str());
                report(&json!({"event": "message", "name": name}));
            }
            _ => {}
        }
        gst::BusSyncReply::Drop
    });
    Ok(())
}

fn element(pipeline: &gst::Pipeline, name: &str) -> Result<gst::Element, Error> {
    let element = pipeline.by_name(name);
    element.ok_or_else(|| format!("no element {name:?} in the pipeline").into())
}

fn pad(pipeline: &gst::Pipeline, place: &str) -> Result<gst::Pad, Error> {
    let (name, pad) = place
        .split_once('.')
        .ok_or("a pad is written ELEMENT.PAD")?;
    let found = element(pipeline, name)?.static_pad(pad);
    found.ok_or_else(|| format!("no pad {place}").into())
}

/// The time of a clock in nanoseconds.
fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
