// SPDX-License-Identifier: MPL-2.0

//! Processes that are killed, stopped or end at critical times.

use gst_video::VideoFormat::{I420, Nv12};

use crate::lab::{Actor, Lab, consumer, producer};
use crate::late::start_on_a_stream;
use crate::pictures::caps;
use crate::support::{LOSSLESS, until};

fn sender(lab: &Lab, sink: &str) -> Actor {
    lab.producer(&caps(Nv12, 320, 240), sink)
}

/// Pushes frames and waits until they are published.
fn publish(producer: &mut Actor, numbers: std::ops::Range<u8>) {
    for number in numbers {
        let before = producer.stat("sink", "published");
        producer.push(number);
        producer.until_stat("sink", "published", before + 1);
    }
}

#[test]
fn frames_of_a_killed_producer_stay_and_the_next_one_is_found() {
    let Some(lab) = Lab::new() else { return };
    let mut consumers = lab.consumers();
    for round in 0..4_u8 {
        let first = round * 8;
        let mut producer = sender(&lab, "wait-for-connection=true");
        producer.until_stat("sink", "num-clients", 3);
        for number in first..first + 4 {
            publish(&mut producer, number..number + 1);
            for consumer in &mut consumers {
                consumer.run(&format!("take {number}"), "ok");
            }
        }
        producer.0.kill();
        // The held frames are still valid.
        for number in first..first + 4 {
            for consumer in &mut consumers {
                consumer.has(number);
                if number % 2 == 0 {
                    consumer.drops(number);
                }
            }
        }
    }
    for consumer in &mut consumers {
        for round in 0..4 {
            consumer.has(round * 8 + 1);
            consumer.has(round * 8 + 3);
        }
    }
    lab.assert_allowed();
}

#[test]
fn a_killed_producer_of_memory_by_handle_has_a_successor() {
    let Some(lab) = Lab::new() else { return };
    let mut consumer = lab.consumer("", "");
    for round in 0..4 {
        let first = round * 4;
        let mut producer = sender(&lab, "cuda-ipc-mode=legacy wait-for-connection=true");
        for number in first..first + 3 {
            publish(&mut producer, number..number + 1);
            consumer.takes(number);
        }
        producer.0.kill();
        for number in first..first + 3 {
            consumer.drops(number);
        }
    }
    lab.assert_allowed();
}

/// A stream that waited for the frame would never continue.
#[test]
fn an_unfinished_frame_of_a_killed_producer_is_skipped() {
    let Some(lab) = Lab::new() else { return };
    let mut consumers = [lab.consumer("", ""), lab.consumer("download=true", "")];
    let mut producer = lab.actor();
    start_on_a_stream(&mut producer, Nv12, "offered", "");
    producer.until_stat("sink", "num-clients", 2);
    producer.run("paint 1", "ok");
    producer.run("push-painted", "ok");
    for consumer in &mut consumers {
        consumer.takes(1);
        consumer.0.stop();
    }
    producer.run("paint 2", "ok");
    let held = lab.machine.hold(Some(producer.pid()));
    producer.run("push-painted", "ok");
    producer.until_stat("sink", "published", 2);
    producer.0.kill();
    drop(held);
    for consumer in &mut consumers {
        consumer.0.go_on();
    }
    let mut next = sender(&lab, "");
    next.until_stat("sink", "num-clients", 2);
    publish(&mut next, 3..4);
    for consumer in &mut consumers {
        consumer.takes(3);
        consumer.has(1);
        assert_eq!(consumer.stat("src", "dropped"), 1);
    }
    lab.assert_allowed();
}

#[test]
fn a_killed_consumer_leaves_nothing_behind() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = sender(&lab, &format!("{LOSSLESS} max-slots=24 copy=forbid"));
    let mut stays = lab.consumer("", "");
    for round in 0..8 {
        let mut dies = lab.consumer("max-held=6", "").connected();
        for number in round * 8..round * 8 + 5 {
            producer.push(number);
            stays.passes(number);
            dies.run(&format!("take {number}"), "ok");
        }
        if round % 2 == 0 {
            // A read is in progress.
            let held = lab.machine.hold(Some(dies.pid()));
            dies.0.send(&format!("check {}", round * 8));
            dies.0.kill();
            drop(held);
        }
        dies.0.kill();
    }
    for number in 100..160 {
        producer.push(number);
        stays.passes(number);
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    producer.until_stat("sink", "num-clients", 1);
    lab.assert_allowed();
}

#[test]
fn a_stopped_consumer_delays_no_other() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = sender(&lab, "wait-for-connection=true max-slots=24");
    let mut stopped = lab.consumer("max-held=3", "").connected();
    publish(&mut producer, 0..2);
    stopped.takes(0);
    stopped.0.stop();
    let mut other = lab.consumer("", "").connected();
    for number in 2..100 {
        publish(&mut producer, number..number + 1);
        other.passes(number);
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    assert_eq!(producer.stat("sink", "dropped"), 0);
    stopped.0.go_on();
    stopped.has(0);
    publish(&mut producer, 100..101);
    lab.assert_allowed();
}

fn stops_while_frames_are_held(mode: &str) {
    let Some(lab) = Lab::new() else { return };
    let mut producer = sender(
        &lab,
        &format!("wait-for-connection=true cuda-ipc-mode={mode} release-timeout=100000000"),
    );
    let mut consumer = lab.consumer("", "").connected();
    let mut stopped = lab.consumer("", "").connected();
    for number in 0..3 {
        publish(&mut producer, number..number + 1);
        consumer.takes(number);
        stopped.takes(number);
    }
    stopped.0.stop();
    producer.run("stop", "ok");
    for number in 0..3 {
        consumer.has(number);
    }
    // The same sink is started again with its consumers.
    producer.run("play", "ok");
    until("connected", || consumer.stat("src", "reconnects") == 1);
    publish(&mut producer, 10..11);
    consumer.takes(10);
    for number in 0..3 {
        consumer.has(number);
        consumer.drops(number);
    }
    stopped.0.go_on();
    for number in 0..3 {
        stopped.has(number);
    }
    lab.assert_allowed();
}

#[test]
fn a_sink_stops_while_frames_by_descriptor_are_held() {
    stops_while_frames_are_held("vmm");
}

#[test]
fn a_sink_stops_while_frames_by_handle_are_held() {
    stops_while_frames_are_held("legacy");
}

#[test]
fn past_the_budget_frames_are_copied_or_dropped() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = sender(&lab, "wait-for-connection=true");
    let mut copies = lab.consumer("max-held=2", "").connected();
    let mut drops = lab.consumer("max-held=2 over-budget=drop", "").connected();
    for number in 0..8 {
        publish(&mut producer, number..number + 1);
        copies.takes(number);
        if number < 2 {
            drops.takes(number);
        } else {
            drops.until_stat("src", "dropped", u64::from(number) - 1);
        }
    }
    for number in 0..8 {
        copies.has(number);
    }
    assert_eq!(copies.stat("src", "zero-copy"), 2);
    assert_eq!(copies.stat("src", "copied"), 6);
    assert_eq!(drops.stat("src", "zero-copy"), 2);
    // Released slots can be used again.
    for number in 0..2 {
        copies.drops(number);
        drops.drops(number);
    }
    // After the device's remaining work. An appsink keeps a reference to its last frame.
    producer.until_stat("sink", "clients-hold", 1);
    publish(&mut producer, 8..9);
    drops.takes(8);
    lab.assert_allowed();
}

#[test]
fn frames_outlive_their_source() {
    let Some(lab) = Lab::new() else { return };
    for mode in ["vmm", "legacy"] {
        let mut producer = sender(&lab, &format!("cuda-ipc-mode={mode}"));
        let mut consumer = lab.consumer("", "").connected();
        for number in 0..3 {
            publish(&mut producer, number..number + 1);
            consumer.takes(number);
        }
        consumer.run("stop", "ok");
        publish(&mut producer, 3..60);
        for number in 0..3 {
            consumer.has(number);
        }
        consumer.run("forget", "ok");
        publish(&mut producer, 60..120);
        for number in 0..3 {
            consumer.has(number);
            consumer.drops(number);
        }
        producer.until_stat("sink", "num-clients", 0);
    }
    lab.assert_allowed();
}

#[test]
fn caps_change_while_frames_are_held() {
    let Some(lab) = Lab::new() else { return };
    let mut producer = sender(&lab, &format!("{LOSSLESS} max-slots=32"));
    let mut consumer = lab.consumer("", "");
    for (round, (format, width, height)) in (0..).zip([
        (Nv12, 320, 240),
        (I420, 640, 480),
        (Nv12, 64, 64),
        (Nv12, 1280, 720),
    ]) {
        producer.run(&format!("caps {}", caps(format, width, height)), "ok");
        let first = round * 40;
        for number in first..first + 30 {
            producer.push(number);
            consumer.takes(number);
            if number != first {
                consumer.drops(number);
            }
        }
        for round in 0..=round {
            consumer.has(round * 40);
        }
    }
    assert_eq!(producer.stat("sink", "copied"), 0);
    lab.assert_allowed();
}

#[test]
fn a_frame_is_forwarded_without_a_copy() {
    let Some(lab) = Lab::new() else { return };
    let other = lab.file("q.sock").display().to_string();
    let mut first = sender(&lab, LOSSLESS);
    let mut middle = lab.launch(&format!(
        "xmemsrc name=src pool=POOL ! xmemsink name=sink pool={other} sync=false {LOSSLESS} copy=forbid"
    ));
    let mut last = lab.launch(&consumer("", "").replace("POOL", &other));
    for number in 0..40 {
        first.push(number);
        last.takes(number);
        if number < 36 {
            last.drops(number);
        }
        // With its budget used up, the process in the middle would have to copy.
        first.until_at_most("sink", "clients-hold", 8);
    }
    assert_eq!(middle.stat("sink", "zero-copy"), 40);
    assert_eq!(middle.stat("sink", "copied"), 0);
    // No frame is lost by the death of the middle process or of the first one.
    middle.0.kill();
    for number in 40..80 {
        first.push(number);
    }
    for number in 36..40 {
        last.has(number);
    }
    first.0.kill();
    for number in 36..40 {
        last.has(number);
        last.drops(number);
    }
    lab.assert_allowed();
}

#[test]
fn a_lossless_stream_is_complete_and_ends() {
    let Some(lab) = Lab::new() else { return };
    let mut first = lab.actor();
    first.run(
        &format!("launch {}", producer(&caps(Nv12, 64, 64), LOSSLESS)),
        "ok",
    );
    let mut consumers = [lab.consumer("", ""), lab.consumer("", "")];
    first.until_stat("sink", "num-clients", 2);
    for number in 0..100 {
        first.push(number);
    }
    first.0.send("finish");
    for number in 0..100 {
        for consumer in &mut consumers {
            consumer.passes(number);
        }
    }
    for consumer in &mut consumers {
        consumer.run("take 100", "eos");
    }
    assert_eq!(first.0.reply(), "ok");
    lab.assert_allowed();
}
