// SPDX-License-Identifier: MPL-2.0

//! The times of frames on the other host.

use std::time::Instant;

use rustix::process::Signal;
use xmem_bridge::tai;
use xmem_core::{FrameMeta, monotonic_ns};

use crate::support::*;

/// Both hosts are this machine, so their clocks are equal.
#[test]
fn times_are_converted_and_the_figures_have_the_error() {
    let hosts = Hosts::new();
    let producer = hosts.producer("cam0");
    let (_export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    let mut send = |duration| {
        let now = monotonic_ns();
        let slot = producer.acquire(1000).unwrap();
        let meta = FrameMeta::new(1000).timestamp(now).duration(duration);
        slot.publish(meta).unwrap();
        let error = receive(&mut consumer).meta().timestamp.unwrap() - now;
        assert!(error.abs() < 1_000_000_000, "{error}");
    };
    let words = "more than a frame";
    // No round trip within this machine takes hours, and none takes no time.
    send(10_000_000_000_000);
    std::thread::sleep(10 * xmem_bridge::window::CREDIT_TIME);
    assert!(!import.has_printed(words));
    send(1);
    import.prints(words);
    import.signal(Signal::TERM);
    let (_, _, lines) = import.end();
    let words: Vec<&str> = lines.lines().last().unwrap().split(' ').collect();
    let [.., method, "within", error, "ms"] = words[..] else {
        panic!("{words:?}");
    };
    if tai::Reader::default().read(Instant::now()).is_none() {
        assert_eq!(method, "trips", "this machine is not synchronised");
    }
    assert!(["trips", "TAI"].contains(&method), "{method}");
    let error: f64 = error.parse().unwrap();
    assert!((0.0..1000.0).contains(&error), "{error}");
}
