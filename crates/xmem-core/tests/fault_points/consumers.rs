// SPDX-License-Identifier: MPL-2.0

//! Consumers are killed, stopped, and get errors from system calls, beside a producer and two consumers without faults.

use std::time::Duration;

use xmem_core::fault::{Point, Side};

use crate::support::child::Child;
use crate::support::victim::*;
use crate::support::*;
use crate::table::{Kind, REFUSALS, arrivals, points};
use crate::{for_each_kind, start_with, victim, watchers, went_on};

for_each_kind! {
    consumers_die: live_consumers_die lossless_consumers_die posix_shm_consumers_die,
    consumers_stop: live_consumers_stop lossless_consumers_stop posix_shm_consumers_stop,
    consumers_are_refused: live_consumers_are_refused lossless_consumers_are_refused
        posix_shm_consumers_are_refused,
}

/// A producer and two consumers without faults.
struct Survivors {
    producer: Child,
    watchers: [Child; 2],
}

impl Survivors {
    fn start(kind: Kind, place: &Place, patience: Duration) -> Self {
        let patience = patience.as_millis().to_string();
        let mut producer = start_with("produce", kind, place, &[("PATIENCE_MS", &patience)]);
        wait_for_reply(&mut producer, "ready");
        let mut survivors = Self {
            producer,
            watchers: watchers(kind, place),
        };
        // A consumer with a frame has joined completely. Its descriptors are counted from here on.
        for watcher in &mut survivors.watchers {
            ask(watcher, "1", "seen");
        }
        survivors.settle();
        survivors
    }

    /// Asserts that the victim's resources are released, and that the others have missed nothing.
    #[track_caller]
    fn settle(&mut self) {
        ask(&mut self.producer, "settle", "settled");
    }

    fn end(mut self, place: &Place) {
        for watcher in &mut self.watchers {
            ask(watcher, "end", "left");
        }
        ask(&mut self.producer, "end", "ended");
        assert!(self.producer.ends());
        place.assert_clean();
    }
}

fn consumers_die(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, HANG);
    for point in points(Side::Consumer, kind) {
        for &arrival in arrivals(point) {
            let mut victim = victim("churn", kind, &place, point, arrival..arrival + 1, "kill");
            assert_eq!(
                victim.dies_of(),
                SIGKILL,
                "no consumer came to {point:?} {arrival}"
            );
            println!("a consumer died at {point:?} {arrival}");
            survivors.settle();
        }
    }
    survivors.end(&place);
}

fn consumers_stop(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, Duration::from_millis(150));
    for point in points(Side::Consumer, kind) {
        let victim = victim("churn", kind, &place, point, 2..3, "stop");
        assert!(victim.stops(), "no consumer came to {point:?}");
        println!("a consumer stopped at {point:?}");
        ask(&mut survivors.producer, "more", "more");
        victim.go_on();
        went_on(victim);
        survivors.settle();
    }
    survivors.end(&place);
}

fn consumers_are_refused(kind: Kind) {
    let place = Place::new();
    let mut survivors = Survivors::start(kind, &place, HANG);
    for (point, errno) in [
        (Point::Mmap, rustix::io::Errno::NOMEM),
        (Point::Send, rustix::io::Errno::NOBUFS),
    ] {
        for arrival in 1..=REFUSALS {
            let errno = errno.raw_os_error().to_string();
            let victim = victim("churn", kind, &place, point, arrival..arrival + 2, &errno);
            println!("a consumer is refused {point:?} {arrival}");
            went_on(victim);
            survivors.settle();
        }
    }
    survivors.end(&place);
}
