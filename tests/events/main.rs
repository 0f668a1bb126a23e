// SPDX-License-Identifier: MPL-2.0

//! Events of the producer's stream in the consumer's pipeline.

mod custom;
mod ends;
mod flushes;
mod gaps;
mod log;
mod pauses;
mod queries;
mod stream;
#[path = "../support/mod.rs"]
mod support;

use gst::prelude::*;
use log::Log;
use support::*;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

fn caps() -> gst::Caps {
    VIDEO.parse().unwrap()
}

fn frame(number: u8) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_mut_slice(vec![number; 64 * 64]);
    let pts = u64::from(number) * gst::ClockTime::from_mseconds(33);
    buffer.get_mut().unwrap().set_pts(pts);
    buffer
}

/// The number with which a frame was created.
fn number(sample: &gst::Sample) -> u8 {
    bytes(sample.buffer().unwrap())[0]
}

/// A source whose output is recorded from the beginning.
fn noted(pools: &Pools, properties: &str) -> (Receiver, Log) {
    let pipeline = pools.launch(&format!(
        "xmemsrc name=src pool=POOL {properties} ! appsink name=app sync=false max-buffers=1"
    ));
    let app: gst_app::AppSink = pipeline.by_name("app").downcast().unwrap();
    let log = Log::of(&app.static_pad("sink").unwrap());
    pipeline.play();
    (Receiver { pipeline, app }, log)
}

/// A sink whose pad the test feeds.
struct Feed {
    pipeline: Pipeline,
    /// The pad upstream of the sink.
    pad: gst::Pad,
}

impl Feed {
    fn new(pools: &Pools, properties: &str) -> Self {
        let sink = gst::parse::launch(&format!(
            "xmemsink name=sink pool={} sync=false {properties}",
            pools.pool("p")
        ));
        let pipeline = Pipeline(gst::Pipeline::new());
        pipeline.0.add(&sink.unwrap()).unwrap();
        let pad = gst::Pad::new(gst::PadDirection::Src);
        pad.set_active(true).unwrap();
        pad.link(&pipeline.sink().static_pad("sink").unwrap())
            .unwrap();
        pipeline.play();
        Self { pipeline, pad }
    }

    fn start(&self, stream_id: &str) {
        self.event(gst::event::StreamStart::new(stream_id));
        self.event(gst::event::Caps::new(&caps()));
        self.segment();
    }

    fn segment(&self) {
        self.segment_from(gst::ClockTime::ZERO);
    }

    fn segment_from(&self, start: gst::ClockTime) {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(start);
        self.event(gst::event::Segment::new(&segment));
    }

    #[track_caller]
    fn event(&self, event: gst::Event) {
        let kind = event.type_();
        assert!(self.pad.push_event(event), "{kind:?} is refused");
    }

    fn frame(&self, number: u8) {
        self.pad.push(frame(number)).unwrap();
    }

    fn frame_at(&self, number: u8, pts: gst::ClockTime) {
        let mut buffer = frame(number);
        buffer.make_mut().set_pts(pts);
        self.pad.push(buffer).unwrap();
    }

    fn title(&self, scope: gst::TagScope, title: &str) {
        let mut tags = gst::TagList::new();
        let list = tags.make_mut();
        list.set_scope(scope);
        list.add::<gst::tags::Title>(&title, gst::TagMergeMode::Replace);
        self.event(gst::event::Tag::new(tags));
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // Another thread may wait in the sink.
        self.pipeline.stop();
        let _ = self.pad.set_active(false);
    }
}
