// SPDX-License-Identifier: MPL-2.0

//! Peers with invalid or too many messages, foreign files, and resource limits.

mod clients;
mod entries;
mod figures;
mod floods;
mod limits;
mod pages;
mod places;
mod producers;
mod regions;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
mod torrents;
mod victim;

use support::child::{self, Child, reply};
use support::*;
use xmem_core::{Consumer, Delivery, Producer, Wait};

const SIZE: usize = 50_000;

/// Publishes frames, which a correct consumer checks, during an attack on the pool.
struct Bystander<'a> {
    producer: &'a Producer,
    consumer: Consumer,
    seed: u64,
}

impl<'a> Bystander<'a> {
    fn new(producer: &'a Producer) -> Self {
        Self {
            // Retried until a time limit: other tests of this user may use up the kernel's limit of descriptors in flight.
            consumer: Consumer::builder(producer.pool())
                .connect_wait(Some(HANG))
                .unwrap(),
            producer,
            seed: 0,
        }
    }

    /// Asserts that no frame of another consumer is lost or torn, and that no slot is missing.
    #[track_caller]
    fn frames(&mut self, frames: u64) {
        for _ in 0..frames {
            // Returns immediately unless the pool is lossless.
            self.producer.wait_for_room(Wait::FOREVER).unwrap();
            publish(self.producer, self.seed, SIZE);
            assert_frame(&receive(&mut self.consumer), self.seed, SIZE);
            self.seed += 1;
        }
        assert_eq!(self.consumer.stats().missed, 0);
    }
}

fn only_the_bystander_is_left(producer: &Producer) {
    eventually("the others are gone", || {
        let stats = producer.stats();
        stats.consumers.len() == 1 && stats.consumers[0].missed == 0
    });
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs a role in a child process.
#[test]
fn child() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    match role.as_str() {
        "foreign-dir" => places::foreign_dir(),
        "victim-live" => victim::run(&pool, Delivery::Live, None),
        "victim-lossless" => victim::run(&pool, Delivery::Lossless, None),
        "victim-few-descriptors" => victim::run(&pool, Delivery::Live, Some(60)),
        "victim-in-flight" => victim::without_privileges(&pool),
        "refers-to-itself" => floods::refers_to_itself(&pool),
        "unread" => floods::unread(&pool),
        "late-consumer" => floods::reads(&pool),
        "full-runtime-dir" => limits::full_runtime_dir(&pool),
        "flooded" => torrents::flooded(&pool),
        "flooded-alive" => torrents::flooded_alive(&pool),
        "short-of-descriptors" => torrents::short_of_descriptors(&pool),
        "short-of-memory" => torrents::short_of_memory(&pool),
        "no-descriptors" => limits::no_descriptors(&pool),
        "no-descriptors-to-grow" => limits::no_descriptors_to_grow(&pool),
        "no-file-size" => limits::no_file_size(&pool),
        "full-dev-shm" => limits::full_dev_shm(&pool),
        other => panic!("no role {other}"),
    }
    reply("done");
}

#[track_caller]
fn run_child(role: &str, place: &Place) {
    Child::start(role, &place.pool()).done();
}
