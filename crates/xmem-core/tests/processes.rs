// SPDX-License-Identifier: MPL-2.0

//! Producers and consumers in processes of their own, killed, stopped, restarted and forked.
#![allow(unsafe_code)] // fork

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::child::{self, Child, end_with_parent, exit_of, hear, say};
use support::*;
use xmem_core::{
    AcquireError, Backing, Canceller, ConnectError, Consumer, CreateError, Delivery, Producer,
    PublishError, ReceiveError, StartFrom, WaitError, query,
};

const SIZE: usize = 200_000;

/// What the children do.
#[test]
fn child() {
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
        "count-resources" => count_resources(&pool),
        "slow-lossless" => slow_lossless(&pool),
        "fork-consumer" => fork_consumer(&pool),
        "fork-producer" => fork_producer(&pool),
        "fork-and-hold" => fork_and_hold(&pool),
        other => panic!("no role {other}"),
    }
}

/// Holds four frames until it is told to check them.
fn hold(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(4).connect().unwrap();
    say("joined");
    let mut frames = Vec::new();
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => frames.push(frame),
            Err(ReceiveError::OverBudget { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    say(frames.len());
    hear();
    frames.iter().for_each(assert_whole);
    say("whole");
    drop(frames);
    say(
        match consumer.receive_with(Some(HANG), |frame| assert_whole(frame)) {
            Ok(()) => "received".to_owned(),
            Err(error) => format!("{error:?}"),
        },
    );
    hear();
}

/// Checks every frame until the stream ends; says how many there were and how many it missed.
fn read(pool: &str) {
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    say("joined");
    let mut last = None;
    loop {
        match consumer.receive(None) {
            Ok(frame) => {
                assert_whole(&frame);
                assert!(last < Some(frame.meta().sequence), "frames go backwards");
                last = Some(frame.meta().sequence);
            }
            Err(ReceiveError::Eos) => break,
            Err(error) => panic!("{error}"),
        }
    }
    say(consumer.stats().received);
    say(consumer.stats().missed);
}

/// Takes and drops frames as fast as it can, holding some of them, until it is killed.
fn churn(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(3).connect().unwrap();
    say("joined");
    end_with_parent();
    let mut held = std::collections::VecDeque::new();
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => held.push_back(frame),
            Err(ReceiveError::OverBudget { .. }) => drop(held.pop_front()),
            Err(ReceiveError::Eos) => break,
            Err(error) => panic!("{error}"),
        }
    }
    say(consumer.stats().received);
}

/// Sleeps for a frame; says what came.
fn sleep(pool: &str) {
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    say("joined");
    let result = consumer.receive(None);
    say(match result {
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
    say("ready");
    end_with_parent();
    // One that never gets done.
    let _unfinished = producer.acquire(SIZE).unwrap();
    for seed in u64::from(std::process::id()) << 32.. {
        publish(&producer, seed, SIZE);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A producer that says what it uses, before and after many frames of changing sizes.
fn count_resources(pool: &str) {
    let producer = Producer::builder(pool).max_bytes(64 << 20).build().unwrap();
    say("ready");
    hear();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let cancel = Canceller::new();
    let mut before = None;
    for seed in 0..6000u64 {
        // Other sizes now and then, so that regions come and go.
        let size = [SIZE, 700_000, 2_500_000][(seed / 500 % 3) as usize];
        let mut slot = match producer.acquire(size) {
            Ok(slot) => slot,
            // At the limit for the moment that the reading consumer needs to let go of an old region.
            Err(AcquireError::Exhausted { .. }) => {
                producer.acquire_wait(size, Some(HANG), &cancel).unwrap()
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
        // A region and the state's versions more or less.
        assert!(now <= before.unwrap_or(now) + 8, "descriptors pile up");
    }
    say("done");
    hear();
    producer.set_eos(true);
    say(producer.stats().published);
    hear();
}

/// Takes every frame, slower than they come.
fn slow_lossless(pool: &str) {
    let mut consumer = Consumer::builder(pool).max_held(2).connect().unwrap();
    say("joined");
    let mut next = 0;
    loop {
        match consumer.receive(Some(HANG)) {
            Ok(frame) => {
                assert_eq!(
                    (frame.meta().sequence, frame.meta().pts),
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
    say(next);
}

/// Runs a function in a forked child of this process. Returns its exit status.
fn in_fork(f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `f` and ends; glibc makes malloc usable in it, and no lock that it takes is contended.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: ends the process, without what the parent registered to run at its end.
            unsafe { libc::_exit(result.is_err().into()) }
        }
        pid => {
            assert!(pid > 0);
            exit_of(pid)
        }
    }
}

fn fork_consumer(pool: &str) {
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
            assert!(matches!(consumer.receive(None), Err(ReceiveError::Forked)));
            assert!(matches!(
                consumer.receive_with(None, |_| ()),
                Err(ReceiveError::Forked)
            ));
            // What was inherited can be read.
            frames.iter().for_each(assert_whole);
            // Figures are the parent's business; asking does no harm.
            let _ = (consumer.stats(), consumer.held(), consumer.budget());
            let _ = (handle.stats(), consumer.sticky(), consumer.delivery());
            consumer.note_copied();
            drop(frames);
            // A handle of its own works.
            let other = Consumer::builder(consumer.pool())
                .start_from(StartFrom::Oldest)
                .connect();
            assert_whole(&receive(&mut other.unwrap()));
        }
    });
    say(code);
    // The same with the handles themselves, dropped in the child as they are.
    let mut handles = Some((consumer, frames));
    let code = in_fork(|| drop(handles.take()));
    say(code);
    let (mut consumer, frames) = handles.unwrap();
    hear();
    frames.iter().for_each(assert_whole);
    assert_eq!(consumer.held(), 2);
    assert_whole(&receive(&mut consumer));
    say("whole");
    hear();
}

fn fork_producer(pool: &str) {
    let producer = Producer::builder(pool).history(2).build().unwrap();
    let own = publish(&producer, 0, SIZE);
    let mut unfinished = Some(producer.acquire(SIZE).unwrap());
    say("ready");
    hear();
    let mut handles = Some((producer.clone(), own.clone()));
    let code = in_fork(|| {
        let (producer, own) = handles.take().unwrap();
        assert!(matches!(producer.acquire(SIZE), Err(AcquireError::Forked)));
        let cancel = Canceller::new();
        assert!(matches!(
            producer.acquire_wait(SIZE, None, &cancel),
            Err(AcquireError::Forked)
        ));
        assert!(matches!(
            producer.republish(&own, seeded(9, SIZE)),
            Err(PublishError::Forked)
        ));
        let failure = unfinished
            .take()
            .unwrap()
            .publish(seeded(9, SIZE))
            .unwrap_err();
        assert!(matches!(failure.error, PublishError::Forked));
        assert!(matches!(
            producer.wait_for_consumer(None, &cancel),
            Err(WaitError::Forked)
        ));
        // None of these may reach the parent's pool.
        producer.set_eos(true);
        producer.collect();
        let _ = producer.stats();
        producer.close();
        assert_whole(&own);
        drop((failure, own, producer));
    });
    say(code);
    hear();
    let unfinished = unfinished.unwrap();
    let mut slot = unfinished;
    fill(1, &mut slot.as_mut_slice()[..SIZE]);
    slot.publish(seeded(1, SIZE)).unwrap();
    for seed in 2..10 {
        publish(&producer, seed, SIZE);
    }
    assert_frame(&own, 0, SIZE);
    say(producer.stats().slots_held);
    hear();
}

/// Holds frames, and leaves a forked child that keeps all its descriptors.
fn fork_and_hold(pool: &str) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let frame = receive(&mut consumer);
    // SAFETY: the child only waits for the end of standard input.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _ = std::io::stdin().read_line(&mut String::new());
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    say(pid);
    std::thread::sleep(HANG * 10);
    drop(frame);
}

#[test]
fn a_killed_consumer_gives_back_its_whole_budget() {
    for backing in [Backing::Memfd, Backing::PosixShm] {
        let place = Place::new();
        let producer = Producer::builder(&place.pool())
            .backing(backing)
            .history(1)
            .build()
            .unwrap();
        let mut consumer = Child::start("hold", &place.pool());
        assert_eq!(consumer.says(), "joined");
        let mut seed = 0;
        eventually("it holds its budget", || {
            publish(&producer, seed, SIZE);
            seed += 1;
            producer.stats().consumers[0].held == 4
        });
        publish(&producer, seed, SIZE);
        assert_eq!(consumer.says(), "4");
        let stats = producer.stats();
        assert_eq!(stats.consumers[0].pid, consumer.pid());
        assert!(stats.slots_held == 5 && stats.consumers[0].oldest_held_age_ns > 0);
        consumer.kill();
        eventually("its slots are back", || {
            let stats = producer.stats();
            stats.consumers.is_empty() && stats.slots_held == 1
        });
        assert_eq!(producer.stats().cut_off, 0);
    }
}

#[test]
fn a_stopped_consumer_changes_nothing_for_the_others() {
    let place = Place::new();
    let mut producer = Child::start("count-resources", &place.pool());
    assert_eq!(producer.says(), "ready");
    let mut stopped = Child::start("churn", &place.pool());
    assert_eq!(stopped.says(), "joined");
    let mut reader = Child::start("read", &place.pool());
    assert_eq!(reader.says(), "joined");
    stopped.stop();
    producer.tell("go");
    assert_eq!(producer.says(), "done");
    let stats = query(&place.pool()).unwrap();
    assert_eq!(stats.published, 6000);
    assert_eq!(stats.consumers.len(), 2, "who is stopped is not cut off");
    producer.tell("end");
    assert_eq!(producer.says(), "6000");
    let received: u64 = reader.says().parse().unwrap();
    let missed: u64 = reader.says().parse().unwrap();
    assert_eq!(received + missed, 6000);
    assert!(received > 0);
    // Awake again it goes on, with the newest.
    stopped.go_on();
    assert_ne!(stopped.says(), "0");
    producer.tell("bye");
    assert!(producer.end());
}

#[test]
fn a_stopped_consumers_frames_stay_whole() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut consumer = Child::start("hold", &place.pool());
    assert_eq!(consumer.says(), "joined");
    let mut seed = 0;
    eventually("it holds its budget", || {
        publish(&producer, seed, SIZE);
        seed += 1;
        producer.stats().consumers[0].held == 4
    });
    publish(&producer, seed, SIZE);
    assert_eq!(consumer.says(), "4");
    consumer.stop();
    let slots = producer.stats().slots;
    for seed in 1000..3000 {
        publish(&producer, seed, SIZE);
    }
    assert_eq!(producer.stats().consumers[0].held, 4);
    assert!(producer.stats().slots <= slots.max(16));
    consumer.go_on();
    consumer.tell("check");
    assert_eq!(consumer.says(), "whole");
    assert_eq!(consumer.says(), "received");
    consumer.tell("bye");
    assert!(consumer.end());
}

#[test]
fn frames_outlive_a_killed_producer_and_a_new_one_goes_on() {
    for role in ["produce", "produce-posix-shm"] {
        let place = Place::new();
        let pool = place.pool();
        // Nobody there yet: the consumer waits.
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || Consumer::builder(&pool).connect_wait(Some(HANG)).unwrap()
        });
        let mut producer = Child::start(role, &pool);
        assert_eq!(producer.says(), "ready");
        let mut consumer = waiting.join().unwrap();
        let mut held = Vec::new();
        for round in 0..4 {
            let frames = [receive(&mut consumer), receive(&mut consumer)];
            let pid = frames[0].meta().pts.unwrap() >> 32;
            assert_eq!(pid, u64::from(producer.pid()));
            assert_eq!(consumer.producer_pid(), producer.pid());
            held.extend(frames);
            // Which kill it is to be: in the middle of frames, or while the consumer sleeps for one.
            if round % 2 == 0 {
                producer.kill();
            } else {
                producer.stop();
            }
            let lost = loop {
                match consumer.receive(Some(Duration::from_millis(100))) {
                    Ok(frame) => assert_whole(&frame),
                    // Asleep now, most likely, or about to be.
                    Err(ReceiveError::Timeout) => producer.kill(),
                    Err(error) => break error,
                }
            };
            assert!(matches!(lost, ReceiveError::ProducerLost), "{lost}");
            held.iter().for_each(assert_whole);
            // What was left, socket, lock and segments, stops nobody.
            assert!(std::fs::symlink_metadata(&pool).is_ok());
            assert!(matches!(
                Consumer::builder(&pool).connect(),
                Err(ConnectError::NotFound { .. })
            ));
            producer = Child::start(role, &pool);
            consumer = Consumer::builder(&pool).connect_wait(Some(HANG)).unwrap();
            assert_eq!(producer.says(), "ready");
        }
        for _ in 0..100 {
            assert_whole(&receive(&mut consumer));
        }
        held.iter().for_each(assert_whole);
        assert_eq!(held.len(), 8);
        drop((held, consumer));
        producer.kill();
        // The next one clears away what a killed one left, and leaves nothing itself.
        drop(
            Producer::builder(&pool)
                .backing(Backing::PosixShm)
                .build()
                .unwrap(),
        );
        place.assert_clean();
    }
}

#[test]
fn a_second_producer_is_told_who_has_the_pool() {
    let place = Place::new();
    let mut first = Child::start("produce", &place.pool());
    assert_eq!(first.says(), "ready");
    for _ in 0..3 {
        let error = Producer::builder(&place.pool()).build().unwrap_err();
        let CreateError::InUse { pool, holder } = &error else {
            panic!("{error}");
        };
        assert_eq!(*pool, place.pool());
        assert!(holder.contains(&first.pid().to_string()), "{holder}");
        assert!(error.to_string().contains(holder));
    }
    // The first one did not notice.
    let mut consumer = Consumer::builder(&place.pool()).connect().unwrap();
    assert_whole(&receive(&mut consumer));
    // Also when it is stopped, it has the pool.
    first.stop();
    assert!(matches!(
        Producer::builder(&place.pool()).build(),
        Err(CreateError::InUse { .. })
    ));
    first.kill();
    Producer::builder(&place.pool()).build().unwrap();
}

#[test]
fn consumers_killed_at_any_moment_tear_nothing() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut checker = Consumer::builder(&place.pool()).connect().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                publish(&producer, seed, SIZE);
            }
            producer.set_eos(true);
        });
        let checking = scope.spawn(|| {
            loop {
                match checker.receive(Some(HANG)) {
                    Ok(frame) => assert_whole(&frame),
                    Err(ReceiveError::Eos) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            (checker.stats().received, checker.stats().missed)
        });
        let mut random = Random(1);
        for _ in 0..50 {
            let mut victim = Child::start("churn", &place.pool());
            assert_eq!(victim.says(), "joined");
            std::thread::sleep(Duration::from_micros(random.below(15_000)));
            victim.kill();
        }
        done.store(true, Ordering::Relaxed);
        let (received, missed) = checking.join().unwrap();
        assert_eq!(received + missed, producer.stats().published);
        assert!(received > 50);
    });
    eventually("all are gone", || producer.stats().consumers.len() == 1);
    let stats = producer.stats();
    assert_eq!(
        (stats.slots_held, stats.cut_off, stats.dropped),
        (2, 0, 0),
        "{stats:?}"
    );
    assert!(stats.slots < 40, "{stats:?}");
}

#[test]
fn lossless_loses_nothing_between_processes() {
    const FRAMES: u64 = 2000;
    let place = Place::new();
    let producer = Producer::builder(&place.pool())
        .delivery(Delivery::Lossless)
        .build()
        .unwrap();
    let mut consumers = [(); 2].map(|()| {
        let mut consumer = Child::start("slow-lossless", &place.pool());
        assert_eq!(consumer.says(), "joined");
        consumer
    });
    let cancel = Canceller::new();
    for seed in 0..FRAMES {
        producer.wait_for_room(&cancel).unwrap();
        let mut slot = producer.acquire_wait(5000, Some(HANG), &cancel).unwrap();
        fill(seed, &mut slot.as_mut_slice()[..5000]);
        slot.publish(seeded(seed, 5000)).unwrap();
        // One of two dies; the other one is not disturbed.
        if seed == FRAMES / 2 {
            consumers[0].kill();
        }
    }
    producer.set_eos(true);
    let [_, mut consumer] = consumers;
    assert_eq!(consumer.says(), FRAMES.to_string());
    producer.drain(Some(HANG), &cancel).unwrap();
    assert!(consumer.end());
    assert_eq!(producer.stats().dropped, 0);
}

/// The memory of one large frame among many small ones is made once, or each time, as the pool is told.
#[test]
fn frames_of_mixed_sizes_keep_their_regions() {
    for (mixed, regions) in [(true, 2), (false, 1)] {
        let place = Place::new();
        let producer = Producer::builder(&place.pool())
            .without_history()
            .mixed_sizes(mixed)
            .build()
            .unwrap();
        for seed in 0..380 {
            let size = if seed % 100 == 0 { 2_000_000 } else { 300_000 };
            publish(&producer, seed, size);
        }
        // Regions are looked at every 64 frames; the last large one was 300.
        assert_eq!(producer.stats().regions, regions, "mixed sizes: {mixed}");
    }
}

#[test]
fn a_lossless_producer_gives_up_on_who_takes_nothing() {
    gives_up_on_who_takes_nothing(None);
}

/// So does one that looks for something else every now and then.
#[test]
fn a_lossless_producer_that_waits_in_short_turns_gives_up_too() {
    gives_up_on_who_takes_nothing(Some(Duration::from_millis(20)));
}

fn gives_up_on_who_takes_nothing(turn: Option<Duration>) {
    let place = Place::new();
    let producer = Producer::builder(&place.pool())
        .delivery(Delivery::Lossless)
        .history(1)
        .max_slots(12)
        .lossless_timeout(Some(Duration::from_millis(150)))
        .build()
        .unwrap();
    let mut stopped = Child::start("hold", &place.pool());
    assert_eq!(stopped.says(), "joined");
    let cancel = Canceller::new();
    let mut seed = 0;
    let mut publish_one = || {
        let start = Instant::now();
        while let Err(error) = producer.wait_for_room_timeout(turn, &cancel) {
            assert_eq!(error, WaitError::Timeout);
            assert!(start.elapsed() < HANG, "never given up on");
        }
        let mut slot = producer.acquire_wait(SIZE, Some(HANG), &cancel).unwrap();
        fill(seed, &mut slot.as_mut_slice()[..SIZE]);
        slot.publish(seeded(seed, SIZE)).unwrap();
        seed += 1;
    };
    for _ in 0..5 {
        publish_one();
    }
    assert_eq!(stopped.says(), "4");
    stopped.stop();
    let start = Instant::now();
    for _ in 0..200 {
        publish_one();
    }
    assert!(
        start.elapsed() >= Duration::from_millis(150),
        "not given up on too early"
    );
    let stats = producer.stats();
    assert_eq!(stats.timed_out, 1);
    assert_eq!(stats.consumers[0].held, 4, "what it holds stays its own");
    stopped.go_on();
    stopped.tell("check");
    assert_eq!(stopped.says(), "whole");
    assert_eq!(stopped.says(), "TimedOut");
    stopped.tell("bye");
    assert!(stopped.end());
    eventually("it is gone", || producer.stats().consumers.is_empty());
    assert_eq!(producer.stats().slots_held, 1);
}

#[test]
fn a_closing_producer_wakes_sleepers_in_other_processes() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).build().unwrap();
    let mut sleepers = [(); 3].map(|()| {
        let mut sleeper = Child::start("sleep", &place.pool());
        assert_eq!(sleeper.says(), "joined");
        sleeper
    });
    std::thread::sleep(Duration::from_millis(30));
    drop(producer);
    for sleeper in &mut sleepers {
        assert_eq!(sleeper.says(), "ProducerLost");
    }
}

#[test]
fn a_fork_of_a_consumer_releases_nothing() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).history(2).build().unwrap();
    for seed in 0..2 {
        publish(&producer, seed, SIZE);
    }
    let mut consumer = Child::start("fork-consumer", &place.pool());
    assert_eq!(consumer.says(), "0", "exit of the first forked child");
    assert_eq!(consumer.says(), "0", "exit of the second forked child");
    eventually("only the parent is connected", || {
        producer.stats().consumers.len() == 1
    });
    for seed in 2..50 {
        publish(&producer, seed, SIZE);
    }
    let stats = producer.stats();
    assert_eq!((stats.consumers[0].held, stats.slots_held), (2, 4));
    consumer.tell("check");
    assert_eq!(consumer.says(), "whole");
    consumer.tell("bye");
    assert!(consumer.end());
}

#[test]
fn a_fork_of_a_producer_touches_nothing() {
    let place = Place::new();
    let mut producer = Child::start("fork-producer", &place.pool());
    assert_eq!(producer.says(), "ready");
    let mut consumer = Consumer::builder(&place.pool())
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    let first = receive(&mut consumer);
    assert_frame(&first, 0, SIZE);
    producer.tell("fork");
    assert_eq!(producer.says(), "0", "exit of the forked child");
    let error = consumer
        .receive(Some(Duration::from_millis(20)))
        .unwrap_err();
    assert!(matches!(error, ReceiveError::Timeout), "{error}");
    producer.tell("go on");
    // The slots of the history, of `own` and of nobody else.
    assert_eq!(producer.says(), "3");
    let frame = receive(&mut consumer);
    assert_whole(&frame);
    assert_frame(&first, 0, SIZE);
    // The socket is still there.
    Consumer::builder(&place.pool()).connect().unwrap();
    producer.tell("bye");
    assert!(producer.end());
    place.assert_clean();
}

#[test]
fn a_killed_consumer_is_noticed_though_its_fork_lives() {
    let place = Place::new();
    let producer = Producer::builder(&place.pool()).history(1).build().unwrap();
    publish(&producer, 0, SIZE);
    let mut consumer = Child::start("fork-and-hold", &place.pool());
    let fork: i32 = consumer.says().parse().unwrap();
    publish(&producer, 1, SIZE);
    assert_eq!(producer.stats().slots_held, 2);
    consumer.kill();
    eventually("its slot is back", || {
        let stats = producer.stats();
        stats.consumers.is_empty() && stats.slots_held == 1
    });
    // The fork lived all the time; it ends with its standard input.
    assert!(std::path::Path::new(&format!("/proc/{fork}")).exists());
}
