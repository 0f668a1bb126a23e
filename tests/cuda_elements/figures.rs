// SPDX-License-Identifier: MPL-2.0

//! Statistics about devices.

use gst_video::VideoFormat::Nv12;

use crate::lab::Lab;
use crate::pictures::caps;
use crate::support::{LOSSLESS, assert_contains, until};

/// The mode in which a consumer opened the memory, as both sides report it after one frame.
fn modes(lab: &Lab, mode: &str) -> (String, String) {
    let mut producer = lab.producer(
        &caps(Nv12, 320, 240),
        &format!("{LOSSLESS} cuda-ipc-mode={mode}"),
    );
    let mut consumer = lab.consumer("", "");
    assert_eq!(consumer.ask("stat src device"), "");
    producer.push(1);
    consumer.takes(1);
    assert!(producer.stat("sink", "device-bytes") > 0);
    let of_consumer = consumer.ask("stat src device");
    let device = format!("device=(string){of_consumer};");
    let mut of_client = String::new();
    until("the producer knows", || {
        // A nested structure is escaped.
        of_client = producer.ask("stats sink").replace('\\', "");
        of_client.contains(&device)
    });
    let devices = of_client.split("devices=").nth(1).unwrap();
    let devices = devices.split('>').next().unwrap().to_owned();
    lab.assert_allowed();
    // The statistics can still be read.
    consumer.run("stop", "ok");
    assert_eq!(consumer.ask("stat src device"), of_consumer);
    (of_consumer, devices)
}

#[test]
fn both_sides_report_how_a_consumer_opened_the_memory() {
    for (mode, quirks, expected) in [
        ("auto", "", "vmm"),
        ("vmm", "", "vmm"),
        ("legacy", "", "legacy"),
        ("auto", "no-vmm", "legacy"),
    ] {
        let Some(mut lab) = Lab::new() else { return };
        if !quirks.is_empty() {
            lab = lab.with("QUIRKS", quirks);
        }
        let (of_consumer, devices) = modes(&lab, mode);
        assert_eq!(of_consumer, expected, "{mode} {quirks}");
        assert_contains(&devices, &format!("({expected})"));
    }
}
