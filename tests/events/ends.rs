// SPDX-License-Identifier: MPL-2.0

//! The end of a stream.

use super::*;

#[test]
fn a_consumer_that_joins_after_the_end_gets_the_sticky_events() {
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
    // The last frame is still available for `start-from=oldest`.
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

/// Downstream gets a stream-start before the end, also if there was no producer.
#[test]
fn an_eos_event_without_a_producer_ends_the_stream() {
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
    // A lossless producer does not wait for a consumer that has left.
    let other = pools.receiver("").connected();
    for expected in 3..30 {
        feed.frame(expected);
        assert_eq!(number(&other.next().unwrap()), expected);
    }
}

#[test]
fn a_sink_can_keep_the_end_of_its_stream_to_itself() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "");
    for n in 1..=2 {
        let feed = Feed::new(&pools, &format!("send-eos=false {LOSSLESS}"));
        feed.start("stream");
        feed.frame(n);
        feed.event(gst::event::Eos::new());
        assert_eq!(number(&receiver.next().unwrap()), n);
    }
    assert_eq!(receiver.stat("reconnects"), 1);
    assert_eq!(log.of_type(gst::EventType::Eos).len(), 0);
}

#[test]
fn a_source_can_wait_for_the_stream_to_go_on() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "on-eos=wait");
    {
        let feed = Feed::new(&pools, LOSSLESS);
        feed.start("stream");
        feed.frame(1);
        feed.event(gst::event::Eos::new());
        assert_eq!(number(&receiver.next().unwrap()), 1);
        // A seek after the end.
        feed.event(gst::event::FlushStart::new());
        feed.event(gst::event::FlushStop::new(true));
        feed.segment();
        feed.frame(2);
        assert_eq!(number(&receiver.next().unwrap()), 2);
        feed.event(gst::event::Eos::new());
    }
    // The next producer continues as well.
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("another");
    feed.frame(3);
    assert_eq!(number(&receiver.next().unwrap()), 3);
    assert_eq!(receiver.stat("reconnects"), 1);
    assert_eq!(log.of_type(gst::EventType::Eos).len(), 0);
    assert_eq!(log.of_type(gst::EventType::StreamStart).len(), 2);
}
