// SPDX-License-Identifier: MPL-2.0

//! Elements that accept frames on a device, and the errors of those that do not.

use gst_video::VideoFormat::{I420, Nv12, Rgba};

use crate::lab::Lab;
use crate::pictures::caps;
use crate::support::assert_contains;

#[test]
fn downstream_without_devices_is_an_error_with_advice() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(&caps(Nv12, 320, 240), "");
    producer.push(1);
    producer.until_stat("sink", "published", 1);
    for behind in [
        "video/x-raw ! fakesink",
        "videoscale ! video/x-raw,width=64 ! fakesink",
        // It passes on unknown formats if no conversion is needed.
        "videoconvert ! video/x-raw ! fakesink",
        "queue ! videoconvert ! video/x-raw,format=RGBA ! fakesink",
    ] {
        let mut consumer = lab.launch(&format!("xmemsrc pool=POOL start-from=oldest ! {behind}"));
        let error = consumer.ask("error");
        for part in ["CUDA device", "cudadownload", "download=true"] {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
    let mut consumer = lab.consumer(
        "start-from=oldest download=true",
        "videoconvert ! video/x-raw,format=NV12 !",
    );
    consumer.takes(1);
    assert_eq!(consumer.stat("src", "copied"), 1);
    let caps = consumer.ask("caps-of 1");
    assert!(!caps.contains("memory:"), "{caps}");
    lab.assert_allowed();
}

#[test]
fn frames_of_other_programs_get_the_feature() {
    let Some(lab) = Lab::new() else { return };
    let mut program = lab.actor();
    let mut number = 0;
    for (format, width, height) in [(Nv12, 320, 240), (I420, 321, 241), (Rgba, 33, 17)] {
        let caps = caps(format, width, height);
        program.run(&format!("produce pool POOL {caps}"), "ok");
        // The third consumer has a budget of two frames, so the others are copied.
        let mut consumers = [
            lab.consumer("start-from=oldest", ""),
            lab.consumer("start-from=oldest", "cudadownload ! video/x-raw !"),
            lab.consumer("start-from=oldest max-held=2", ""),
            lab.consumer("start-from=oldest download=true", ""),
        ];
        for layout in ["layout", "none"] {
            for _ in 0..4 {
                number += 1;
                program.run(&format!("produce device {layout} {number} {caps}"), "ok");
                for (which, consumer) in consumers.iter_mut().enumerate() {
                    consumer.run(&format!("take {number}"), "ok");
                    let is = consumer.ask(&format!("check {number}"));
                    assert_eq!(is, "same", "consumer {which}, {layout}, {caps}");
                }
            }
        }
        let given = consumers[0].ask(&format!("caps-of {number}"));
        assert_contains(&given, "memory:CUDAMemory");
        assert!(consumers[2].stat("src", "copied") > 0);
        program.run("produce end", "ok");
    }
    lab.assert_allowed();
}

#[test]
fn frames_alternate_between_host_and_device() {
    let Some(lab) = Lab::new() else { return };
    let mut program = lab.actor();
    let caps = caps(Nv12, 320, 240);
    program.run(&format!("produce pool POOL {caps}"), "ok");
    let mut consumers = [
        lab.consumer("start-from=oldest", ""),
        lab.consumer("start-from=oldest download=true", ""),
    ];
    for number in 0..24 {
        let place = if number % 4 < 2 { "host" } else { "device" };
        program.run(&format!("produce {place} layout {number} {caps}"), "ok");
        for consumer in &mut consumers {
            consumer.takes(number);
        }
        let given = consumers[0].ask(&format!("caps-of {number}"));
        assert_eq!(
            given.contains("memory:CUDAMemory"),
            place == "device",
            "{given}"
        );
        let given = consumers[1].ask(&format!("caps-of {number}"));
        assert!(!given.contains("memory:"), "{given}");
        for consumer in &mut consumers {
            consumer.drops(number);
        }
    }
    lab.assert_allowed();
}

#[test]
fn caps_with_the_feature_keep_their_other_fields() {
    let Some(lab) = Lab::new() else { return };
    let more =
        "pixel-aspect-ratio=4/3,interlace-mode=progressive,colorimetry=bt709,chroma-site=mpeg2";
    let mut producer = lab.producer(
        &format!("{},{more}", caps(Nv12, 320, 240)),
        "wait-for-connection=true",
    );
    let mut consumer = lab.consumer("", "").connected();
    producer.push(1);
    consumer.takes(1);
    let given = consumer.ask("caps-of 1");
    for part in ["memory:CUDAMemory", "4/3", "bt709", "mpeg2", "25/1"] {
        assert!(given.contains(part), "no {part:?} in {given}");
    }
    // Rows and planes have the alignment of textures.
    assert_eq!(consumer.ask("layout 1"), "[0, 122880] [512, 512] 184320");
    lab.assert_allowed();
}
