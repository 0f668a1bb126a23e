// SPDX-License-Identifier: MPL-2.0

//! One GstCudaContext for all elements of a pipeline, on the right device.

use gst_video::VideoFormat::Nv12;

use crate::lab::{Lab, consumer};
use crate::pictures::caps;
use crate::support::{LOSSLESS, assert_contains};

#[test]
fn neighbours_have_the_same_context() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(&caps(Nv12, 320, 240), &format!("{LOSSLESS} copy=forbid"));
    let mut consumer = lab.consumer("", "cudadownload name=down ! video/x-raw !");
    producer.push(1);
    consumer.takes(1);
    let of_sink = producer.ask("context sink");
    assert!(of_sink.starts_with("Some"), "{of_sink}");
    assert_eq!(producer.ask("context up"), of_sink);
    let of_source = consumer.ask("context src");
    assert!(of_source.starts_with("Some"), "{of_source}");
    assert_eq!(consumer.ask("context down"), of_source);
    // No other context was created.
    assert_eq!(lab.calls(&producer, &["cuCtxCreate_v2"]), probes(&lab));
    lab.assert_allowed();
}

/// The number of contexts that GStreamer's plugin creates and destroys to query the devices.
fn probes(lab: &Lab) -> u64 {
    let mut idle = lab.launch("cudadownload ! fakesink");
    idle.run("stop", "ok");
    let calls = lab.machine.calls(idle.pid());
    calls.get("cuCtxCreate_v2").copied().unwrap_or(0)
        - u64::from(calls.get("cuCtxDestroy_v2").copied().unwrap_or(0) < calls["cuCtxCreate_v2"])
}

#[test]
fn upstream_behind_other_elements_has_the_same_context() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&format!(
        "appsrc name=in format=time caps=\"{}\" ! queue ! cudaupload name=up ! queue \
         ! video/x-raw(memory:CUDAMemory) ! queue ! identity ! xmemsink name=sink pool=POOL sync=false {LOSSLESS} copy=forbid",
        caps(Nv12, 320, 240)
    ));
    let mut consumer = lab.consumer("", "queue ! cudadownload name=down ! video/x-raw ! queue !");
    for number in 0..20 {
        producer.push(number);
        consumer.passes(number);
    }
    assert_eq!(producer.ask("context sink"), producer.ask("context up"));
    assert_eq!(producer.stat("sink", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn frames_stay_on_their_device() {
    let Some(lab) = Lab::new() else { return };
    let other = lab.file("q.sock").display().to_string();
    let caps = caps(Nv12, 320, 240);
    // One process with frames on both devices.
    let mut producer = lab.launch(&format!(
        "appsrc name=in format=time caps=\"{caps}\" ! tee name=t \
         t. ! queue ! cudaupload cuda-device-id=0 ! video/x-raw(memory:CUDAMemory) \
         ! xmemsink name=sink pool=POOL sync=false {LOSSLESS} \
         t. ! queue ! cudaupload cuda-device-id=1 ! video/x-raw(memory:CUDAMemory) \
         ! queue ! xmemsink name=other pool={other} sync=false copy=forbid {LOSSLESS}"
    ));
    let mut consumers = [
        lab.consumer("", ""),
        lab.launch(&consumer("", "cudadownload ! video/x-raw !").replace("POOL", &other)),
        lab.launch(&consumer("cuda-device-id=1", "").replace("POOL", &other)),
    ];
    producer.until_stat("sink", "num-clients", 1);
    producer.until_stat("other", "num-clients", 2);
    for number in 0..20 {
        producer.push(number);
        for consumer in &mut consumers {
            consumer.passes(number);
        }
    }
    for (sink, device) in [("sink", 0), ("other", 1)] {
        let stats = producer.ask(&format!("stats {sink}"));
        assert_contains(&stats, &format!("\"{device}\\ xmem"));
        assert_eq!(producer.stat(sink, "copied"), 0, "{sink}");
        assert_eq!(producer.stat(sink, "zero-copy"), 20, "{sink}");
    }
    assert!(lab.machine.used_memory(1) > 0);
    // A device that differs from the requested one is an error that names both.
    let mut wrong = lab
        .launch(&consumer("cuda-device-id=0", "").replace("POOL", &other))
        .connected();
    producer.push(20);
    for consumer in &mut consumers {
        consumer.takes(20);
    }
    let error = wrong.ask("error");
    assert_contains(&error, "device 1");
    assert_contains(&error, "cuda-device-id is 0");
    lab.assert_allowed();
}

#[test]
fn the_sinks_device_is_upstreams() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(
        &caps(Nv12, 320, 240),
        &format!("{LOSSLESS} copy=forbid cuda-device-id=1"),
    );
    let mut consumer = lab.consumer("", "");
    for number in 0..10 {
        producer.push(number);
        consumer.takes(number);
    }
    assert!(lab.machine.used_memory(1) > 0);
    assert_eq!(lab.machine.used_memory(0), 0);
    lab.assert_allowed();
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(&caps(Nv12, 320, 240), "cuda-device-id=7");
    producer.push(1);
    // Frames are published in their own memory. Only slots cannot be created on that device.
    producer.until_stat("sink", "published", 1);
    let mut consumer = lab.consumer("start-from=oldest cuda-device-id=7", "");
    let error = consumer.ask("error");
    assert_contains(&error, "cuda-device-id is 7");
    lab.assert_allowed();
}
