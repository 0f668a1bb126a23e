// SPDX-License-Identifier: MPL-2.0

//! Frames that a kernel releases by storing 0 to a word.

use crate::lab::{Lab, ask, first_round, run, until_released};
use crate::support::{assert_contains, eventually};

#[test]
fn a_kernel_releases_frames_in_the_order_of_its_stream() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("auto 16");
    let late = lab.machine.hold(Some(consumer.pid()));
    for number in 1..4 {
        run(&mut producer, "publish", &format!("published {number}"));
        run(&mut consumer, "word", "has a word");
    }
    run(&mut consumer, "held", "3");
    assert!(ask(&mut producer, "consumers").starts_with('3'));
    // Slots that queued kernels will read are not written meanwhile.
    run(&mut producer, "publish 100", "published");
    run(&mut producer, "finish", "finished");
    drop(late);
    run(&mut consumer, "result", "0");
    until_released(&mut producer);
    eventually("here too", || ask(&mut consumer, "held") == "0");
    // For the first frame only.
    lab.assert_calls(&consumer, &["cuLaunchHostFunc"], 1);
    lab.assert_allowed();
}

#[test]
fn frames_that_a_kernel_releases_do_not_wait_for_a_driver_that_is_slow() {
    let lab = Lab::new();
    let second = format!("{}-2", lab.pool());
    let mut producer = lab.ready("produce vmm");
    let mut other = lab.ready_at("produce vmm", &second);
    let mut consumer = lab.ready("consume");
    first_round(&mut producer, &mut consumer);
    run(&mut other, "publish", "published 0");
    run(&mut consumer, "late", "late");
    let before = lab.calls(&consumer, &["cuMemUnmap"]);
    run(&mut consumer, &format!("other {second}"), "took other 0");
    eventually("it is being unmapped", || {
        before.is_none() || lab.calls(&consumer, &["cuMemUnmap"]) > before
    });
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "word", "has a word");
    eventually("its lease is over", || ask(&mut consumer, "held") == "0");
    run(&mut consumer, "go-on", "goes on");
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn a_device_that_cannot_register_host_memory_has_no_words() {
    let lab = Lab::new().with("QUIRKS", "no-host-register");
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    let reply = ask(&mut consumer, "word");
    assert_contains(&reply, "register host memory");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    lab.assert_allowed();
}
