// SPDX-License-Identifier: MPL-2.0

//! Raw video between two network namespaces.

use std::time::Duration;

use xmem_core::{Consumer, Producer};

use crate::cable::{ADDRESSES, Cable};
use crate::certificates::{certificates, identity};
use crate::support::*;

/// The variable that sets the duration of the tests in seconds. Default: 2.
const SECONDS: &str = "XMEM_BRIDGE_SECONDS";

/// A frame of 1920x1080 in NV12.
const SIZE: usize = 1920 * 1080 * 3 / 2;
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// The maximum memory of a bridge process, in bytes. It does not depend on the duration.
const MEMORY: u64 = 128 << 20;

/// A pool on host a, and bridges that carry it to host b.
struct Carried {
    cable: Cable,
    /// Keeps the directories of the hosts.
    _hosts: Hosts,
    producer: Producer,
    export: Bridge,
    import: Bridge,
    consumer: Consumer,
}

impl Carried {
    /// `protocol` is `tcp` or `quic`. `rate` limits what host a sends. `None`: the machine does not allow it.
    fn start(protocol: &str, rate: Option<&str>) -> Option<Self> {
        let cable = match Cable::new() {
            Ok(cable) => cable,
            Err(why) => {
                not_run(&format!("there are no network namespaces: {why}"));
                return None;
            }
        };
        if let Some(rate) = rate
            && let Err(why) = cable.limit(rate)
        {
            not_run(&format!("tc cannot limit the rate with tbf: {why}"));
            return None;
        }
        let hosts = Hosts::new();
        certificates(hosts.path());
        let options = |host: &str, ca: &str| match protocol {
            "tcp" => vec!["--trusted-network".to_owned()],
            _ => identity(&hosts, host, ca, "ours"),
        };
        let start = |host: &str, args: &[&str], options: Vec<String>| {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let args = [args, &options].concat();
            let bridge = hosts.bridge_in(cable.on(host), host, &args);
            bridge.prints(&format!("{}s ", args[0]));
            bridge
        };
        let producer = hosts.producer("cam0");
        let listen = format!("{protocol}/{}:7447", ADDRESSES[0]);
        let source = format!("cam0@{}", ADDRESSES[0]);
        let args = ["export", "cam0", "--listen", &listen];
        let export = start("a", &args, options("a", "--client-ca"));
        let import = start("b", &["import", &source], options("b", "--server-ca"));
        let consumer = hosts.consumer("b");
        eventually("the exporter joins", || producer.num_consumers() == 1);
        Some(Self {
            cable,
            _hosts: hosts,
            producer,
            export,
            import,
            consumer,
        })
    }

    /// Ends the bridges, and returns the number of missed frames. `first` is the first frame that arrived, and `last` is the last
    /// one that was published. It has arrived.
    fn end(self, title: &str, first: u64, last: u64) -> u64 {
        let peaks = [&self.export, &self.import].map(Bridge::peak_memory);
        assert!(peaks.iter().all(|peak| *peak < MEMORY), "{peaks:?}");
        let stats = self.producer.stats();
        assert_eq!((stats.dropped, stats.cut_off), (0, 0));
        let stats = self.consumer.stats();
        let (received, missed) = self.import.figures();
        assert_eq!(received, stats.received + stats.missed);
        assert_eq!(received + missed, last - first + 1);
        eprintln!("{title}: {received} frames, {missed} missed, at most {peaks:?} bytes");
        missed
    }
}

/// Sends frames over the cable. Each frame arrives unchanged or counts as missed.
fn cross(protocol: &str) {
    let Some(mut carried) = Carried::start(protocol, None) else {
        return;
    };
    let seconds: u64 = std::env::var(SECONDS).map_or(2, |it| it.parse().unwrap());
    let frames = 30 * seconds;
    let camera = Camera::start_every(PERIOD, &carried.producer, SIZE, 1);
    let first = number(&receive(&mut carried.consumer));
    let at = receive_until(&mut carried.consumer, frames);
    let last = camera.stop();
    if at < last {
        receive_until(&mut carried.consumer, last);
    }
    carried.end(protocol, first, last);
}

/// As [`cross`], over a link that is slower than the frames, and that is cut once. The camera never waits: it fails if no slot is
/// free. `cut` is the number of frames that are published while the cable is cut and the exporter has noticed it.
fn cross_slowly(protocol: &str, rate: &str, cut: u64) {
    let Some(mut carried) = Carried::start(protocol, Some(rate)) else {
        return;
    };
    let camera = Camera::start_every(PERIOD, &carried.producer, SIZE, 1);
    let first = number(&receive(&mut carried.consumer));
    for _ in 0..2 {
        number(&receive(&mut carried.consumer));
    }
    carried.cable.cut(true);
    carried.export.prints("no message for 3 seconds");
    let noticed = camera.next();
    eventually("frames are published while the cable is cut", || {
        camera.next() > noticed + cut
    });
    carried.cable.cut(false);
    receive_until(&mut carried.consumer, noticed);
    receive(&mut carried.consumer);
    let last = camera.stop();
    receive_until(&mut carried.consumer, last);
    let missed = carried.end(&format!("{protocol} at {rate}"), first, last);
    assert!(missed >= cut, "{missed}");
}

#[test]
fn every_frame_over_a_cable_is_whole_or_missed() {
    cross("tcp");
}

#[test]
fn every_frame_over_a_cable_is_whole_or_missed_with_certificates() {
    cross("quic");
}

#[test]
fn a_cable_of_200_mbit_that_is_cut_until_the_connection_is_lost() {
    // Zenoh closes a connection after 5 s of silence. Frames for 10 s.
    cross_slowly("tcp", "200mbit", 300);
}

#[test]
fn a_cable_of_10_mbit_that_is_cut_once() {
    cross_slowly("tcp", "10mbit", 10);
}

#[test]
fn a_cable_of_10_mbit_that_is_cut_once_with_certificates() {
    cross_slowly("quic", "10mbit", 10);
}
