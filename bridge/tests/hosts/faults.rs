// SPDX-License-Identifier: MPL-2.0

//! Bridges that are killed, stopped and restarted.

use rustix::process::Signal;
use xmem_core::{FrameFlags, FrameMeta};

use crate::support::*;

const SIZE: usize = 1_000_000;

#[test]
fn a_killed_exporter_is_replaced_and_the_local_pool_stays() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    let camera = Camera::start(&producer, SIZE, 1);
    receive_until(&mut consumer, 10);
    export.kill();
    eventually("the dead exporter's consumer is gone", || {
        producer.num_consumers() == 0
    });
    let killed_at = camera.next();
    let _export = hosts.export(&["cam0"]);
    // The consumer and the local pool are still the same.
    receive_until(&mut consumer, killed_at);
}

#[test]
fn frames_without_an_exporter_count_as_missed() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    // Asserts the number of the next frame. Returns whether the frame is marked as the first one after a gap.
    let mut next_is = |expected| {
        let frame = receive(&mut consumer);
        assert_eq!(number(&frame), expected);
        frame.meta().flags.contains(FrameFlags::AFTER_GAP)
    };
    for number in 1..4 {
        assert!(publish(&producer, number, SIZE));
        assert!(!next_is(number));
    }
    export.kill();
    eventually("its consumer is gone", || producer.num_consumers() == 0);
    for number in 4..24 {
        assert!(publish(&producer, number, SIZE));
        // An event does not count as a frame.
        producer.publish_event(FrameMeta::default()).unwrap();
    }
    let export = hosts.export(&["cam0"]);
    // The newest frame arrives. Those before it are missed.
    assert!(next_is(23));
    assert!(publish(&producer, 24, SIZE));
    assert!(!next_is(24));

    // Frames of another producer do not count as missed, because they belong to another stream.
    export.kill();
    drop(producer);
    let producer = hosts.producer("cam0");
    for number in 100..151 {
        assert!(publish(&producer, number, SIZE));
    }
    let _export = hosts.export(&["cam0"]);
    assert!(!next_is(150));
    assert_eq!(import.figures(), (6, 19));
}

#[test]
fn every_frame_over_a_restart_arrived_or_was_missed() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (mut export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    let camera = Camera::start(&producer, SIZE, 1);
    let first = number(&receive(&mut consumer));
    for _ in 0..3 {
        let before = camera.next();
        receive_until(&mut consumer, before);
        export.kill();
        export = hosts.export(&["cam0"]);
    }
    let after = camera.next();
    let at = receive_until(&mut consumer, after);
    let last = camera.stop();
    if at < last {
        receive_until(&mut consumer, last);
    }
    let (received, missed) = import.figures();
    assert_eq!(received + missed, last - first + 1);
}

#[test]
fn a_killed_importer_does_not_disturb_another_and_comes_back() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let _export = hosts.export(&["cam0"]);
    let (killed, other) = (hosts.import("b"), hosts.import("c"));
    let (mut first, mut second) = (hosts.consumer("b"), hosts.consumer("c"));
    let camera = Camera::start(&producer, SIZE, 1);
    receive_until(&mut first, 10);
    let begin = number(&receive(&mut second));
    killed.kill();
    let killed_at = camera.next();
    receive_until(&mut second, killed_at + 50);
    let _again = hosts.import("b");
    let mut first = hosts.consumer("b");
    receive_until(&mut first, killed_at);
    let last = camera.stop();
    receive_until(&mut second, last);
    let (received, missed) = other.figures();
    let stats = second.stats();
    assert_eq!(received, stats.received + stats.missed);
    assert!(received + missed > last - begin, "{received} {missed}");
}

#[test]
fn a_stopped_importer_does_not_hold_up_the_producer() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let _export = hosts.export(&["cam0"]);
    let (stopped, _other) = (hosts.import("b"), hosts.import("c"));
    let (mut first, mut second) = (hosts.consumer("b"), hosts.consumer("c"));
    // The test fails if the camera ever finds no free slot.
    let camera = Camera::start(&producer, SIZE, 1);
    receive_until(&mut first, 10);
    receive_until(&mut second, 10);
    stopped.signal(Signal::STOP);
    let stopped_at = camera.next();
    eventually("only the other one reads the pool", || {
        receive(&mut second);
        producer.num_consumers() == 1
    });
    receive_until(&mut second, stopped_at + 50);
    stopped.signal(Signal::CONT);
    let went_on_at = camera.next();
    receive_until(&mut first, went_on_at);
    let stats = producer.stats();
    assert_eq!((stats.dropped, stats.cut_off), (0, 0));
}

#[test]
fn an_importer_may_start_before_all_others() {
    let hosts = Hosts::new();
    let import = hosts.import("b");
    let mut consumer = hosts.consumer("b");
    import.prints("no answer");
    let _export = hosts.export(&["cam0"]);
    let producer = hosts.producer("cam0");
    let _camera = Camera::start(&producer, SIZE, 1);
    receive_until(&mut consumer, 1);
}
