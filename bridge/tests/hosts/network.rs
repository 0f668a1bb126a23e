// SPDX-License-Identifier: MPL-2.0

//! Raw video between two network namespaces.

use std::time::Duration;

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

/// Sends frames over the cable. Each frame arrives unchanged or counts as missed. `protocol` is `tcp` or `quic`.
fn cross(protocol: &str) {
    let cable = match Cable::new() {
        Ok(cable) => cable,
        Err(why) => return not_run(&format!("there are no network namespaces: {why}")),
    };
    let seconds: u64 = std::env::var(SECONDS).map_or(2, |it| it.parse().unwrap());
    let frames = 30 * seconds;
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
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);

    let camera = Camera::start_every(PERIOD, &producer, SIZE, 1);
    let first = number(&receive(&mut consumer));
    let at = receive_until(&mut consumer, frames);
    let last = camera.stop();
    if at < last {
        receive_until(&mut consumer, last);
    }
    let peaks = [&export, &import].map(Bridge::peak_memory);
    assert!(peaks.iter().all(|peak| *peak < MEMORY), "{peaks:?}");
    let stats = consumer.stats();
    let (received, missed) = import.figures();
    assert_eq!(received, stats.received + stats.missed);
    assert_eq!(received + missed, last - first + 1);
    eprintln!("{protocol}: {received} frames, {missed} missed, at most {peaks:?} bytes");
}

#[test]
fn every_frame_over_a_cable_is_whole_or_missed() {
    cross("tcp");
}

#[test]
fn every_frame_over_a_cable_is_whole_or_missed_with_certificates() {
    cross("quic");
}
