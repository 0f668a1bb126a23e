// SPDX-License-Identifier: MPL-2.0

//! Events of the producer's stream in the consumer's pipeline.

mod support;

use std::sync::{Arc, Mutex};

use gst::prelude::*;
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

/// What comes to a pad, in order: events, and `None` for each buffer.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Option<gst::Event>>>>);

impl Log {
    fn of(pad: &gst::Pad) -> Self {
        let log = Self::default();
        let noted = log.clone();
        let kinds = gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::EVENT_FLUSH
            | gst::PadProbeType::BUFFER;
        pad.add_probe(kinds, move |_, info| {
            let event = info.event().cloned();
            noted.0.lock().unwrap().push(event);
            gst::PadProbeReturn::Ok
        });
        log
    }

    fn events(&self) -> Vec<gst::Event> {
        self.0.lock().unwrap().iter().flatten().cloned().collect()
    }

    fn of_type(&self, kind: gst::EventType) -> Vec<gst::Event> {
        let mut events = self.events();
        events.retain(|event| event.type_() == kind);
        events
    }

    /// The names of all that came; custom events by their own.
    fn names(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        log.iter()
            .map(|item| match item {
                None => "buffer".to_owned(),
                Some(event) if event.type_().name().starts_with("custom") => {
                    event.structure().unwrap().name().to_string()
                }
                Some(event) => event.type_().name().to_string(),
            })
            .filter(|name| name != "latency")
            .collect()
    }
}

/// A source whose output is noted from the beginning.
fn noted(pools: &Pools, properties: &str) -> (Receiver, Log) {
    let pipeline = pools.launch(&format!(
        "xmemsrc name=src pool=POOL {properties} ! appsink name=app sync=false max-buffers=1"
    ));
    let app: gst_app::AppSink = pipeline.by_name("app").downcast().unwrap();
    let log = Log::of(&app.static_pad("sink").unwrap());
    pipeline.play();
    (Receiver { pipeline, app }, log)
}

/// A sink whose pad the test feeds itself.
struct Feed {
    pipeline: Pipeline,
    /// Upstream of the sink.
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
        let segment = gst::FormattedSegment::<gst::ClockTime>::new();
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
        // While somebody may wait in it.
        self.pipeline.stop();
        let _ = self.pad.set_active(false);
    }
}

fn titles(log: &Log) -> Vec<(gst::TagScope, String)> {
    let of = |event: &gst::Event| {
        let gst::EventView::Tag(tag) = event.view() else {
            unreachable!()
        };
        let title = tag.tag().get::<gst::tags::Title>().unwrap();
        (tag.tag().scope(), title.get().to_owned())
    };
    log.of_type(gst::EventType::Tag).iter().map(of).collect()
}

fn stream_start(event: &gst::Event) -> &gst::event::StreamStart {
    match event.view() {
        gst::EventView::StreamStart(start) => start,
        _ => unreachable!(),
    }
}

#[test]
fn a_stream_begins_once_and_in_order() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    let stream = gst::Stream::new(
        Some("cam/1"),
        None,
        gst::StreamType::VIDEO,
        gst::StreamFlags::SELECT,
    );
    let group = gst::GroupId::next();
    feed.event(
        gst::event::StreamStart::builder("cam/1")
            .flags(gst::StreamFlags::SELECT)
            .group_id(group)
            .stream(stream)
            .build(),
    );
    feed.event(gst::event::Caps::new(&caps()));
    feed.segment();
    feed.title(gst::TagScope::Stream, "one");
    feed.frame(1);
    feed.frame(2);
    assert!(receiver.next().is_some() && receiver.next().is_some());
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "tag", "buffer", "buffer"]
    );
    let starts = log.of_type(gst::EventType::StreamStart);
    let start = stream_start(&starts[0]);
    assert_eq!(start.stream_id(), format!("{}/cam/1", pools.pool("p")));
    assert_eq!(start.stream_flags(), gst::StreamFlags::SELECT);
    let stream = start.stream().unwrap();
    assert_eq!(stream.stream_type(), gst::StreamType::VIDEO);
    assert_eq!(stream.caps(), Some(caps()));
    assert_eq!(stream.stream_id().unwrap(), start.stream_id());

    // What belongs together here belongs together there.
    let number = start.group_id().unwrap();
    drop((receiver, feed));
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.event(
        gst::event::StreamStart::builder("cam/2")
            .group_id(group)
            .build(),
    );
    feed.event(gst::event::Caps::new(&caps()));
    feed.segment();
    feed.frame(1);
    assert!(receiver.next().is_some());
    let starts = log.of_type(gst::EventType::StreamStart);
    assert_eq!(stream_start(&starts[0]).group_id(), Some(number));
}

#[test]
fn a_new_stream_is_a_new_stream_for_consumers() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    for stream in ["first", "second"] {
        feed.start(stream);
        feed.title(gst::TagScope::Stream, "the same");
        feed.frame(1);
        assert!(receiver.next().is_some());
    }
    let one = ["stream-start", "caps", "segment", "tag", "buffer"];
    assert_eq!(log.names(), [one, one].concat());
    // The same stream once more is nothing new.
    feed.start("second");
    feed.title(gst::TagScope::Stream, "the same");
    feed.frame(1);
    assert!(receiver.next().is_some());
    assert_eq!(log.of_type(gst::EventType::StreamStart).len(), 2);
}

#[test]
fn tags_reach_running_consumers_and_late_joiners() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, "wait-for-connection=true history=8");
    feed.start("stream");
    feed.title(gst::TagScope::Global, "all");
    feed.title(gst::TagScope::Stream, "one");
    feed.frame(1);
    assert!(receiver.next().is_some());
    feed.title(gst::TagScope::Stream, "two");
    feed.frame(2);
    assert!(receiver.next().is_some());
    let all = |title: &str| (gst::TagScope::Global, title.to_owned());
    let one = |title: &str| (gst::TagScope::Stream, title.to_owned());
    assert_eq!(titles(&log), [all("all"), one("one"), one("two")]);
    let (late, log) = noted(&pools, "start-from=newest");
    assert!(late.next().is_some());
    assert_eq!(titles(&log), [all("all"), one("two")]);
    // Those that come with the end are not lost either.
    feed.title(gst::TagScope::Stream, "three");
    feed.event(gst::event::Eos::new());
    assert!(receiver.next().is_none() && late.next().is_none());
    assert_eq!(titles(&log).last(), Some(&one("three")));
}

#[test]
fn long_tags_go_without_their_pictures() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    let picture = gst::Buffer::from_slice(vec![7u8; 1 << 20]);
    let sample = gst::Sample::builder().buffer(&picture).build();
    let mut tags = gst::TagList::new();
    let list = tags.make_mut();
    list.add::<gst::tags::Image>(&sample, gst::TagMergeMode::Replace);
    list.add::<gst::tags::Title>(&"a title", gst::TagMergeMode::Replace);
    feed.event(gst::event::Tag::new(tags));
    feed.frame(1);
    assert!(receiver.next().is_some());
    assert_eq!(
        titles(&log),
        [(gst::TagScope::Stream, "a title".to_owned())]
    );
}

#[test]
fn gaps_come_at_their_time() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    let time = gst::ClockTime::from_mseconds;
    // A stream may begin with one.
    feed.start("stream");
    let base_time = |pipeline: &Pipeline| pipeline.0.base_time().unwrap().nseconds();
    let (src, sink) = (receiver.src(), feed.pipeline.sink());
    until("playing", || {
        src.current_state() == gst::State::Playing && sink.base_time().is_some()
    });
    for ms in [5_000, 5_040] {
        feed.event(
            gst::event::Gap::builder(time(ms))
                .duration(time(40))
                .gap_flags(gst::GapFlags::DATA)
                .build(),
        );
    }
    until("two gaps", || log.of_type(gst::EventType::Gap).len() == 2);
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "gap", "gap"]
    );
    feed.frame(1);
    assert!(receiver.next().is_some());
    // The segment of GstBaseSrc would be a second one.
    assert_eq!(log.of_type(gst::EventType::Segment).len(), 1);
    let shift = base_time(&feed.pipeline) as i64 - base_time(&receiver.pipeline) as i64;
    for (event, ms) in log.of_type(gst::EventType::Gap).iter().zip([5_000, 5_040]) {
        let gst::EventView::Gap(gap) = event.view() else {
            unreachable!()
        };
        let there = gap.timestamp().nseconds() as i64;
        assert_eq!(there - shift, time(ms).nseconds() as i64);
        assert_eq!(gap.duration(), Some(time(40)));
        assert_eq!(gap.gap_flags(), gst::GapFlags::DATA);
    }
    assert_eq!(feed.pipeline.stat("sink", "events"), 2);
}

#[test]
fn a_buffer_without_bytes_stays_a_buffer() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.event(gst::event::StreamStart::new("stream"));
    feed.event(gst::event::Caps::new(
        &"text/x-raw,format=utf8".parse().unwrap(),
    ));
    feed.segment();
    let mut gap = gst::Buffer::new();
    let gap_ref = gap.get_mut().unwrap();
    gap_ref.set_flags(gst::BufferFlags::GAP | gst::BufferFlags::DROPPABLE);
    gap_ref.set_pts(gst::ClockTime::from_seconds(1));
    gap_ref.set_duration(gst::ClockTime::from_seconds(2));
    feed.pad.push(gap).unwrap();
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(buffer.size(), 0);
    assert!(
        buffer
            .flags()
            .contains(gst::BufferFlags::GAP | gst::BufferFlags::DROPPABLE)
    );
    assert_eq!(buffer.duration(), Some(gst::ClockTime::from_seconds(2)));
}

#[test]
fn lists_of_buffers_arrive_whole() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    let list = gst::BufferList::from_iter((1..=5).map(frame));
    feed.pad.push_list(list).unwrap();
    for number in 1..=5 {
        let sample = receiver.next().unwrap();
        assert_eq!(bytes(sample.buffer().unwrap())[0], number);
    }
}

fn custom(name: &str) -> gst::Structure {
    gst::Structure::builder(name)
        .field("text", "with \"quotes\", and more")
        .field("number", 7u64)
        .build()
}

#[test]
fn custom_events_keep_their_place() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.event(gst::event::CustomDownstreamSticky::new(custom("sticky")));
    feed.event(gst::event::CustomDownstream::new(custom("first")));
    feed.frame(1);
    feed.event(gst::event::CustomBoth::new(custom("second")));
    feed.frame(2);
    feed.event(gst::event::CustomDownstreamOob::new(custom("third")));
    until("the event", || feed.pipeline.stat("sink", "events") == 3);
    feed.frame(3);
    for _ in 0..3 {
        assert!(receiver.next().is_some());
    }
    assert_eq!(
        log.names(),
        [
            "stream-start",
            "caps",
            "segment",
            "sticky",
            "first",
            "buffer",
            "second",
            "buffer",
            "third",
            "buffer"
        ]
    );
    for event in log.events() {
        if let Some(structure) = event.structure()
            && event.type_().name().starts_with("custom")
        {
            assert_eq!(structure.to_owned(), custom(structure.name()));
        }
    }
    let kinds: Vec<_> = log.events().iter().map(|event| event.type_()).collect();
    assert!(kinds.contains(&gst::EventType::CustomBoth));
    assert!(kinds.contains(&gst::EventType::CustomDownstreamOob));
}

#[test]
fn sticky_custom_events_are_told_late_joiners() {
    let pools = Pools::new();
    let feed = Feed::new(&pools, "");
    feed.start("stream");
    for (name, number) in [("a", 1), ("b", 2), ("a", 3)] {
        let structure = gst::Structure::builder(name).field("n", number).build();
        feed.event(gst::event::CustomDownstreamSticky::new(structure));
    }
    // They outlive a stream, as on a pad.
    feed.start("another");
    feed.frame(1);
    let (late, log) = noted(&pools, "start-from=newest");
    assert!(late.next().is_some());
    let got: Vec<_> = log
        .of_type(gst::EventType::CustomDownstreamSticky)
        .iter()
        .map(|event| {
            let structure = event.structure().unwrap();
            (
                structure.name().to_string(),
                structure.get::<i32>("n").unwrap(),
            )
        })
        .collect();
    assert_eq!(got, [("a".to_owned(), 3), ("b".to_owned(), 2)]);
}

#[test]
fn what_cannot_travel_is_counted() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    let object = |name: &str| {
        gst::Structure::builder(name)
            .field("object", gst::Bus::new())
            .build()
    };
    let toc = gst::Toc::new(gst::TocScope::Global);
    feed.event(gst::event::CustomDownstream::new(object("one")));
    feed.event(gst::event::CustomDownstreamSticky::new(object("two")));
    feed.event(gst::event::Toc::new(&toc, false));
    feed.event(gst::event::CustomDownstream::new(
        gst::Structure::builder("long")
            .field("text", "x".repeat(100_000))
            .build(),
    ));
    feed.frame(1);
    assert!(receiver.next().is_some());
    assert_eq!(log.names(), ["stream-start", "caps", "segment", "buffer"]);
    let stat = |field| feed.pipeline.stat("sink", field);
    assert_eq!((stat("events"), stat("events-dropped")), (0, 4));
}

/// Nobody who plays the stream loses what is in its queues because the producer seeks.
#[test]
fn a_flush_stays_in_its_pipeline() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.frame(1);
    assert!(receiver.next().is_some());
    feed.event(gst::event::FlushStart::new());
    feed.event(gst::event::FlushStop::new(true));
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_start(gst::ClockTime::from_seconds(100));
    feed.event(gst::event::Segment::new(&segment));
    let mut later = frame(2);
    later
        .get_mut()
        .unwrap()
        .set_pts(gst::ClockTime::from_seconds(100));
    feed.pad.push(later).unwrap();
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap())[0], 2);
    // 100 s into the file is the beginning again.
    assert!(sample.buffer().unwrap().pts().unwrap() < gst::ClockTime::from_seconds(60));
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "buffer", "buffer"]
    );
    // The pool knows the segment that this frame belongs to.
    let stats = xmem_core::query(&pools.pool("p")).unwrap();
    let text = format!("{:?}", stats.sticky);
    assert!(text.contains("start=(guint64)100000000000"), "{text}");
}

#[test]
fn who_comes_after_the_end_learns_what_it_was() {
    let pools = Pools::new();
    let feed = Feed::new(&pools, "");
    feed.start("stream");
    feed.title(gst::TagScope::Stream, "one");
    feed.frame(1);
    feed.event(gst::event::Eos::new());
    let (late, log) = noted(&pools, "");
    assert!(late.next().is_none());
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "tag", "eos"]
    );
    // The last frame is still there for who asks.
    let (late, log) = noted(&pools, "start-from=newest");
    assert!(late.next().is_some() && late.next().is_none());
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "tag", "buffer", "eos"]
    );
}

#[test]
fn a_stream_without_frames_has_an_end_too() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let feed = Feed::new(&pools, "");
    let sink = feed.pipeline.sink();
    until("the consumer", || sink.property::<u32>("num-clients") == 1);
    feed.start("stream");
    feed.event(gst::event::Eos::new());
    assert!(receiver.next().is_none());
    assert_eq!(log.names(), ["stream-start", "caps", "segment", "eos"]);
}

/// Downstream gets its stream-start before the end also when there never was a producer.
#[test]
fn the_end_without_a_producer_is_one() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    let src = receiver.src();
    until("playing", || src.current_state() == gst::State::Playing);
    assert!(receiver.pipeline.0.send_event(gst::event::Eos::new()));
    assert!(receiver.next().is_none());
    assert_eq!(log.names(), ["stream-start", "eos"]);
}

#[test]
fn an_ended_source_leaves_its_pool() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "num-buffers=2");
    let feed = Feed::new(&pools, LOSSLESS);
    let sink = feed.pipeline.sink();
    feed.start("stream");
    feed.frame(1);
    feed.frame(2);
    assert!(receiver.next().is_some() && receiver.next().is_some());
    assert!(receiver.next().is_none());
    until("no consumer", || sink.property::<u32>("num-clients") == 0);
    assert_eq!(receiver.stat("received"), 2);
    // A lossless producer does not wait for who has gone.
    let other = pools.receiver("").connected();
    for number in 3..30 {
        feed.frame(number);
        assert_eq!(bytes(other.next().unwrap().buffer().unwrap())[0], number);
    }
}

#[test]
fn a_source_can_wait_for_the_stream_to_go_on() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "on-eos=wait");
    let number = |sample: Option<gst::Sample>| bytes(sample.unwrap().buffer().unwrap())[0];
    {
        let feed = Feed::new(&pools, LOSSLESS);
        feed.start("stream");
        feed.frame(1);
        feed.event(gst::event::Eos::new());
        assert_eq!(number(receiver.next()), 1);
        // A seek, after the end.
        feed.event(gst::event::FlushStart::new());
        feed.event(gst::event::FlushStop::new(true));
        feed.segment();
        feed.frame(2);
        assert_eq!(number(receiver.next()), 2);
        feed.event(gst::event::Eos::new());
    }
    // And the next producer.
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("another");
    feed.frame(3);
    assert_eq!(number(receiver.next()), 3);
    assert_eq!(receiver.stat("reconnects"), 1);
    assert_eq!(log.of_type(gst::EventType::Eos).len(), 0);
    assert_eq!(log.of_type(gst::EventType::StreamStart).len(), 2);
}

#[test]
fn a_flushed_source_begins_anew_after_the_end() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "start-from=newest");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.frame(1);
    feed.event(gst::event::Eos::new());
    assert!(receiver.next().is_some() && receiver.next().is_none());
    feed.event(gst::event::FlushStart::new());
    feed.event(gst::event::FlushStop::new(true));
    feed.segment();
    let src = receiver.src();
    assert!(src.send_event(gst::event::FlushStart::new()));
    assert!(src.send_event(gst::event::FlushStop::new(false)));
    feed.frame(2);
    loop {
        // It may have come early enough to see the frame before as the newest one.
        let sample = receiver.next().unwrap();
        if bytes(sample.buffer().unwrap())[0] == 2 {
            break;
        }
    }
    let names = log.names();
    let flush = names.iter().position(|name| name == "flush-stop").unwrap();
    let segment = names[flush..].iter().position(|name| name == "segment");
    let buffer = names[flush..].iter().position(|name| name == "buffer");
    assert!(segment.is_some() && segment < buffer, "{names:?}");
}

#[test]
fn queries_are_answered() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let src = receiver.src();
    let pad = src.static_pad("src").unwrap();
    assert!(pad.query_caps(None).is_any());
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    // Before the first frame.
    until("caps", || pad.query_caps(None) == caps());
    feed.frame(1);
    assert!(receiver.next().is_some());
    assert_eq!(pad.query_caps(None), caps());
    let other: gst::Caps = "audio/x-raw".parse().unwrap();
    assert!(pad.query_caps(Some(&other)).is_empty());
    assert!(pad.query_accept_caps(&caps()));
    assert!(!pad.query_accept_caps(&other));

    let mut query = gst::query::Seeking::new(gst::Format::Time);
    assert!(src.query(&mut query) && !query.result().0);
    let seek = receiver
        .pipeline
        .0
        .seek_simple(gst::SeekFlags::FLUSH, gst::ClockTime::ZERO);
    assert!(seek.is_err());
    let mut query = gst::query::Scheduling::new();
    assert!(pad.query(&mut query));
    assert_eq!(query.result().0, gst::SchedulingFlags::SEQUENTIAL);
    assert!(query.scheduling_modes().eq([gst::PadMode::Push]));
    let mut query = gst::query::Duration::new(gst::Format::Time);
    assert!(src.query(&mut query));
    assert_eq!(query.result().value(), -1);
    let mut query = gst::query::Position::new(gst::Format::Time);
    assert!(src.query(&mut query) && query.result().value() >= 0);

    for (element, pad) in [(src, "src"), (feed.pipeline.sink(), "sink")] {
        let pad = element.static_pad(pad).unwrap();
        let mut query = gst::query::Context::new("test.context");
        assert!(!pad.query(&mut query));
        element.set_context(&gst::Context::new("test.context", true));
        assert!(pad.query(&mut query));
        assert_eq!(query.context().unwrap().context_type(), "test.context");
    }
}

#[test]
fn a_reconfigure_asks_downstream_anew() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let asked = Arc::new(Mutex::new(0));
    let counted = asked.clone();
    receiver.app.static_pad("sink").unwrap().add_probe(
        gst::PadProbeType::QUERY_DOWNSTREAM,
        move |_, info| {
            if info.query().unwrap().type_() == gst::QueryType::Allocation {
                *counted.lock().unwrap() += 1;
            }
            gst::PadProbeReturn::Ok
        },
    );
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.frame(1);
    assert!(receiver.next().is_some());
    let before = *asked.lock().unwrap();
    let pad = receiver.app.static_pad("sink").unwrap();
    assert!(pad.push_event(gst::event::Reconfigure::new()));
    feed.frame(2);
    feed.frame(3);
    assert!(receiver.next().is_some() && receiver.next().is_some());
    assert!(*asked.lock().unwrap() > before);
}

/// Who is linked later gets all that it has to know, as from any other pad.
#[test]
fn another_downstream_is_told_everything() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    // The tags have the segment come before the first buffer, and GstBaseSrc's is a second one.
    feed.title(gst::TagScope::Stream, "one");
    feed.frame(1);
    feed.frame(2);
    assert!(receiver.next().is_some() && receiver.next().is_some());
    let other = gst_app::AppSink::builder().sync(false).build();
    let log = Log::of(&other.static_pad("sink").unwrap());
    receiver.pipeline.0.add(&other).unwrap();
    other.sync_state_with_parent().unwrap();
    let src = receiver.src();
    src.unlink(&receiver.app);
    src.link(&other).unwrap();
    feed.frame(3);
    let sample = other.pull_sample().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap())[0], 3);
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "tag", "buffer"]
    );
}

#[test]
fn events_have_the_times_that_were_asked_for() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "timestamp-mode=passthrough");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    for (start, number) in [(10, 1), (20, 2)] {
        let start = gst::ClockTime::from_seconds(start);
        let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
        segment.set_start(start);
        feed.event(gst::event::Segment::new(&segment));
        feed.event(gst::event::Gap::new(start, gst::ClockTime::SECOND));
        let mut buffer = frame(number);
        buffer
            .get_mut()
            .unwrap()
            .set_pts(start + gst::ClockTime::SECOND);
        feed.pad.push(buffer).unwrap();
        let sample = receiver.next().unwrap();
        assert_eq!(
            sample.buffer().unwrap().pts(),
            Some(start + gst::ClockTime::SECOND)
        );
    }
    let one = ["segment", "gap", "buffer"];
    let all = [&["stream-start", "caps"][..], &one, &one].concat();
    assert_eq!(log.names(), all);
    let gaps = log.of_type(gst::EventType::Gap);
    for (gap, start) in gaps.iter().zip([10, 20]) {
        let gst::EventView::Gap(gap) = gap.view() else {
            unreachable!()
        };
        assert_eq!(gap.timestamp(), gst::ClockTime::from_seconds(start));
    }
}
