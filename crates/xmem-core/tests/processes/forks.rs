// SPDX-License-Identifier: MPL-2.0

//! Forked processes: the objects that a child inherits, and those that it must not use.
#![allow(unsafe_code)] // fork

use std::time::Duration;

use xmem_core::{
    AcquireError, Consumer, ConsumerSet, Producer, PublishError, ReadyFd, ReceiveError, StartFrom,
    Wait, WaitError,
};

use crate::support::child::{Child, exit_of, read_line, reply};
use crate::support::*;
use crate::{SIZE, start};

/// Runs a function in a forked child of this process. Returns its exit status.
fn in_fork(f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `f` and exits. glibc makes malloc usable in it, and no lock that it takes is contended.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: exits without the parent's exit handlers.
            unsafe { libc::_exit(result.is_err().into()) }
        }
        pid => {
            assert!(pid > 0);
            exit_of(pid)
        }
    }
}

pub(crate) fn fork_consumer(pool: &str) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let frames = [receive(&mut consumer), receive(&mut consumer)];
    let handle = consumer.handle();
    let code = in_fork({
        let frames = frames.clone();
        let consumer = &mut consumer;
        move || {
            assert!(consumer.is_ready());
            assert!(matches!(consumer.receive(None), Err(ReceiveError::Forked)));
            assert!(matches!(
                consumer.receive_with(None, |_| ()),
                Err(ReceiveError::Forked)
            ));
            // Inherited frames can be read.
            frames.iter().for_each(assert_whole);
            // Statistics belong to the parent. Reading them has no effect.
            let _ = (consumer.stats(), consumer.held(), consumer.budget());
            let _ = (handle.stats(), consumer.sticky(), consumer.delivery());
            consumer.note_copied();
            // Clones that are created or dropped in the child have no effect on the parent's leases.
            let more = [frames.clone(), frames.clone()];
            drop(frames);
            more.iter().flatten().for_each(assert_whole);
            drop(more);
            // A new consumer of the child works.
            let other = Consumer::builder(consumer.pool())
                .start_from(StartFrom::Oldest)
                .connect();
            assert_whole(&receive(&mut other.unwrap()));
        }
    });
    reply(code);
    // The inherited handles themselves are dropped in the child.
    let mut handles = Some((consumer, frames));
    let code = in_fork(|| {
        let (consumer, frames) = handles.take().unwrap();
        let more = frames.clone();
        drop((consumer, frames));
        drop(more);
    });
    reply(code);
    let (mut consumer, frames) = handles.unwrap();
    read_line();
    frames.iter().for_each(assert_whole);
    assert_eq!(consumer.held(), 2);
    let [first, second] = frames;
    let again = first.clone();
    drop(first);
    assert_eq!(consumer.held(), 2);
    drop((again, second));
    assert_eq!(consumer.held(), 0);
    assert_whole(&receive(&mut consumer));
    reply("whole");
    read_line();
}

/// Threads of the child may have the same addresses as threads of its parent had.
pub(crate) fn fork_and_replace(pool: &str) {
    let connect = || {
        Consumer::builder(pool)
            .start_from(StartFrom::Oldest)
            .connect()
            .unwrap()
    };
    let mut inherited = connect();
    inherited.notify(&ReadyFd::new().unwrap()).unwrap();
    let mut set = ConsumerSet::new().unwrap();
    set.add(connect()).unwrap();
    let mut handles = Some((
        set,
        inherited,
        Producer::builder(format!("{pool}-parent")).build().unwrap(),
    ));
    reply(in_fork(|| {
        let mut own = connect();
        own.notify(&ReadyFd::new().unwrap()).unwrap();
        let producer = Producer::builder(format!("{pool}-child")).build().unwrap();
        let (mut set, mut inherited, inherited_producer) = handles.take().unwrap();
        let (number, consumer) = set.wait(None).next().unwrap();
        assert!(matches!(consumer.receive(None), Err(ReceiveError::Forked)));
        let removed = set.remove(number).unwrap();
        assert!(set.add(removed).is_err());
        assert!(inherited.notify(&ReadyFd::new().unwrap()).is_err());
        drop((set, inherited, inherited_producer));
        assert_whole(&receive(&mut own));
        drop((own, producer));
    }));
    // What the child did to its copies had no effect.
    let (mut set, ..) = handles.unwrap();
    let (_, consumer) = set.wait(None).next().unwrap();
    assert_whole(&receive(consumer));
    read_line();
}

pub(crate) fn fork_producer(pool: &str) {
    let producer = Producer::builder(pool).history(2).build().unwrap();
    let own = publish(&producer, 0, SIZE);
    let mut unfinished = Some(producer.acquire(SIZE).unwrap());
    reply("ready");
    read_line();
    let mut handles = Some((producer.clone(), own.clone()));
    let code = in_fork(|| {
        let (producer, own) = handles.take().unwrap();
        assert!(matches!(producer.acquire(SIZE), Err(AcquireError::Forked)));
        assert!(matches!(
            producer.acquire_wait(SIZE, Wait::FOREVER),
            Err(AcquireError::Forked)
        ));
        assert!(matches!(
            producer.republish(&own, &seeded(9, SIZE)),
            Err(PublishError::Forked)
        ));
        let failure = unfinished
            .take()
            .unwrap()
            .publish(seeded(9, SIZE))
            .unwrap_err();
        assert!(matches!(failure.error, PublishError::Forked));
        assert!(matches!(
            producer.wait_for_consumers(1, Wait::FOREVER),
            Err(WaitError::Forked)
        ));
        // None of these calls may affect the parent's pool.
        producer.set_eos(true);
        producer.collect();
        let _ = producer.stats();
        producer.close();
        assert_whole(&own);
        let more = own.clone();
        drop((failure, own, producer));
        assert_whole(&more);
        drop(more);
    });
    reply(code);
    read_line();
    let unfinished = unfinished.unwrap();
    let mut slot = unfinished;
    fill(1, slot.as_mut_slice());
    slot.publish(seeded(1, SIZE)).unwrap();
    for seed in 2..10 {
        publish(&producer, seed, SIZE);
    }
    assert_frame(&own, 0, SIZE);
    reply(producer.stats().slots_held);
    read_line();
}

/// Holds frames, and leaves a forked child that keeps all descriptors.
pub(crate) fn fork_and_hold(pool: &str) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let frame = receive(&mut consumer);
    // SAFETY: the child only waits for the end of standard input.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _ = std::io::stdin().read_line(&mut String::new());
        // SAFETY: exits immediately.
        unsafe { libc::_exit(0) };
    }
    reply(pid);
    std::thread::sleep(HANG * 10);
    drop(frame);
}

#[test]
fn a_fork_of_a_consumer_releases_nothing() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(2));
    for seed in 0..2 {
        publish(&producer, seed, SIZE);
    }
    let mut consumer = Child::start("fork-consumer", &place.pool());
    assert_eq!(consumer.reply(), "0", "exit of the first forked child");
    assert_eq!(consumer.reply(), "0", "exit of the second forked child");
    eventually("only the parent is connected", || {
        producer.stats().consumers.len() == 1
    });
    for seed in 2..50 {
        publish(&producer, seed, SIZE);
    }
    let stats = producer.stats();
    assert_eq!((stats.consumers[0].held, stats.slots_held), (2, 4));
    consumer.send("check");
    assert_eq!(consumer.reply(), "whole");
    consumer.send("bye");
    assert!(consumer.end());
}

#[test]
fn handles_replaced_after_a_fork_leave_the_new_threads_running() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(2));
    publish(&producer, 0, SIZE);
    let mut consumer = Child::start("fork-and-replace", &place.pool());
    assert_eq!(consumer.reply(), "0", "exit of the forked child");
    consumer.send("bye");
    assert!(consumer.end());
}

#[test]
fn a_fork_of_a_producer_touches_nothing() {
    let place = Place::new();
    let mut producer = start("fork-producer", "ready", &place);
    let mut consumer = place.consumer(|it| it.start_from(StartFrom::Oldest));
    let first = receive(&mut consumer);
    assert_frame(&first, 0, SIZE);
    producer.send("fork");
    assert_eq!(producer.reply(), "0", "exit of the forked child");
    let error = consumer
        .receive(Some(Duration::from_millis(20)))
        .unwrap_err();
    assert!(matches!(error, ReceiveError::Timeout), "{error}");
    producer.send("go on");
    // Only the slots of the history and of `own`.
    assert_eq!(producer.reply(), "3");
    let frame = receive(&mut consumer);
    assert_whole(&frame);
    assert_frame(&first, 0, SIZE);
    // The socket still exists.
    Consumer::builder(place.pool()).connect().unwrap();
    producer.send("bye");
    assert!(producer.end());
    place.assert_clean();
}

#[test]
fn a_killed_consumer_is_noticed_though_its_fork_lives() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(1));
    publish(&producer, 0, SIZE);
    let mut consumer = Child::start("fork-and-hold", &place.pool());
    let fork: i32 = consumer.reply().parse().unwrap();
    publish(&producer, 1, SIZE);
    assert_eq!(producer.stats().slots_held, 2);
    consumer.kill();
    eventually("its slot is back", || {
        let stats = producer.stats();
        stats.consumers.is_empty() && stats.slots_held == 1
    });
    // The forked process ran all the time. It ends with its standard input.
    assert!(std::path::Path::new(&format!("/proc/{fork}")).exists());
}
