// SPDX-License-Identifier: MPL-2.0

//! The roles of the child processes.

use std::collections::VecDeque;
use std::time::Duration;

use xmem_core::{AcquireError, Backing, Consumer, Delivery, Producer, ReceiveError, Wait};

use crate::support::child::{self, end_with_parent, read_line, reply};
use crate::support::*;
use crate::{SIZE, forks, namespaces, versions};

pub(crate) fn play() {
    let Some((role, pool)) = child::role() else {
        return;
    };
    match role.as_str() {
        "hold" => hold(&pool),
        "read" => read(&pool),
        "churn" => churn(&pool),
        "sleep" => sleep(&pool),
        "produce" => produce(&pool, Backing::Memfd),
        "produce-posix-shm" => produce(&pool, Backing::PosixShm),
        "gap-live" => gap(&pool, Delivery::Live),
        "gap-lossless" => gap(&pool, Delivery::Lossless),
        "count-resources" => count_resources(&pool),
        "slow-lossless" => slow_lossless(&pool),
        "own-pid" => namespaces::own_pid(&pool),
        "ask-pid" => namespaces::ask_pid(&pool),
        "fork-consumer" => forks::fork_consumer(&pool),
        "fork-producer" => forks::fork_producer(&pool),
        "fork-and-replace" => forks::fork_and_replace(&pool),
        "fork-and-hold" => forks::fork_and_hold(&pool),
        "meet" => versions::meet(&pool),
        "go-on" => versions::go_on(&pool),
        other => panic!("no role {other}"),
    }
}

/// Holds four frames, and checks them on command.
fn hold(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(4).connect().unwrap();
    reply("joined");
    let mut frames = Vec::new();
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => frames.push(frame),
            Err(ReceiveError::OverBudget { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    reply(frames.len());
    read_line();
    frames.iter().for_each(assert_whole);
    reply("whole");
    drop(frames);
    reply(
        match consumer.receive_with(Some(HANG), |frame| assert_whole(frame)) {
            Ok(()) => "received".to_owned(),
            Err(error) => format!("{error:?}"),
        },
    );
    read_line();
}

/// Checks every frame until the stream ends. Reports the numbers of received and missed frames.
fn read(pool: &str) {
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    reply("joined");
    let mut last = None;
    loop {
        match consumer.receive(None) {
            Ok(frame) => {
                assert_whole(&frame);
                assert!(last < Some(frame.info().sequence), "frames go backwards");
                last = Some(frame.info().sequence);
            }
            Err(ReceiveError::Eos) => break,
            Err(error) => panic!("{error}"),
        }
    }
    reply(consumer.stats().received);
    reply(consumer.stats().missed);
}

/// Takes and drops frames at full speed, and holds some of them, until it is killed.
fn churn(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(3).connect().unwrap();
    reply("joined");
    end_with_parent();
    let mut held = VecDeque::new();
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => held.push_back(frame),
            Err(ReceiveError::OverBudget { .. }) => drop(held.pop_front()),
            Err(ReceiveError::Eos) => break,
            Err(error) => panic!("{error}"),
        }
    }
    reply(consumer.stats().received);
}

/// Sleeps until there is a frame, and reports the result.
fn sleep(pool: &str) {
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    reply("joined");
    let result = consumer.receive(None);
    reply(match result {
        Ok(_) => "a frame".to_owned(),
        Err(error) => format!("{error:?}"),
    });
}

/// Publishes checked frames until it is killed.
fn produce(pool: &str, backing: Backing) {
    let producer = Producer::builder(pool)
        .backing(backing)
        .history(4)
        .build()
        .unwrap();
    reply("ready");
    end_with_parent();
    // A slot that is never published.
    let _unfinished = producer.acquire(SIZE).unwrap();
    for seed in u64::from(std::process::id()) << 32.. {
        publish(&producer, seed, SIZE);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Publishes a frame in a new region between two others, and waits to be killed.
fn gap(pool: &str, delivery: Delivery) {
    let producer = Producer::builder(pool).delivery(delivery).build().unwrap();
    publish(&producer, 0, SIZE);
    reply("ready");
    read_line();
    publish(&producer, 1, SIZE);
    publish(&producer, 2, 2 << 20);
    publish(&producer, 3, SIZE);
    reply("published");
    read_line();
}

/// A producer that reports its resource usage before and after many frames of changing sizes.
fn count_resources(pool: &str) {
    let producer = Producer::builder(pool).max_bytes(64 << 20).build().unwrap();
    reply("ready");
    read_line();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = None;
    for seed in 0..6000u64 {
        // The size changes from time to time, so that regions are added and removed.
        let size = [SIZE, 700_000, 2_500_000][(seed / 500 % 3) as usize];
        let mut slot = match producer.acquire(size) {
            Ok(slot) => slot,
            // The limit is reached until the reading consumer releases an old region.
            Err(AcquireError::Exhausted { .. }) => {
                producer.acquire_wait(size, Wait::up_to(HANG)).unwrap()
            }
            Err(error) => panic!("{error}"),
        };
        fill(seed, &mut slot.as_mut_slice()[..1000]);
        slot.publish(seeded(seed, 1000)).unwrap();
        let stats = producer.stats();
        assert!(stats.bytes <= 64 << 20, "{stats:?}");
        let now = descriptors();
        if seed == 500 {
            before = Some(now);
        }
        // The number of regions and versions of the state varies a little.
        assert!(now <= before.unwrap_or(now) + 8, "descriptors pile up");
    }
    reply("done");
    read_line();
    producer.set_eos(true);
    reply(producer.stats().published);
    read_line();
}

/// Takes every frame, slower than they are published.
fn slow_lossless(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(2).connect().unwrap();
    reply("joined");
    let mut next = 0;
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => {
                assert_eq!(
                    (frame.info().sequence, frame.meta().pts),
                    (next, Some(next))
                );
                assert_whole(&frame);
                next += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(ReceiveError::Eos) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(consumer.stats().missed, 0);
    reply(next);
}
