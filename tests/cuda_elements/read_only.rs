// SPDX-License-Identifier: MPL-2.0

//! A published frame is never written.

use gst_video::VideoFormat::Nv12;

use crate::lab::{Actor, Lab};
use crate::pictures::caps;
use crate::support::LOSSLESS;

/// An in-place filter gets a copy of the frame.
fn is_not_overwritten(actor: &mut Actor, number: u8) {
    actor.run(&format!("overwrite {number} {}", number + 100), "same");
    actor.has(number);
}

#[test]
fn a_received_frame_is_not_overwritten() {
    let Some(lab) = Lab::new() else { return };
    for sink in ["", "cuda-ipc-mode=legacy"] {
        let mut producer = lab.producer(&caps(Nv12, 321, 241), &format!("{LOSSLESS} {sink}"));
        let mut consumers = [lab.consumer("", ""), lab.consumer("", "")];
        producer.until_stat("sink", "num-clients", 2);
        for number in 0..10 {
            producer.push(number);
            for consumer in &mut consumers {
                consumer.takes(number);
            }
            consumers[0].run(&format!("is-writable {number}"), "false");
            is_not_overwritten(&mut consumers[0], number);
            consumers[1].has(number);
            for consumer in &mut consumers {
                consumer.drops(number);
            }
        }
    }
    lab.assert_allowed();
}

#[test]
fn a_published_frame_is_not_overwritten_in_its_own_pipeline() {
    let Some(lab) = Lab::new() else { return };
    for kind in ["slots", "own"] {
        let drop_pool = if kind == "own" {
            "identity drop-allocation=true !"
        } else {
            ""
        };
        // The sink's branch comes first: a frame at the appsink is already published.
        let mut producer = lab.launch(&format!(
            "appsrc name=in format=time caps=\"{}\" ! cudaupload ! video/x-raw(memory:CUDAMemory) ! {drop_pool} \
             tee name=t allow-not-linked=true t.src_0 ! xmemsink name=sink pool=POOL sync=false {LOSSLESS} \
             t.src_1 ! appsink name=app sync=false async=false enable-last-sample=false",
            caps(Nv12, 320, 240)
        ));
        let mut consumer = lab.launch(
            "xmemsrc name=src pool=POOL ! appsink name=app sync=false max-buffers=1 enable-last-sample=false",
        );
        for number in 0..10 {
            producer.push(number);
            consumer.takes(number);
            producer.takes(number);
            if producer.stat("sink", "copied") == 0 {
                is_not_overwritten(&mut producer, number);
            }
            consumer.has(number);
            consumer.drops(number);
            producer.drops(number);
        }
        assert_eq!(producer.stat("sink", "copied"), 0, "{kind}");
        consumer.run("stop", "ok");
    }
    lab.assert_allowed();
}

#[test]
fn a_slot_is_read_only_once_it_is_published() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = lab.producer(
        &caps(Nv12, 320, 240),
        "wait-for-connection=true enable-last-sample=true",
    );
    let mut consumer = lab.consumer("", "").connected();
    for number in 0..40 {
        producer.push(number);
        consumer.takes(number);
        producer.run(&format!("last-sample sink {number}"), "ok");
        producer.run(&format!("is-writable {number}"), "false");
        is_not_overwritten(&mut producer, number);
        consumer.has(number);
        consumer.drops(number);
        producer.drops(number);
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn a_repeated_frame_is_published_again_in_place() {
    let Some(lab) = Lab::new() else { return };
    for drop_pool in ["", "identity drop-allocation=true !"] {
        let mut producer = lab.launch(&format!(
            "appsrc name=in format=time caps=\"{}\" ! cudaupload ! video/x-raw(memory:CUDAMemory) ! {drop_pool} videorate \
             ! video/x-raw(memory:CUDAMemory),framerate=100/1 ! xmemsink name=sink pool=POOL sync=false {LOSSLESS} copy=forbid",
            caps(Nv12, 320, 240)
        ));
        let mut consumer = lab.consumer("", "");
        for number in 0..8 {
            producer.push(number);
        }
        producer.0.send("finish");
        let (mut shown, mut times) = (0, [0; 8]);
        while consumer.ask("take 0") == "ok" {
            if consumer.ask(&format!("check 0 {shown}")) != "same" {
                shown += 1;
                consumer.run(&format!("check 0 {shown}"), "same");
            }
            times[shown] += 1;
        }
        // 25 frames per second have become 100.
        assert!(
            shown == 7 && times[..7].iter().all(|times| *times >= 3),
            "{times:?}"
        );
        assert_eq!(producer.0.reply(), "ok");
        assert_eq!(producer.stat("sink", "copied"), 0);
        assert_eq!(
            producer.stat("sink", "zero-copy"),
            producer.stat("sink", "published")
        );
    }
    lab.assert_allowed();
}
