// SPDX-License-Identifier: MPL-2.0

//! Flushes on either side.

use super::*;

/// A seek of the producer does not flush the queues of consumers.
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
    feed.segment_from(gst::ClockTime::from_seconds(100));
    feed.frame_at(2, gst::ClockTime::from_seconds(100));
    let sample = receiver.next().unwrap();
    assert_eq!(number(&sample), 2);
    // After the seek to 100 s, the running time starts at 0.
    assert!(sample.buffer().unwrap().pts().unwrap() < gst::ClockTime::from_seconds(60));
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "buffer", "buffer"]
    );
    // The pool has the segment of this frame.
    let stats = stats_of(&pools.pool("p"));
    let text = format!("{:?}", stats.sticky);
    assert_contains(&text, "start=(guint64)100000000000");
}

#[test]
fn a_flushed_source_starts_again_after_the_end() {
    let pools = Pools::new();
    let (receiver, log) = noted(&pools, "start-from=newest");
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.frame(1);
    feed.event(gst::event::Eos::new());
    assert!(receiver.next().is_some() && receiver.next().is_none());
    // A flush causes another state change of the sink, so wait until the first one is complete.
    receiver.pipeline.settle(gst::State::Playing);
    feed.event(gst::event::FlushStart::new());
    feed.event(gst::event::FlushStop::new(true));
    feed.segment();
    let src = receiver.src();
    assert!(src.send_event(gst::event::FlushStart::new()));
    assert!(src.send_event(gst::event::FlushStop::new(false)));
    feed.frame(2);
    // The source may have connected early enough to get the previous frame as the newest one.
    while number(&receiver.next().unwrap()) != 2 {}
    let names = log.names();
    let flush = names.iter().position(|name| name == "flush-stop").unwrap();
    let segment = names[flush..].iter().position(|name| name == "segment");
    let buffer = names[flush..].iter().position(|name| name == "buffer");
    assert!(segment.is_some() && segment < buffer, "{names:?}");
}
