// SPDX-License-Identifier: MPL-2.0

//! The life of a pool with all orders of steps: a model of the protocol whose reachable states are all visited.
//!
//! The model has a producer that may be killed at every step and started again; two consumers that join, take frames, hold them,
//! leave and are killed; regions that are created and removed; and messages in sockets. Each access to shared memory and each
//! message is a step (`producer`, `consumer`), and an actor may stop between any two. A stopped process is an actor that takes no
//! steps. The properties of all states are in `properties`.
//!
//! Steps are executed one after another, and each sees the newest values. The fences of the protocol guarantee this; `tests/loom`
//! checks them with the shipped code. Copying an entry (a sequence lock), the list of regions, and sleeping are one step or none
//! here, and also have loom models.
//!
//! The model does not contain consumers that violate the protocol (`tests/hostile.rs`), frames that are kept for a time
//! (keeping one more or skipping one more changes no order of steps), hooks and counts of readers, `republish`,
//! and a clean close.
//!
//! A setting limits the numbers of frames, deaths and joins. The tests whose names begin with `wrong_` add a defect to the
//! protocol, and expect a counterexample.

mod checker;
mod consumer;
mod control;
mod producer;
mod properties;
mod setting;
mod steps;
mod world;

use checker::{Model, Step, explore};
use setting::{SMALL, Setting, Wrong};
use steps::Steps;
use world::*;

/// Consumers join, hold, leave and die. Slots are claimed, refused and given back.
const LIVE: Setting = Setting {
    first: 3,
    max_slots: 3,
    abandon: true,
    frames: 3,
    joins: 3,
    crashes: 1,
    leaves: 1,
    ..SMALL
};

/// No consumer misses a frame, with a death, and with consumers that are disconnected because they are too slow.
const LOSSLESS: Setting = Setting {
    lossless: true,
    crashes: 1,
    give_ups: 1,
    ..SMALL
};

/// Versions of the sticky state. Each frame must find its own.
const STICKY: Setting = Setting {
    lossless: true,
    joins: 1,
    stickies: 2,
    ..SMALL
};

/// A pool that grows and shrinks, and a consumer with two threads and late messages.
const REGIONS: Setting = Setting {
    first: 1,
    max_slots: 2,
    joins: 1,
    crashes: 1,
    collects: 2,
    timeouts: 1,
    ..SMALL
};

/// As `REGIONS`, with two consumers.
const SHARED_REGIONS: Setting = Setting {
    first: 1,
    max_slots: 2,
    frames: 2,
    collects: 1,
    ..SMALL
};

/// The same consumer, with a queue that drops messages.
const SHORT_QUEUE: Setting = Setting {
    queue: 1,
    ..REGIONS
};

/// The producer dies at any step, and another one starts. Consumers keep frames of the first.
const RESTART: Setting = Setting {
    frames: 3,
    joins: 3,
    crashes: 1,
    producer_crashes: 1,
    restarts: 1,
    ..SMALL
};

/// All slots are shared out: a live producer always finds a slot, also while budgets become smaller.
const RESERVED: Setting = Setting {
    first: 4,
    max_slots: 4,
    reserve: true,
    frames: 4,
    joins: 3,
    crashes: 1,
    ..SMALL
};

impl Model for Setting {
    type State = World;

    fn start(&self) -> World {
        let mut world = World {
            life: 1,
            left: Left {
                frames: self.frames,
                joins: self.joins,
                crashes: self.crashes,
                producer_crashes: self.producer_crashes,
                restarts: self.restarts,
                collects: self.collects,
                stickies: self.stickies,
                leaves: self.leaves,
                timeouts: self.timeouts,
                give_ups: self.give_ups,
            },
            ..World::default()
        };
        producer::start(self, &mut world);
        world
    }

    fn steps(&self, world: &World, out: &mut Vec<(Step, World)>) {
        let mut steps = Steps::new(world, out);
        producer::steps(self, world, &mut steps);
        for client in 0..CLIENTS {
            consumer::steps(self, world, client, &mut steps);
        }
    }

    fn flaw(&self, world: &World) -> Option<&'static str> {
        properties::flaw(self, world)
    }

    fn marks(&self, world: &World, mark: &mut dyn FnMut(&'static str)) {
        let clients = &world.clients;
        let any = |is: &dyn Fn(&Client) -> bool| clients.iter().any(is);
        let seen = [
            ("at rest", properties::is_at_rest(world)),
            (
                "a claim is refused",
                matches!(world.producer.app, App::PutBack { .. }),
            ),
            (
                "both hold a frame",
                clients.iter().all(|client| client.held_count() > 0),
            ),
            (
                "a frame is gone",
                any(&|client| matches!(client.user, User::TakeBack { .. })),
            ),
            (
                "a dead one holds a slot",
                any(&|it| it.user == User::Dead && it.listed && it.leases != [0; SLOTS]),
            ),
            (
                "one that left holds a frame",
                any(&|client| client.user == User::Left && client.held_count() > 0),
            ),
            (
                "one was given up on",
                any(&|client| client.timed_out && client.held_count() > 0),
            ),
            (
                "a frame outlives its producer",
                any(&|client| client.old.frame != 0 && client.session == 2),
            ),
            (
                "a region is retired",
                world
                    .producer
                    .regions
                    .iter()
                    .any(|region| matches!(region.is, RegionIs::Retired(_))),
            ),
            (
                "a budget becomes smaller while a frame is held",
                world.producer.sharing && any(&|client| client.held_count() > 0),
            ),
            ("a third region", world.producer.last_region == 3),
            (
                "a frame is taken after the sticky state changed",
                any(&|it| matches!(it.user, User::Move(_)) && world.producer.sticky > 0),
            ),
        ];
        for (name, _) in seen.into_iter().filter(|(_, seen)| *seen) {
            mark(name);
        }
    }
}

/// Asserts that all properties hold in every state, and that these marks occur.
#[track_caller]
fn holds(name: &str, setting: &Setting, happens: &[&str]) {
    let outcome = explore(name, setting);
    if let Some((what, trace)) = &outcome.flaw {
        panic!("{what} (consumers may change places from line to line):\n{trace}");
    }
    for what in happens.iter().chain(&["at rest"]) {
        assert!(outcome.marks.contains_key(what), "never happened: {what}");
    }
}

/// Asserts that the defect violates this property.
#[track_caller]
fn fails(wrong: Wrong, setting: Setting, expected: &str) {
    let setting = Setting {
        wrong: Some(wrong),
        ..setting
    };
    let outcome = explore(&format!("{wrong:?}"), &setting);
    let (what, trace) = outcome.flaw.expect("no flaw was found");
    assert_eq!(what, expected, "\n{trace}");
}

#[test]
fn live() {
    let happens = [
        "a claim is refused",
        "both hold a frame",
        "a frame is gone",
        "a dead one holds a slot",
        "one that left holds a frame",
    ];
    holds("live", &LIVE, &happens);
}

#[test]
fn lossless() {
    let happens = ["both hold a frame", "one was given up on"];
    holds("lossless", &LOSSLESS, &happens);
}

#[test]
fn sticky_state() {
    let happens = ["a frame is taken after the sticky state changed"];
    holds("sticky state", &STICKY, &happens);
}

#[test]
fn regions() {
    let happens = ["a region is retired", "a third region"];
    holds("regions", &REGIONS, &happens);
    holds("regions, short queue", &SHORT_QUEUE, &happens);
}

#[test]
fn regions_of_two_consumers() {
    let happens = ["a region is retired", "both hold a frame"];
    holds("regions, two consumers", &SHARED_REGIONS, &happens);
}

#[test]
fn restart() {
    holds("restart", &RESTART, &["a frame outlives its producer"]);
}

#[test]
fn reserved() {
    let happens = [
        "a dead one holds a slot",
        "both hold a frame",
        "a budget becomes smaller while a frame is held",
    ];
    holds("reserved", &RESERVED, &happens);
}

const CLAIMED: &str = "a slot that is held is claimed";
const TORN: &str = "a frame that is held is torn";
const MISSED: &str = "a lossless consumer missed a frame";
const UNCOUNTED: &str = "a consumer has memory mapped that its producer has forgotten";

#[test]
fn wrong_slots() {
    fails(Wrong::HoldLooksFirst, LIVE, CLAIMED);
    fails(Wrong::ClaimLooksFirst, LIVE, CLAIMED);
    fails(Wrong::SameGeneration, LIVE, TORN);
    let waits = "the producer waits for a consumer";
    fails(Wrong::ClaimWaits, LIVE, waits);
}

#[test]
fn wrong_deaths_and_leaves() {
    fails(Wrong::PageOfALivingProcessDropped, LIVE, CLAIMED);
    fails(Wrong::PageDroppedAtGoodbye, LIVE, CLAIMED);
    let leaks = "a dead consumer's page still counts";
    fails(Wrong::DeathIsNotNoticed, LIVE, leaks);
    fails(Wrong::MemoryIsReusedAfterRestart, RESTART, TORN);
}

#[test]
fn wrong_lossless() {
    fails(Wrong::WelcomeBeforeListing, LOSSLESS, MISSED);
    fails(Wrong::HeadBeforeEntry, LOSSLESS, MISSED);
    fails(Wrong::WordAfterHead, LOSSLESS, MISSED);
    fails(Wrong::CursorBeforeHold, LOSSLESS, MISSED);
    fails(Wrong::CursorIsNotLookedAt, LOSSLESS, MISSED);
    fails(Wrong::StickyIsForgotten, STICKY, MISSED);
}

#[test]
fn wrong_regions() {
    fails(Wrong::RetiredWhileHeld, REGIONS, CLAIMED);
    fails(Wrong::RegionIdsAreReused, REGIONS, TORN);
    fails(Wrong::VersionBeforeIds, REGIONS, UNCOUNTED);
    fails(Wrong::LateRegionIsKept, REGIONS, UNCOUNTED);
    let counted = "a region that nobody has mapped still counts";
    fails(Wrong::TwoSweep, SHORT_QUEUE, counted);
}

#[test]
fn wrong_reservation() {
    let exhausted = "a pool is exhausted though slots were reserved";
    let setting = Setting {
        frames: 5,
        joins: 2,
        crashes: 0,
        ..RESERVED
    };
    fails(Wrong::NothingIsReserved, setting, exhausted);
    // Then a consumer has more frames than the producer expects.
    let cut_off = "a consumer that follows the rules is cut off";
    fails(Wrong::BudgetIsReadFirst, setting, cut_off);
    fails(Wrong::LeasesAreCountedFirst, setting, cut_off);
}
