// SPDX-License-Identifier: MPL-2.0

//! The checks of GStreamer's tests for unixfd, shm, proxy and inter, applied to xmemsink and xmemsrc.

mod support;

use gst::prelude::*;
use support::*;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=8,height=8,framerate=0/1";

/// A custom meta with this name, registered once.
fn custom_meta(name: &'static str) -> &'static str {
    init();
    static REGISTERED: std::sync::Mutex<Vec<&str>> = std::sync::Mutex::new(Vec::new());
    let mut registered = REGISTERED.lock().unwrap();
    if !registered.contains(&name) {
        gst::meta::CustomMeta::register(name, &[]);
        registered.push(name);
    }
    name
}

#[test]
fn consumers_come_leave_and_come_again_and_get_custom_metas() {
    let name = custom_meta("xmem-neighbours-number");
    let pools = Pools::new();
    let producer = pools.launch("videotestsrc name=src ! xmemsink name=sink pool=POOL");
    let pad = producer.by_name("src").static_pad("src").unwrap();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(buffer) = info.buffer_mut() {
            let mut meta = gst::meta::CustomMeta::add(buffer.make_mut(), name).unwrap();
            meta.mut_structure().set("field", 42);
        }
        gst::PadProbeReturn::Ok
    });
    producer.settle(gst::State::Playing);

    let consumer = "xmemsrc pool=POOL ! fakesink name=out enable-last-sample=true";
    let first = pools.launch(consumer);
    first.settle(gst::State::Playing);
    first.settle(gst::State::Ready);
    first.settle(gst::State::Playing);
    let second = pools.launch(consumer);
    second.settle(gst::State::Playing);

    let sample: gst::Sample = second.by_name("out").property("last-sample");
    let meta = gst::meta::CustomMeta::from_buffer(sample.buffer().unwrap(), name).unwrap();
    assert_eq!(meta.structure().get::<i32>("field"), Ok(42));

    first.stop();
    second.stop();
    producer.stop();
    assert!(!std::path::Path::new(&pools.pool("p")).exists());
}

#[test]
fn the_base_of_a_second_segment_counts() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let producer = pools.launch(&format!(
        "appsrc name=app format=time handle-segment-change=true \
         ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let app = producer.by_name("app");
    let app: gst_app::AppSrc = app.downcast().unwrap();
    producer.play();
    let caps: gst::Caps = VIDEO.parse().unwrap();
    let time_of = |pts: u64, base: u64| {
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_base(gst::ClockTime::from_seconds(base));
        let mut buffer = gst::Buffer::from_slice([0; 64]);
        let pts = gst::ClockTime::from_seconds(pts);
        buffer.get_mut().unwrap().set_pts(pts);
        let sample = gst::Sample::builder().buffer(&buffer).caps(&caps);
        app.push_sample(&sample.segment(&segment).build()).unwrap();
        receiver.next().unwrap().buffer().unwrap().pts().unwrap()
    };
    let first = time_of(30, 0);
    let second = time_of(1, 30);
    assert_eq!(second - first, gst::ClockTime::SECOND);
}

#[test]
fn a_meta_carries_a_buffer_of_a_megabyte() {
    let name = custom_meta("xmem-neighbours-payload");
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let payload = gst::Buffer::from_slice(vec![0x42; 1_000_000]);
    let mut buffer = gst::Buffer::from_slice([0; 64]);
    let mut meta = gst::meta::CustomMeta::add(buffer.get_mut().unwrap(), name).unwrap();
    meta.mut_structure().set("data", &payload);
    producer.push(buffer);

    let sample = receiver.next().unwrap();
    let meta = gst::meta::CustomMeta::from_buffer(sample.buffer().unwrap(), name).unwrap();
    let received = meta.structure().get::<gst::Buffer>("data").unwrap();
    assert!(bytes(&received) == bytes(&payload));
}

/// A pipeline with only a lossless sink, playing.
fn sink_alone(pools: &Pools) -> Pipeline {
    let sink = gst::ElementFactory::make("xmemsink")
        .name("sink")
        .property("pool", pools.pool("p"))
        .property_from_str("delivery", "lossless")
        .property("wait-for-connection", true)
        .property("async", false)
        .build()
        .unwrap();
    let pipeline = Pipeline(gst::Pipeline::new());
    pipeline.0.add(&sink).unwrap();
    pipeline.play();
    pipeline
}

/// A pad that feeds the sink of a pipeline, with the beginning of a stream.
fn feed(sink: &gst::Element, caps: Option<&gst::Caps>, segment: &gst::Segment) -> gst::Pad {
    let pad = gst::Pad::new(gst::PadDirection::Src);
    pad.set_active(true).unwrap();
    pad.link(&sink.static_pad("sink").unwrap()).unwrap();
    assert!(pad.push_event(gst::event::StreamStart::new("test")));
    if let Some(caps) = caps {
        assert!(pad.push_event(gst::event::Caps::new(caps)));
    }
    assert!(pad.push_event(gst::event::Segment::new(segment)));
    pad
}

fn segment(format: gst::Format) -> gst::Segment {
    let mut segment = gst::Segment::new();
    segment.set_format(format);
    segment
}

#[test]
fn bytes_without_caps_arrive_from_system_memory() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let producer = sink_alone(&pools);
    let pad = feed(&producer.sink(), None, &segment(gst::Format::Bytes));
    pad.push(gst::Buffer::from_slice([7; 1000])).unwrap();
    producer.settle(gst::State::Playing);
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap()), [7; 1000]);
}

#[test]
fn the_offered_allocator_saves_the_copy_for_any_caps() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let producer = sink_alone(&pools);
    let caps = gst::Caps::new_empty_simple("application/x-test");
    let pad = feed(&producer.sink(), Some(&caps), &segment(gst::Format::Bytes));
    let query = ask(&producer.sink(), &caps, false);
    let offered: Vec<_> = query.allocation_params().collect();
    let [(Some(allocator), params)] = &offered[..] else {
        panic!("{offered:?}");
    };
    const SIZE: usize = 10 << 20;
    let mut buffer = gst::Buffer::new();
    let memory = allocator.alloc(SIZE, Some(params)).unwrap();
    buffer.get_mut().unwrap().append_memory(memory);
    pad.push(buffer).unwrap();
    assert_eq!(receiver.next().unwrap().buffer().unwrap().size(), SIZE);
    assert_eq!(producer.stat("sink", "copied"), 0);
}

#[test]
fn a_live_source_gets_frames_of_a_source_that_is_not() {
    let pools = Pools::new();
    let producer = pools.launch("fakesrc sizetype=fixed ! xmemsink name=sink pool=POOL");
    producer.play();
    let consumer = pools.launch("xmemsrc pool=POOL ! appsink name=app async=false");
    consumer.settle(gst::State::Playing);
    let app: gst_app::AppSink = consumer.by_name("app").downcast().unwrap();
    app.pull_sample().unwrap();
    producer.stop();
    consumer.stop();
}

#[test]
fn a_stop_after_the_end_posts_no_error() {
    let pools = Pools::new();
    let pipeline = pools.run("fakesrc num-buffers=5 sizetype=fixed ! xmemsink pool=POOL");
    let bus = pipeline.0.bus().unwrap();
    pipeline.stop();
    assert!(bus.pop_filtered(&[gst::MessageType::Error]).is_none());
}

#[test]
fn a_flush_before_the_first_frame_keeps_the_order_of_events() {
    let pools = Pools::new();
    let producer = sink_alone(&pools);
    let caps = gst::Caps::new_empty_simple("foo/bar");
    let time = segment(gst::Format::Time);
    let pad = feed(&producer.sink(), Some(&caps), &time);
    let receiver = pools.receiver("");
    assert!(pad.push_event(gst::event::FlushStart::new()));
    assert!(pad.push_event(gst::event::FlushStop::new(true)));
    assert!(pad.push_event(gst::event::Segment::new(&time)));
    let mut buffer = gst::Buffer::from_slice([1; 4]);
    let writable = buffer.get_mut().unwrap();
    writable.set_pts(gst::ClockTime::ZERO);
    writable.set_dts(gst::ClockTime::ZERO);
    pad.push(buffer).unwrap();
    assert!(pad.push_event(gst::event::Eos::new()));
    let samples = receiver.rest();
    assert_eq!(samples.len(), 1);
    assert_eq!(bytes(samples[0].buffer().unwrap()), [1; 4]);
    assert_eq!(samples[0].caps(), Some(caps.as_ref()));
}

#[test]
fn a_source_that_came_first_gets_frames_custom_events_and_the_end() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let pad = receiver.app.static_pad("sink").unwrap();
    let events = note(&pad, gst::PadProbeType::EVENT_DOWNSTREAM, |info| {
        info.event()?.structure()?.get::<u64>("unsigned").ok()
    });
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    producer.push(gst::Buffer::from_slice([1; 64]));
    assert!(receiver.next().is_some());
    let event = gst::Structure::builder("MyEvent").field("unsigned", 100_u64);
    let event = gst::event::CustomDownstream::new(event.build());
    assert!(producer.app.send_event(event));
    producer.finish();
    assert!(receiver.next().is_none());
    assert_eq!(*events.lock().unwrap(), [100]);
}
