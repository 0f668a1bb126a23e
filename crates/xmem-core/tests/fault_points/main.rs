// SPDX-License-Identifier: MPL-2.0

//! Kills, stops, or refuses memory to processes at each single fault point of the protocol, on both sides.
//!
//! `cargo nextest run -p xmem-core --test fault_points`
//!
//! The points come from the code (`Point::ALL`). The test fails if a victim does not reach its point, so each point has killed a
//! process at least once.
#![cfg(any(feature = "fault-points", debug_assertions))]

mod buffers;
mod consumers;
mod part;
mod producers;
mod sleep;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod taking;
mod turns;

use std::ops::Range;
use std::process::Command;

use support::child::{self, Child};
use support::victim::*;
use support::*;
use table::{KINDS, Kind, SIZES};
use xmem_core::fault::Point;
use xmem_core::{Consumer, Producer, StartFrom};

/// Runs a role in a child process.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    let (role, kind) = role.split_once(' ').unwrap();
    let kind = KINDS.into_iter().find(|k| format!("{k:?}") == kind);
    warm_up();
    let commands = commands();
    match (role, kind) {
        ("watch", _) => taking::watch(&pool, &commands),
        ("churn", _) => taking::churn(&pool, &commands),
        ("produce", Some(kind)) => stream::produce(&pool, kind, &commands),
        ("reproduce", Some(kind)) => stream::reproduce(&pool, kind, &commands),
        ("step", Some(kind)) => stream::step_by_step(&pool, kind, &commands),
        ("take", _) => taking::take(&pool, &commands),
        ("take-part", _) => part::take_part(&pool, &commands),
        other => panic!("no role {other:?}"),
    }
}

/// Creates objects that a process creates once and keeps, so that they are not counted as leaks.
fn warm_up() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    publish(&producer, 0, SIZES[0]);
    let consumer = Consumer::builder(place.pool()).start_from(StartFrom::Oldest);
    receive(&mut consumer.connect().unwrap());
}

fn start(role: &str, kind: Kind, place: &Place) -> Child {
    start_with(role, kind, place, &[])
}

fn start_with(role: &str, kind: Kind, place: &Place, env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("XMEM_RUNTIME_DIR", place.path());
    command.envs(env.iter().copied());
    Child::from(command, &format!("{role} {kind:?}"), &place.pool())
}

/// Starts a process with this fault.
#[track_caller]
fn victim(
    role: &str,
    kind: Kind,
    place: &Place,
    point: Point,
    arrivals: Range<u32>,
    action: &str,
) -> Child {
    let mut victim = start(role, kind, place);
    arm_child(&mut victim, point, arrivals, action);
    victim.send("go");
    victim
}

fn watchers(kind: Kind, place: &Place) -> [Child; 2] {
    [(); 2].map(|()| start("watch", kind, place))
}

/// Asserts that the process works as before, and then ends normally.
#[track_caller]
fn went_on(mut victim: Child) {
    loop {
        victim.send("went on?");
        match victim.reply().as_str() {
            "went on" => break,
            "not yet" => {}
            other => panic!("{other}"),
        }
    }
    ask(&mut victim, "end", "ended");
    assert!(victim.ends());
}

macro_rules! for_each_kind {
    ($($what:ident: $live:ident $lossless:ident $posix_shm:ident,)*) => {$(
        #[test]
        fn $live() {
            $what(Kind::Live);
        }

        #[test]
        fn $lossless() {
            $what(Kind::Lossless);
        }

        #[test]
        fn $posix_shm() {
            $what(Kind::PosixShm);
        }
    )*};
}
use for_each_kind;
