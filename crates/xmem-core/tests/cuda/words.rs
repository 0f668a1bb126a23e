// SPDX-License-Identifier: MPL-2.0

//! Leases that a device ends by storing 0 to a word.

use crate::lab::{Lab, ask, first_round, run};
use crate::support::eventually;

#[test]
fn a_stream_and_a_kernel_end_leases_in_order() {
    for how in ["write", "hand-over"] {
        let lab = Lab::new();
        let (mut producer, mut consumer) = lab.begun("auto 16");
        let late = lab.machine.hold(Some(consumer.pid()));
        let answer = if how == "write" {
            "written"
        } else {
            "handed over"
        };
        for number in 1..4 {
            run(&mut producer, "publish", &format!("published {number}"));
            run(&mut consumer, how, answer);
        }
        run(&mut consumer, "held", "3");
        assert!(ask(&mut producer, "consumers").starts_with('3'));
        // Slots that queued kernels will read are not written meanwhile.
        run(&mut producer, "publish 100", "published");
        run(&mut producer, "finish", "finished");
        drop(late);
        run(&mut consumer, "result", "0");
        eventually("the leases are over", || {
            ask(&mut producer, "consumers").starts_with('0')
        });
        eventually("here too", || ask(&mut consumer, "held") == "0");
        // For the first frame only.
        lab.assert_calls(&consumer, &["cuLaunchHostFunc"], 1);
        lab.assert_allowed();
    }
}

#[test]
fn a_frame_that_is_published_again_is_not_handed_out_while_a_device_ends_its_lease() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("auto 16");
    let late = lab.machine.hold(Some(consumer.pid()));
    run(&mut producer, "keep", "kept");
    run(&mut consumer, "hand-over", "handed over");
    run(&mut producer, "again", "again");
    // The same slot and generation: the kernel's store would end the new lease.
    run(
        &mut consumer,
        "take now",
        "no frame came before the timeout",
    );
    drop(late);
    run(&mut consumer, "take", "took 1");
    run(&mut producer, "publish 50", "published");
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn leases_that_a_device_ends_do_not_wait_for_a_driver_that_is_slow() {
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
    run(&mut consumer, "hand-over", "handed over");
    eventually("its lease is over", || ask(&mut consumer, "held") == "0");
    run(&mut consumer, "go-on", "goes on");
    run(&mut consumer, "result", "0");
    lab.assert_allowed();
}

#[test]
fn only_the_last_handle_is_handed_over() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    let reply = ask(&mut consumer, "share");
    assert!(reply.contains("has other handles"), "{reply}");
    run(&mut consumer, "result", "0");
}

#[test]
fn streams_that_cannot_write_and_memory_that_cannot_be_registered() {
    let lab = Lab::new().with("QUIRKS", "no-stream-mem-ops");
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    run(&mut consumer, "write", "written");
    run(&mut consumer, "result", "0");
    eventually("the lease is over", || {
        ask(&mut producer, "consumers").starts_with('0')
    });
    // Instead of the store.
    lab.assert_calls(&consumer, &["cuLaunchHostFunc"], 1);

    let lab = Lab::new().with("QUIRKS", "no-host-register");
    let (mut producer, mut consumer) = lab.pair("auto");
    run(&mut producer, "publish", "published 0");
    let reply = ask(&mut consumer, "write");
    assert!(
        reply.contains("cannot write host memory that is registered"),
        "{reply}"
    );
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "take", "took 1");
    lab.assert_allowed();
}
