// SPDX-License-Identifier: MPL-2.0

//! Custom events, and events that cannot be transported.

use super::*;

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
fn late_joiners_get_sticky_custom_events() {
    let pools = Pools::new();
    let feed = Feed::new(&pools, "");
    feed.start("stream");
    for (name, number) in [("a", 1), ("b", 2), ("a", 3)] {
        let structure = gst::Structure::builder(name).field("n", number).build();
        feed.event(gst::event::CustomDownstreamSticky::new(structure));
    }
    // They persist over a stream-start, as on a pad.
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

/// Pads lose their sticky events in the change to READY, and the pool stays.
#[test]
fn sticky_events_end_with_the_change_to_ready() {
    let pools = Pools::new();
    let feed = Feed::new(&pools, LOSSLESS);
    let (receiver, seen) = noted(&pools, "");
    let sticky = |name| feed.event(gst::event::CustomDownstreamSticky::new(custom(name)));
    feed.start("stream");
    sticky("old");
    feed.title(gst::TagScope::Stream, "old");
    feed.title(gst::TagScope::Global, "old");
    feed.frame(1);
    assert!(receiver.next().is_some());
    feed.pipeline.settle(gst::State::Ready);
    feed.pad.set_active(false).unwrap();
    feed.pad.set_active(true).unwrap();
    feed.pipeline.play();

    let (other, log) = noted(&pools, "");
    let other = other.connected();
    feed.start("stream");
    sticky("new");
    feed.frame(2);
    assert_eq!(number(&other.next().unwrap()), 2);
    assert_eq!(
        log.names(),
        ["stream-start", "caps", "segment", "new", "buffer"]
    );
    assert_eq!(number(&receiver.next().unwrap()), 2);
    let names = seen.names();
    assert_eq!(names.iter().filter(|name| **name == "old").count(), 1);
    assert!(names.contains(&"new".to_owned()), "{names:?}");
}

#[test]
fn events_that_cannot_be_transported_are_counted() {
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
