// SPDX-License-Identifier: MPL-2.0

//! The beginning of a stream, and its properties.

use super::*;

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
    assert_eq!(start.stream_id(), pools.pool("p").as_str());
    assert_eq!(start.stream_flags(), gst::StreamFlags::SELECT);
    let stream = start.stream().unwrap();
    assert_eq!(stream.stream_type(), gst::StreamType::VIDEO);
    assert_eq!(stream.caps(), Some(caps()));
    assert_eq!(stream.stream_id().unwrap(), start.stream_id());

    // Streams of one group have one group id in the consumer's pipeline.
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
    let first = ["stream-start", "caps", "segment", "tag", "buffer"];
    // The segment still applies.
    let second = ["stream-start", "caps", "tag", "buffer"];
    assert_eq!(log.names(), [&first[..], &second].concat());
    // The same stream-start again is not a new stream.
    feed.start("second");
    feed.title(gst::TagScope::Stream, "the same");
    feed.frame(1);
    assert!(receiver.next().is_some());
    assert_eq!(log.of_type(gst::EventType::StreamStart).len(), 2);
}

/// decodebin3 of GStreamer 1.26 ends the process if the id changes.
#[test]
fn the_stream_id_stays() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "on-eos=wait");
    let other = gst::Caps::new_empty_simple("audio/x-test");
    for (stream, caps) in [("first", caps()), ("next", caps()), ("last", other)] {
        let feed = Feed::new(&pools, LOSSLESS);
        feed.event(gst::event::StreamStart::new(stream));
        feed.event(gst::event::Caps::new(&caps));
        feed.segment();
        feed.frame(1);
        assert!(receiver.next().is_some());
        feed.start("within");
        feed.frame(1);
        assert!(receiver.next().is_some());
    }
    let starts = log.of_type(gst::EventType::StreamStart);
    let ids: Vec<_> = starts
        .iter()
        .map(|it| stream_start(it).stream_id())
        .collect();
    assert_eq!(ids, vec![pools.pool("p"); 6]);
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
    // Tags before the end are not lost.
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

/// An element that is linked later gets all sticky events, as from any other pad.
#[test]
fn a_relinked_downstream_gets_all_sticky_events() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    // The tags cause the segment to be sent before the first buffer, and GstBaseSrc's is a second one.
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
    assert_eq!(number(&other.pull_sample().unwrap()), 3);
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "tag", "buffer"]
    );
}

/// Pads keep their caps too. oggdemux starts a stream again without them.
#[test]
fn a_stream_that_starts_again_keeps_its_caps() {
    for stream_id in ["same", "other"] {
        let pools = Pools::new();
        let receiver = pools.receiver("");
        let sender = pools.sender(&"audio/x-test".parse().unwrap(), LOSSLESS);
        let pad = sender.sink().static_pad("sink").unwrap();
        sender.push(gst::Buffer::from_slice([1]));
        assert!(receiver.next().is_some());
        pad.send_event(gst::event::StreamStart::new("same"));
        pad.send_event(gst::event::StreamStart::new(stream_id));
        sender.push(gst::Buffer::from_slice([2]));
        let sample = receiver.next().unwrap();
        assert_eq!(bytes(sample.buffer().unwrap()), [2]);
        let caps = sample.caps().map(|caps| caps.to_string());
        assert_eq!(caps.as_deref(), Some("audio/x-test"), "{stream_id}");
    }
}
