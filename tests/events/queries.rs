// SPDX-License-Identifier: MPL-2.0

//! Queries, and events that go upstream.

use super::*;

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
fn a_reconfigure_queries_downstream_again() {
    let pools = Pools::new();
    let (receiver, _) = noted(&pools, "");
    let pad = receiver.app.static_pad("sink").unwrap();
    let asked = note(&pad, gst::PadProbeType::QUERY_DOWNSTREAM, |info| {
        is_allocation(info).then_some(())
    });
    let feed = Feed::new(&pools, LOSSLESS);
    feed.start("stream");
    feed.frame(1);
    assert!(receiver.next().is_some());
    let before = asked.lock().unwrap().len();
    assert!(pad.push_event(gst::event::Reconfigure::new()));
    feed.frame(2);
    feed.frame(3);
    assert!(receiver.next().is_some() && receiver.next().is_some());
    assert!(asked.lock().unwrap().len() > before);
}
