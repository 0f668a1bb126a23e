// SPDX-License-Identifier: MPL-2.0

//! A follower continues with producers that end, are lost, return, or continue without it.

use std::time::{Duration, Instant};

use crate::support::{HANG, Place, assert_frame, eventually, publish, publish_wait};
use xmem_core::follow::{FollowError, Follower, OnEos, OnLost, OverBudget, Step, Taken};
use xmem_core::{
    BudgetLimit, Canceller, ConnectError, Consumer, Delivery, FrameMeta, Producer, ReadLease,
    ReceiveError, StartFrom,
};

const SIZE: usize = 100;

fn follow(place: &Place) -> Follower {
    Consumer::builder(place.pool()).follow()
}

fn producer(place: &Place) -> Producer {
    Producer::builder(place.pool()).build().unwrap()
}

fn step(follower: &mut Follower) -> Step<Option<ReadLease>> {
    follower.step(Some(HANG), |taken| taken.kept()).unwrap()
}

fn fails(follower: &mut Follower) -> FollowError {
    follower
        .step(Some(HANG), |taken| taken.kept())
        .expect_err("it goes on")
}

#[track_caller]
fn join(follower: &mut Follower, again: bool) {
    let joined = step(follower);
    assert!(
        matches!(joined, Step::Joined { again: it } if it == again),
        "{joined:?}"
    );
}

#[track_caller]
fn take(follower: &mut Follower, seed: u64) -> ReadLease {
    match step(follower) {
        Step::Took(Some(lease)) => {
            assert_frame(&lease, seed, SIZE);
            lease
        }
        other => panic!("no frame {seed}: {other:?}"),
    }
}

#[track_caller]
fn has_nothing(follower: &mut Follower) {
    let nothing = follower.step(Some(Duration::ZERO), |_| ());
    assert!(matches!(nothing, Ok(Step::Nothing)), "{nothing:?}");
}

#[test]
fn a_follower_waits_for_a_producer() {
    let place = Place::new();
    let mut follower = follow(&place);
    for least in [0, 20] {
        let none = follower.step(Some(Duration::from_millis(20)), |_| ());
        let Ok(Step::NoProducer { error, waited }) = none else {
            panic!("{none:?}");
        };
        assert!(matches!(error, ConnectError::NotFound { .. }), "{error}");
        assert!(waited >= Duration::from_millis(least), "{waited:?}");
    }
    assert!(follower.consumer().is_none());
    let producer = producer(&place);
    publish(&producer, 1, SIZE);
    join(&mut follower, false);
    drop(take(&mut follower, 1));
    has_nothing(&mut follower);
    assert_eq!(follower.handle().stats().reconnects, 0);
}

#[test]
fn a_follower_waits_at_most_its_timeout() {
    let place = Place::new();
    let time = Duration::from_millis(50);
    let mut follower = follow(&place).connect_timeout(Some(time));
    for had_one in [false, true] {
        if had_one {
            let producer = producer(&place);
            join(&mut follower, false);
            drop(producer);
            assert!(matches!(step(&mut follower), Step::Lost(_)));
        }
        let start = Instant::now();
        let error = fails(&mut follower);
        let is_it = matches!(
            &error,
            FollowError::NoProducer(ConnectError::NotFound { .. })
        );
        assert!(is_it, "{error}");
        assert!(start.elapsed() >= time / 2);
        // The result does not change.
        assert!(matches!(fails(&mut follower), FollowError::NoProducer(_)));
    }
}

#[test]
fn a_bad_pool_name_is_an_error_at_once() {
    let mut follower = Consumer::builder("").follow();
    assert!(matches!(
        fails(&mut follower),
        FollowError::Connect(ConnectError::Name(_))
    ));
}

#[test]
fn a_wait_can_be_cancelled() {
    let place = Place::new();
    let canceller = Canceller::new();
    let builder = Consumer::builder(place.pool()).canceller(&canceller);
    let mut follower = builder.follow();
    canceller.cancel();
    assert!(matches!(fails(&mut follower), FollowError::Cancelled));
    let _producer = producer(&place);
    canceller.reset();
    join(&mut follower, false);
    canceller.cancel();
    assert!(matches!(fails(&mut follower), FollowError::Cancelled));
    assert!(matches!(follower.next(), Some(Err(FollowError::Cancelled))));
}

#[test]
fn a_follower_continues_with_the_next_producer() {
    let place = Place::new();
    let mut follower = follow(&place);
    let first = producer(&place);
    join(&mut follower, false);
    publish(&first, 1, SIZE);
    let held = take(&mut follower, 1);
    publish(&first, 2, SIZE);
    drop(first);
    // The frames of the lost producer are taken first.
    drop(take(&mut follower, 2));
    let Step::Lost(lost) = step(&mut follower) else {
        panic!("it is not lost");
    };
    assert!(matches!(lost.error, ReceiveError::ProducerLost));
    assert_eq!((lost.pool, lost.last), (place.pool(), Some(1)));
    assert_eq!(lost.producer_pid, std::process::id());
    assert!(follower.consumer().is_none() && follower.handle().consumer().is_none());

    let second = producer(&place);
    // From its beginning.
    publish(&second, 3, SIZE);
    join(&mut follower, true);
    drop(take(&mut follower, 3));
    assert_frame(&held, 1, SIZE);
    follower.note_copied();
    follower.note_dropped();
    let handle = follower.handle();
    let stats = handle.stats();
    assert_eq!((stats.receive.received, stats.receive.held), (3, 1));
    assert_eq!((stats.reconnects, stats.copied, stats.dropped), (1, 1, 1));
    assert_eq!(second.stats().consumers[0].dropped, 1);
    drop(held);
    // The statistics outlive the follower.
    drop(follower);
    let stats = handle.stats();
    assert_eq!((stats.receive.received, stats.receive.held), (3, 0));
    assert!(handle.consumer().is_none() && stats.receive.budget > 0);
}

#[test]
fn a_follower_that_left_starts_again() {
    let place = Place::new();
    let builder = Consumer::builder(place.pool()).start_from(StartFrom::Newest);
    let mut follower = builder.follow();
    let producer = producer(&place);
    publish(&producer, 1, SIZE);
    for seed in [1, 3] {
        join(&mut follower, false);
        drop(take(&mut follower, seed));
        drop(follower.leave());
        assert!(follower.leave().is_none());
        publish(&producer, seed + 1, SIZE);
        publish(&producer, seed + 2, SIZE);
    }
    assert_eq!(follower.handle().stats().receive.received, 2);
}

#[test]
fn the_end_of_a_stream_ends_a_follower() {
    let place = Place::new();
    let mut follower = follow(&place);
    let producer = producer(&place);
    join(&mut follower, false);
    publish(&producer, 1, SIZE);
    producer.set_eos(true);
    let frames: Result<Vec<_>, _> = follower.by_ref().collect();
    assert_eq!(frames.unwrap().len(), 1);
    assert!(matches!(fails(&mut follower), FollowError::End));
}

#[test]
fn the_end_of_a_stream_can_be_passed() {
    let place = Place::new();
    let mut follower = follow(&place).on_eos(OnEos::Wait);
    let first = producer(&place);
    join(&mut follower, false);
    first.set_eos(true);
    assert!(matches!(step(&mut follower), Step::Eos));
    has_nothing(&mut follower);
    first.set_eos(false);
    publish(&first, 1, SIZE);
    drop(take(&mut follower, 1));
    first.set_eos(true);
    assert!(matches!(step(&mut follower), Step::Eos));
    drop(first);
    assert!(matches!(step(&mut follower), Step::Lost(_)));
    let second = producer(&place);
    publish(&second, 2, SIZE);
    // The iterator continues over all of these.
    assert_frame(&follower.next().unwrap().unwrap(), 2, SIZE);
}

#[test]
fn a_lost_producer_can_be_the_end_or_an_error() {
    let place = Place::new();
    let mut ends = follow(&place).on_lost(OnLost::End);
    let mut fails_then = follow(&place).on_lost(OnLost::Fail);
    let first = producer(&place);
    join(&mut ends, false);
    join(&mut fails_then, false);
    drop(first);
    let _second = producer(&place);
    for _ in 0..2 {
        assert!(matches!(fails(&mut ends), FollowError::End));
        let FollowError::Lost(lost) = fails(&mut fails_then) else {
            panic!("it is not lost");
        };
        assert!(matches!(lost.error, ReceiveError::ProducerLost));
        assert_eq!(lost.last, None);
    }
    assert!(ends.next().is_none());
}

#[test]
fn a_lossless_producer_that_gives_up_on_a_follower() {
    let place = Place::new();
    let lossless = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .lossless_timeout(Some(Duration::from_millis(50)))
        .history(4);
    let producer = lossless.build().unwrap();
    let mut waits = follow(&place);
    // For this follower the stream has not ended.
    let mut ends = follow(&place).on_lost(OnLost::End);
    join(&mut waits, false);
    join(&mut ends, false);
    publish(&producer, 0, SIZE);
    drop(take(&mut waits, 0));
    for seed in 1..60 {
        publish_wait(&producer, seed, SIZE);
    }
    let lost = loop {
        match step(&mut waits) {
            Step::Took(Some(_)) => {}
            Step::Lost(lost) => break lost,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(lost.error, ReceiveError::TimedOut));
    producer.set_eos(true);
    let last = waits.by_ref().map(|it| it.unwrap().meta().pts).last();
    assert_eq!(last, Some(Some(59)));
    // Each frame was taken or missed, over both connections.
    let stats = waits.handle().stats();
    assert_eq!(stats.receive.received + stats.receive.missed, 60);
    assert!(stats.receive.missed > 0 && stats.reconnects == 1);
    let error = ends.by_ref().find_map(Result::err);
    assert!(
        matches!(&error, Some(FollowError::Lost(lost)) if matches!(lost.error, ReceiveError::TimedOut)),
        "{error:?}"
    );
}

/// A follower with a budget of 1 that holds the first of three frames. An event follows.
fn over_budget(place: &Place, what: OverBudget) -> (Producer, Follower, ReadLease) {
    let builder = Consumer::builder(place.pool()).max_held(1);
    let mut follower = builder.events(true).follow().over_budget(what);
    let producer = producer(place);
    join(&mut follower, false);
    for seed in 0..3 {
        publish(&producer, seed, SIZE);
    }
    producer.publish_event(FrameMeta::default()).unwrap();
    let first = take(&mut follower, 0);
    (producer, follower, first)
}

#[test]
fn past_the_budget_frames_are_lent() {
    let place = Place::new();
    let (_producer, mut follower, first) = over_budget(&place, OverBudget::Copy);
    let copy = |follower: &mut Follower| {
        let step = follower.step(Some(HANG), |taken| match taken {
            Taken::Kept(lease) => panic!("{lease:?} can be kept"),
            Taken::Lent(lease) => (lease.meta().event, lease.meta().pts),
        });
        match step.unwrap() {
            Step::Took(taken) => taken,
            other => panic!("{other:?}"),
        }
    };
    // It did not request more, so there is no hint.
    assert_eq!(copy(&mut follower), (false, Some(1)));
    drop(first);
    let second = take(&mut follower, 2);
    assert_eq!(copy(&mut follower), (true, None));
    drop(second);
    assert_eq!(follower.handle().stats().dropped, 0);
}

#[test]
fn past_the_budget_frames_are_dropped() {
    let place = Place::new();
    let (producer, mut follower, first) = over_budget(&place, OverBudget::Drop);
    for seed in 1..3 {
        match step(&mut follower) {
            Step::Dropped(_, meta) => assert_eq!(meta.pts, Some(seed)),
            other => panic!("{other:?}"),
        }
    }
    // Events do not count as frames.
    assert!(matches!(step(&mut follower), Step::Took(None)));
    assert_eq!(follower.handle().stats().dropped, 2);
    assert_eq!(producer.stats().consumers[0].dropped, 2);
    drop(first);
}

#[test]
fn an_iterator_does_not_count_events_as_dropped_frames() {
    for what in [OverBudget::Drop, OverBudget::Copy] {
        let place = Place::new();
        let (producer, mut follower, first) = over_budget(&place, what);
        producer.set_eos(true);
        assert!(follower.next().is_none());
        assert_eq!(follower.handle().stats().dropped, 2);
        assert_eq!(producer.stats().consumers[0].dropped, 2);
        drop(first);
    }
}

#[test]
fn past_the_budget_is_an_error() {
    let place = Place::new();
    let (_producer, mut follower, first) = over_budget(&place, OverBudget::Fail);
    for _ in 0..2 {
        let error = fails(&mut follower);
        let is_it = matches!(
            error,
            FollowError::Receive(ReceiveError::OverBudget { budget: 1 })
        );
        assert!(is_it, "{error}");
    }
    drop(first);
    drop(take(&mut follower, 1));
}

#[test]
fn a_small_budget_is_reported_once() {
    let place = Place::new();
    let small = Producer::builder(place.pool()).max_held(1);
    let producer = small.build().unwrap();
    let mut follower = follow(&place).over_budget(OverBudget::Drop);
    join(&mut follower, false);
    for seed in 0..3 {
        publish(&producer, seed, SIZE);
    }
    let first = take(&mut follower, 0);
    assert!(matches!(step(&mut follower), Step::SmallBudget));
    let limit = follower.consumer().unwrap().budget_limit();
    assert_eq!(limit, BudgetLimit::MaxHeld);
    for _ in 1..3 {
        assert!(matches!(step(&mut follower), Step::Dropped(_, _)));
    }
    drop(first);
}

#[test]
fn frames_that_are_held_until_a_newer_one_comes_are_reported_once() {
    let place = Place::new();
    let (producer, mut follower, first) = over_budget(&place, OverBudget::Drop);
    let mut reports = 0;
    let mut next = || {
        publish(&producer, 3, SIZE);
        reports += u32::from(matches!(step(&mut follower), Step::AllHeld));
        reports
    };
    eventually("it is reported", || next() == 1);
    for _ in 0..10 {
        assert_eq!(next(), 1);
    }
    drop(first);
    drop(take(&mut follower, 3));
}

/// Connects enough consumers that none has a budget.
fn without_budget(place: &Place, max_slots: u32) -> (Producer, Vec<Consumer>) {
    let few = Producer::builder(place.pool()).max_slots(max_slots);
    let producer = few.build().unwrap();
    let consumers = (0..8).map(|_| Consumer::builder(place.pool()).connect().unwrap());
    let consumers = consumers.collect();
    (producer, consumers)
}

#[test]
fn with_no_budget_each_frame_is_lent() {
    let place = Place::new();
    let (producer, _others) = without_budget(&place, 8);
    let mut follower = follow(&place).over_budget(OverBudget::Copy);
    join(&mut follower, false);
    assert_eq!(follower.consumer().unwrap().budget(), 0);
    publish(&producer, 0, SIZE);
    assert!(matches!(step(&mut follower), Step::SmallBudget));
    for seed in 0..20 {
        if seed > 0 {
            publish(&producer, seed, SIZE);
        }
        let lent = follower.step(Some(HANG), |taken| match taken {
            Taken::Kept(_) => None,
            Taken::Lent(lease) => lease.meta().pts,
        });
        assert!(matches!(lent, Ok(Step::Took(Some(it))) if it == seed));
    }
    assert_eq!(follower.handle().stats().receive.held, 0);
}

#[test]
fn with_no_budget_one_frame_at_a_time_can_be_kept() {
    let place = Place::new();
    let (producer, _others) = without_budget(&place, 8);
    let mut follower = follow(&place);
    join(&mut follower, false);
    assert!(matches!(step(&mut follower), Step::SmallBudget));
    for seed in 0..20 {
        publish(&producer, seed, SIZE);
        drop(take(&mut follower, seed));
    }
    publish(&producer, 20, SIZE);
    let kept = take(&mut follower, 20);
    publish(&producer, 21, SIZE);
    assert!(matches!(
        fails(&mut follower),
        FollowError::Receive(ReceiveError::OverBudget { budget: 0 })
    ));
    drop(kept);
}

#[test]
fn with_no_budget_frames_are_dropped_while_one_is_kept() {
    let place = Place::new();
    let (producer, _others) = without_budget(&place, 16);
    let mut follower = Consumer::builder(place.pool())
        .events(true)
        .follow()
        .over_budget(OverBudget::Drop);
    join(&mut follower, false);
    assert_eq!(follower.consumer().unwrap().budget(), 0);
    assert!(matches!(step(&mut follower), Step::SmallBudget));
    publish(&producer, 0, SIZE);
    let kept = take(&mut follower, 0);
    publish(&producer, 1, SIZE);
    producer.publish_event(FrameMeta::default()).unwrap();
    for (pts, event) in [(Some(1), false), (None, true)] {
        match step(&mut follower) {
            Step::Dropped(_, meta) => assert_eq!((meta.pts, meta.event), (pts, event)),
            other => panic!("{other:?}"),
        }
    }
    drop(kept);
    publish(&producer, 2, SIZE);
    drop(take(&mut follower, 2));
    // The event is no frame.
    let stats = follower.handle().stats();
    assert_eq!((stats.receive.received, stats.dropped), (3, 1));
    assert_eq!(stats.receive.missed, 0);
}

#[test]
fn a_frame_past_the_budget_is_within_a_larger_one() {
    let place = Place::new();
    let (producer, others) = without_budget(&place, 16);
    let small = Consumer::builder(place.pool()).max_held(1);
    let mut consumer = small.connect().unwrap();
    assert_eq!(consumer.budget(), 0);
    publish(&producer, 0, SIZE);
    let kept = consumer.receive(Some(HANG)).unwrap();
    drop(others);
    crate::support::eventually("a larger budget", || consumer.budget() == 1);
    publish(&producer, 1, SIZE);
    let lent = consumer.receive_with(Some(HANG), |lease| lease.meta().pts);
    assert_eq!(lent.unwrap(), Some(1));
    drop(kept);
}

#[test]
fn another_thread_can_connect_for_a_follower() {
    let place = Place::new();
    let mut follower = follow(&place).connect_timeout(Some(Duration::from_millis(20)));
    let look = follower.next_join().clone();
    let found = std::thread::spawn(move || look.connect());
    let none = follower.found::<()>(found.join().unwrap());
    assert!(matches!(none, Ok(Step::NoProducer { .. })), "{none:?}");
    std::thread::sleep(Duration::from_millis(20));
    let none = follower.found::<()>(follower.next_join().connect());
    assert!(matches!(none, Err(FollowError::NoProducer(_))), "{none:?}");
    let _producer = producer(&place);
    let found = follower.found::<()>(follower.next_join().connect());
    assert!(matches!(found, Ok(Step::Joined { again: false })));
}
