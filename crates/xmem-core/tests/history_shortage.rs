// SPDX-License-Identifier: MPL-2.0

//! Frames that are kept for a time, without enough memory for all of them. A separate test program, because the limit applies to a
//! process.

mod support;

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::Place;
use xmem_core::{Consumer, FrameMeta};

#[test]
fn a_stream_goes_on_without_memory_for_a_longer_history() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4).history_time(Duration::from_secs(60)));
    let publish = |frame: i64, size: usize| {
        let meta = FrameMeta::new(size).timestamp(frame);
        producer.acquire(size).unwrap().publish(meta).unwrap();
    };
    // Frames are kept for this consumer.
    let _late = Consumer::builder(place.pool()).connect().unwrap();
    publish(0, 1);
    let before = producer.stats().slots;
    // Each region needs a descriptor.
    let own = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..own
    };
    setrlimit(Resource::Nofile, none).unwrap();
    (1..100).for_each(|frame| publish(frame, 1));
    setrlimit(Resource::Nofile, own).unwrap();
    let stats = producer.stats();
    assert_eq!((stats.published, stats.slots), (100, before));
    assert_eq!(stats.slots_held, 4);
    // There is memory again for frames of another size, so frames are kept for the time again.
    (100..120).for_each(|frame| publish(frame, 1 << 20));
    assert_eq!(producer.stats().slots_held, 4 + 20);
    drop(producer);
    place.assert_clean();
}
