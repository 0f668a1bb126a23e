// SPDX-License-Identifier: MPL-2.0

//! Processes that have reached a system limit.

mod support;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use support::{process::*, *};

const PRODUCER: &str =
    "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=100/1 ! xmemsink pool=p";

/// Sets the limit of descriptors of a process.
fn set_descriptors(launch: &Launch, most: Option<u64>) {
    let own = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: most.or(own.current),
        ..own
    };
    let pid = Pid::from_raw(launch.pid().cast_signed());
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

/// Whether a consumer has taken a frame.
fn has_consumer(pools: &Pools) -> bool {
    pool_stats(pools, "p")
        .is_some_and(|stats| stats.consumers.iter().any(|consumer| consumer.received > 0))
}

/// A temporary shortage does not end a stream.
#[test]
fn a_source_without_descriptors_reconnects_when_it_has_some() {
    let pools = prepared();
    let mut first = Launch::new(&pools, "first", PRODUCER);
    let mut source = Launch::new(&pools, "source", "-m xmemsrc pool=p ! fakesink");
    until("connected", || has_consumer(&pools));
    // The number that gst-launch-1.0 itself uses. With fewer it could not poll.
    set_descriptors(&source, Some(5));
    first.signal(Signal::KILL);
    first.wait();
    let _second = Launch::new(&pools, "second", PRODUCER);
    until("there is a producer", || pool_stats(&pools, "p").is_some());
    until("it reports what it lacks", || {
        assert!(!source.has_ended(), "{}", source.log());
        source.log().contains("Too many open files")
    });
    assert!(!has_consumer(&pools));
    set_descriptors(&source, None);
    until("connected again", || has_consumer(&pools));
    assert!(!source.has_ended(), "{}", source.log());
}

/// The queue keeps all frames, so the pool has to grow.
#[test]
fn a_pool_that_cannot_grow_is_reported_until_it_can() {
    let pools = prepared();
    let live = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=10/1 ! \
        xmemsink pool=p max-held=32";
    let producer = Launch::new(&pools, "producer", live);
    let keeping = "xmemsrc pool=p max-held=32 over-budget=drop ! \
        queue min-threshold-buffers=1000 max-size-buffers=2000 max-size-bytes=0 max-size-time=0 ! fakesink";
    let _consumer = Launch::new(&pools, "consumer", keeping);
    until("connected", || has_consumer(&pools));
    set_descriptors(&producer, Some(5));
    until("it reports what it lacks", || {
        producer.log().contains("The pool cannot grow")
            && producer.log().contains("raise the limit of open files")
    });
    set_descriptors(&producer, None);
    until("the consumer holds its whole budget", || {
        pool_stats(&pools, "p")
            .is_some_and(|stats| stats.consumers.iter().any(|consumer| consumer.held == 32))
    });
    assert_eq!(producer.log().matches("The pool cannot grow").count(), 1);
}

/// The second source of the stream has other caps.
#[test]
fn a_stream_that_changes_during_a_shortage_goes_on() {
    let pools = prepared();
    let source = |properties: &str, width| {
        format!(
            "videotestsrc is-live=true {properties} ! video/x-raw,width={width},height=48,framerate=100/1 ! c."
        )
    };
    let (first, second) = (source("num-buffers=200", 64), source("", 80));
    let pipeline = format!("concat name=c ! xmemsink pool=p {first} {second}");
    let mut command = command(&pools, "gst-launch-1.0");
    // GStreamer's own sets of descriptors fail as well, which it calls critical.
    command.args(pipeline.split(' ')).env_remove("G_DEBUG");
    let mut producer = Launch::start(&pools, "producer", &mut command);
    let _consumer = Launch::new(&pools, "consumer", "xmemsrc pool=p ! fakesink");
    until("connected", || has_consumer(&pools));
    set_descriptors(&producer, Some(5));
    until("it reports what it lacks", || {
        assert!(!producer.has_ended(), "{}", producer.log());
        producer.log().contains("Frames are dropped until")
    });
    let published = || pool_stats(&pools, "p").map_or(0, |stats| stats.published);
    let before = published();
    set_descriptors(&producer, None);
    until("more frames", || {
        assert!(!producer.has_ended(), "{}", producer.log());
        published() > before + 50
    });
    assert!(pool_stats(&pools, "p").unwrap().dropped > 0);
    assert_eq!(
        producer.log().matches("Frames are dropped until").count(),
        1
    );
}
