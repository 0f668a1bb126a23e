// SPDX-License-Identifier: MPL-2.0

//! Bridges that are killed, stopped and started again.

use rustix::process::Signal;

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
    // The same consumer of the same local pool.
    receive_until(&mut consumer, killed_at);
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
    // The camera ends the test if it ever lacks a slot.
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
