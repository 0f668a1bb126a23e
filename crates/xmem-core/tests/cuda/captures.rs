// SPDX-License-Identifier: MPL-2.0

//! Programs that capture streams into graphs.

use crate::lab::{Lab, ask, run, until_released};
use crate::support::eventually;

const REFUSED: &str = "this stream is being captured into a graph: publish frames, wait for them, copy and release them \
                       outside of the capture";

#[test]
fn a_capture_is_not_disturbed_by_frames_on_other_streams() {
    for (mode, imported) in [("vmm", "Vmm"), ("legacy", "Legacy")] {
        for place in ["", "elsewhere"] {
            let lab = Lab::new();
            let mut producer = lab.ready(&format!("produce {mode} 16 {place}"));
            let mut consumer = lab.ready(&format!("consume {place}"));
            run(&mut producer, "capture other", "captures");
            run(&mut consumer, "capture other", "captures");
            // Meanwhile other threads allocate, import, register and free memory.
            run(&mut producer, "publish", "published 0");
            run(&mut consumer, "take", "took 0");
            run(&mut producer, "publish", "published 1");
            run(&mut consumer, "hold", &format!("holds 1 Some({imported})"));
            run(&mut consumer, "sync", "syncs");
            assert_eq!(consumer.reply(), "synced");
            run(&mut producer, "publish", "published 2");
            run(&mut consumer, "word", "has a word");
            until_released(&mut producer);
            run(&mut producer, "end-capture", "true");
            run(&mut consumer, "end-capture", "true");
            run(&mut consumer, "result", "0");
            lab.assert_allowed();
        }
    }
}

#[test]
fn a_capture_records_no_work_of_a_frame() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm 16");
    // Without the check, a captured stream would not record an event or end a lease, or would end it at each launch of the graph.
    run(&mut producer, "capture own", "captures");
    run(&mut producer, "publish", REFUSED);
    run(&mut producer, "end-capture", "true");
    run(&mut producer, "publish", "published 1");
    run(&mut consumer, "hold", "holds 2 Some(Vmm)");
    run(&mut consumer, "look", "looks");
    run(&mut consumer, "capture own", "captures");
    run(&mut consumer, "release", REFUSED);
    run(&mut producer, "publish", "published 2");
    run(&mut consumer, "take", REFUSED);
    run(&mut producer, "publish", "published 3");
    run(&mut consumer, "hold", "holds 4 Some(Vmm)");
    // The oldest of both.
    run(&mut consumer, "release after", REFUSED);
    run(&mut consumer, "held", "2");
    run(&mut consumer, "end-capture", "true");
    eventually("it is released when the capture is over", || {
        ask(&mut consumer, "held") == "1"
    });
    run(&mut consumer, "release", "released");
    run(&mut consumer, "result", "0");
    until_released(&mut producer);
    lab.assert_allowed();
}
