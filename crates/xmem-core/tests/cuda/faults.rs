// SPDX-License-Identifier: MPL-2.0

//! Kills either side at each step that allocates, transfers, waits for or releases device memory.

use xmem_core::fault::Point;

use crate::lab::{Lab, ask, looks, run};
use crate::support::eventually;

fn number(point: Point) -> usize {
    Point::ALL.iter().position(|other| *other == point).unwrap()
}

const OF_PRODUCERS: [(Point, u32); 6] = [
    (Point::TwinMade, 1),
    (Point::CanaryWritten, 1),
    (Point::EventsMade, 1),
    (Point::RegionsShown, 1),
    (Point::EventRecorded, 1),
    (Point::EventRecorded, 3),
];

#[test]
fn producers_that_are_killed_leave_nothing_and_the_next_one_works() {
    for mode in ["vmm", "legacy"] {
        let lab = Lab::new();
        for (point, arrival) in OF_PRODUCERS {
            let mut victim = lab.ready(&format!(
                "dying-at {} {arrival} produce {mode}",
                number(point)
            ));
            let mut consumer = lab.ready("consume");
            for sequence in 0..arrival - 1 {
                run(&mut victim, "publish", &format!("published {sequence}"));
                run(&mut consumer, "take", &format!("took {sequence}"));
                // A stream that waits for work that never completes is blocked permanently. The driver cannot cancel the wait.
                run(&mut victim, "finish", "finished");
            }
            victim.send("publish");
            assert_eq!(
                victim.dies_of(),
                Some(libc::SIGKILL),
                "{point:?} was not passed"
            );
            run(&mut consumer, "take", "the producer is gone: connect again");
            run(&mut consumer, "result", "0");
            consumer.kill();
            eventually("its memory is free", || lab.memory_is_free());
        }
        let mut producer = lab.ready(&format!("produce {mode}"));
        run(&mut producer, "publish", "published 0");
        let mut consumer = lab.ready("consume");
        run(&mut consumer, "take", "took 0");
        run(&mut consumer, "result", "0");
        lab.assert_allowed();
    }
}

/// The command that makes a consumer pass a fault point.
const OF_CONSUMERS: [(Point, u32, &str); 9] = [
    (Point::TwinImported, 1, "take"),
    (Point::CanaryRead, 1, "take"),
    (Point::DeviceSaid, 1, "take"),
    (Point::EventOpened, 1, "take"),
    (Point::EventWaited, 1, "take"),
    (Point::EventWaited, 2, "take"),
    (Point::ReleaseEnqueued, 1, "take"),
    (Point::ReleaseRan, 1, "take"),
    (Point::TwinClosed, 1, "leave"),
];

#[test]
fn consumers_that_are_killed_give_everything_back() {
    for mode in ["vmm", "legacy"] {
        let lab = Lab::new();
        let mut producer = lab.ready(&format!("produce {mode} 24"));
        let mut bystander = lab.ready("consume");
        let mut next = 0;
        for (point, arrival, action) in OF_CONSUMERS {
            run(&mut producer, "publish", &format!("published {next}"));
            run(&mut bystander, "take", &format!("took {next}"));
            let mut victim = lab.ready(&format!("dying-at {} {arrival} consume", number(point)));
            if action == "leave" {
                assert!(ask(&mut victim, "take").starts_with("took"));
                run(&mut victim, "result", "0");
            }
            for _ in 1..arrival {
                assert!(ask(&mut victim, action).starts_with("took"));
                next += 1;
                run(&mut producer, "publish", &format!("published {next}"));
                run(&mut bystander, "take", &format!("took {next}"));
            }
            victim.send(action);
            assert_eq!(
                victim.dies_of(),
                Some(libc::SIGKILL),
                "{point:?} was not passed by {action}"
            );
            eventually("its leases go with it", || {
                !ask(&mut producer, "consumers").contains(',')
            });
            next += 1;
        }
        run(&mut producer, "publish 60", "published");
        let last = next + 59;
        run(&mut bystander, &format!("take to {last}"), "took");
        run(&mut bystander, "result", "0");
        lab.assert_allowed();
    }
}

#[test]
fn producers_that_are_killed_at_their_end_leave_whole_frames() {
    let lab = Lab::new();
    for point in [Point::ClosedMarked, Point::DeviceSettled, Point::TwinClosed] {
        let mut victim = lab.ready(&format!("dying-at {} 1 produce vmm", number(point)));
        let mut consumer = lab.ready("consume");
        run(&mut victim, "publish", "published 0");
        run(&mut consumer, "hold", "holds 0 Some(Vmm)");
        run(&mut victim, "finish", "finished");
        victim.send("close");
        assert_eq!(
            victim.dies_of(),
            Some(libc::SIGKILL),
            "{point:?} was not passed"
        );
        looks(&mut consumer);
        consumer.kill();
        eventually("its memory is free", || lab.memory_is_free());
    }
    lab.assert_allowed();
}

#[test]
fn every_cuda_fault_point_is_covered() {
    let covered = |point: &Point| {
        OF_PRODUCERS.iter().any(|(other, _)| other == point)
            || OF_CONSUMERS.iter().any(|(other, ..)| other == point)
            || *point == Point::DeviceSettled
    };
    let missing: Vec<_> = Point::ALL
        .iter()
        .filter(|point| point.is_cuda() && !covered(point))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
