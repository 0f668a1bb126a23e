// SPDX-License-Identifier: MPL-2.0

//! Programs that capture streams into graphs.

use crate::lab::{Lab, ask, told};
use crate::support::eventually;

const REFUSED: &str = "this stream is being captured into a graph: publish frames, wait for them, copy and let go of them \
                       outside of the capture";

#[test]
fn a_capture_is_not_disturbed_by_frames_on_other_streams() {
    for (mode, imported) in [("vmm", "Vmm"), ("legacy", "Legacy")] {
        for place in ["", "elsewhere"] {
            let lab = Lab::new();
            let mut producer = lab.ready(&format!("produce {mode} 16 {place}"));
            let mut consumer = lab.ready(&format!("consume {place}"));
            told(&mut producer, "capture other", "captures");
            told(&mut consumer, "capture other", "captures");
            // Memory is made, imported, registered, and freed by other threads meanwhile.
            told(&mut producer, "publish", "published 0");
            told(&mut consumer, "take", "took 0");
            told(&mut producer, "publish", "published 1");
            told(&mut consumer, "hold", &format!("holds 1 Some({imported})"));
            told(&mut consumer, "sync", "syncs");
            assert_eq!(consumer.says(), "synced");
            told(&mut producer, "publish", "published 2");
            assert!(matches!(&*ask(&mut consumer, "write"), "written"));
            eventually("its leases are over", || {
                ask(&mut producer, "consumers").starts_with('0')
            });
            told(&mut producer, "end-capture", "true");
            told(&mut consumer, "end-capture", "true");
            told(&mut consumer, "result", "0");
            lab.assert_allowed();
        }
    }
}

#[test]
fn a_capture_records_no_work_of_a_frame() {
    let lab = Lab::new();
    let (mut producer, mut consumer) = lab.begun("vmm 16");
    // A stream that is captured would record no event, end no lease, or end it again each time that the graph runs.
    told(&mut producer, "capture own", "captures");
    told(&mut producer, "publish", REFUSED);
    told(&mut producer, "end-capture", "true");
    told(&mut producer, "publish", "published 1");
    told(&mut consumer, "hold", "holds 2 Some(Vmm)");
    told(&mut consumer, "look", "looks");
    told(&mut consumer, "capture own", "captures");
    told(&mut consumer, "let-go", REFUSED);
    told(&mut consumer, "let-go write", REFUSED);
    told(&mut producer, "publish", "published 2");
    told(&mut consumer, "take", REFUSED);
    told(&mut producer, "publish", "published 3");
    told(&mut consumer, "hold", "holds 4 Some(Vmm)");
    // The oldest of both.
    told(&mut consumer, "let-go after", REFUSED);
    told(&mut consumer, "held", "2");
    told(&mut consumer, "end-capture", "true");
    eventually("it is let go of when the capture is over", || {
        ask(&mut consumer, "held") == "1"
    });
    told(&mut consumer, "let-go", "let go");
    told(&mut consumer, "result", "0");
    eventually("its leases are over", || {
        ask(&mut producer, "consumers").starts_with('0')
    });
    lab.assert_allowed();
}
