// SPDX-License-Identifier: MPL-2.0

//! Frames arrive unchanged, also if a device is late.

use gst_video::VideoFormat::{self, *};

use crate::lab::{Actor, Lab};
use crate::pictures::caps;
use crate::support::LOSSLESS;

const FORMATS: [VideoFormat; 8] = [Nv12, I420, P01010le, Rgba, Y444, Bgrx, Yv12, I42210le];
const SIZES: [(u32, u32); 6] = [(320, 240), (321, 241), (1, 1), (2, 2), (513, 3), (17, 255)];

/// Sends frames of all formats and sizes to all consumers.
fn all_arrive(producer: &mut Actor, consumers: &mut [Actor]) {
    producer.until_stat("sink", "num-clients", consumers.len() as u64);
    let mut number = 0;
    for format in FORMATS {
        for (width, height) in SIZES {
            let caps = caps(format, width, height);
            producer.run(&format!("caps {caps}"), "ok");
            for _ in 0..2 {
                number += 1;
                producer.push(number);
                for (which, consumer) in consumers.iter_mut().enumerate() {
                    consumer.run(&format!("take {number}"), "ok");
                    let is = consumer.ask(&format!("check {number}"));
                    assert_eq!(is, "same", "consumer {which}, {caps}");
                    consumer.drops(number);
                }
            }
        }
    }
}

#[test]
fn frames_of_all_formats_and_sizes_are_bit_exact() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(&caps(Nv12, 320, 240), LOSSLESS);
    let mut consumers = lab.consumers();
    all_arrive(&mut producer, &mut consumers);
    assert_eq!(producer.stat("sink", "copied"), 0);
    assert_eq!(consumers[0].stat("src", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn memory_that_upstream_allocates_arrives_the_same() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.launch(&format!(
        "appsrc name=in format=time caps=\"{}\" ! cudaupload ! video/x-raw(memory:CUDAMemory) \
         ! identity drop-allocation=true ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}",
        caps(Nv12, 320, 240)
    ));
    let mut consumers = [lab.consumer("", ""), lab.consumer("download=true", "")];
    all_arrive(&mut producer, &mut consumers);
    assert_eq!(producer.stat("sink", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn writes_of_a_late_device_are_waited_for() {
    let Some(lab) = Lab::new() else { return };
    let lab = lab.with("DELAY_US", "1000..4000");
    let mut producer = lab.producer(&caps(Nv12, 640, 480), LOSSLESS);
    let mut consumers = lab.consumers();
    producer.until_stat("sink", "num-clients", 3);
    for number in 0..60 {
        producer.push(number);
        for consumer in &mut consumers {
            consumer.passes(number);
        }
    }
    lab.assert_allowed();
}
