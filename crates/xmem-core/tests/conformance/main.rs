// SPDX-License-Identifier: MPL-2.0

//! The contract of all kinds of regions, according to their capabilities.

mod budgets;
mod capabilities;
mod ends;
mod frames;
mod hooks;
mod limits;
mod lossless;
mod regions;
mod sticky;
#[path = "../support/mod.rs"]
mod support;

use support::*;
use xmem_core::{Backing, Consumer, Producer, ProducerBuilder};

/// Runs the tests of a module with each kind of region.
macro_rules! conformance {
    ($($name:ident)*) => {
        mod memfd { $(#[test] fn $name() { super::$name(xmem_core::Backing::Memfd) })* }
        mod posix_shm { $(#[test] fn $name() { super::$name(xmem_core::Backing::PosixShm) })* }
    };
}
use conformance;

fn pool(place: &Place, backing: Backing) -> ProducerBuilder {
    Producer::builder(place.pool()).backing(backing)
}

fn connect(place: &Place) -> Consumer {
    Consumer::builder(place.pool()).connect().unwrap()
}

/// A consumer with this budget.
fn connect_with(place: &Place, max_held: u32) -> Consumer {
    place.consumer(|it| it.max_held(max_held))
}
