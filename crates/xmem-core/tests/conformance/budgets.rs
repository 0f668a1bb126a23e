// SPDX-License-Identifier: MPL-2.0

//! Consumers hold frames up to their budget, for any time.

use xmem_core::{Backing, BudgetLimit, Consumer, ReceiveError, UpstreamNeedError};

use super::*;

crate::conformance! {
    a_consumer_holds_its_budget_and_no_more
    clones_of_a_frame_are_one_lease
    slots_are_divided_among_consumers
    a_consumer_that_left_takes_no_more_than_it_holds
    frames_outlive_consumer_and_producer
    a_consumer_that_left_releases_with_its_last_frame
}

fn a_consumer_holds_its_budget_and_no_more(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(8).max_held(3));
    let mut consumer = connect_with(&place, 100);
    assert_eq!(consumer.budget(), 3);
    for seed in 0..6 {
        publish(&producer, seed, 700);
    }
    let mut held: Vec<_> = (0..3).map(|_| receive(&mut consumer)).collect();
    for _ in 0..3 {
        let error = consumer.receive(Some(HANG)).unwrap_err();
        assert!(
            matches!(error, ReceiveError::OverBudget { budget: 3 }),
            "{error}"
        );
    }
    assert_eq!(
        (consumer.held(), producer.stats().consumers[0].held),
        (3, 3)
    );
    // Past the budget, a frame can be read to copy it.
    let copy = consumer
        .receive_with(Some(HANG), |frame| {
            assert_frame(frame, 3, 700);
            frame.bytes().unwrap().to_vec()
        })
        .unwrap();
    assert_eq!(difference(3, &copy), None);
    consumer.note_copied();
    assert_eq!(producer.stats().consumers[0].copied, 1);
    assert_eq!(producer.stats().consumers[0].dropped, 0);
    consumer.note_dropped();
    assert_eq!(producer.stats().consumers[0].dropped, 1);
    // After one release, one more frame can be held.
    held.remove(1);
    held.push(receive(&mut consumer));
    for (frame, seed) in held.iter().zip([0, 2, 4]) {
        assert_frame(frame, seed, 700);
    }
    // A clone that is kept after the function does not allow more than one frame past the budget.
    let kept = consumer
        .receive_with(Some(HANG), |frame| frame.clone())
        .unwrap();
    assert_frame(&kept, 5, 700);
    publish(&producer, 6, 700);
    assert!(matches!(
        consumer.receive_with(Some(HANG), |_| ()),
        Err(ReceiveError::OverBudget { .. })
    ));
    assert_eq!(producer.stats().cut_off, 0);
    drop((held, kept));
    assert_frame(&receive(&mut consumer), 6, 700);
    assert_eq!(producer.stats().consumers[0].held, 0);
}

fn clones_of_a_frame_are_one_lease(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 900);
    let frame = receive(&mut consumer);
    let clones: Vec<_> = (0..100).map(|_| frame.clone()).collect();
    assert_eq!(consumer.held(), 1);
    publish(&producer, 1, 900);
    drop(frame);
    // The last handle is dropped by another thread.
    let last = std::thread::spawn(move || {
        let mut clones = clones;
        let last = clones.pop().unwrap();
        drop(clones);
        last
    })
    .join()
    .unwrap();
    assert_eq!(producer.stats().slots_held, 2);
    assert_frame(&last, 0, 900);
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!((consumer.held(), producer.stats().slots_held), (0, 1));
}

fn slots_are_divided_among_consumers(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(2).max_slots(12).max_held(8));
    producer.set_upstream_need(1).unwrap();
    // 12 slots: 1 for upstream, 2 for the history, 2 for the producer. Of the remaining 7, each consumer has one for copies.
    let first = connect_with(&place, 4);
    assert_eq!(
        (first.budget(), first.budget_limit()),
        (4, BudgetLimit::Asked)
    );
    let mut second = connect_with(&place, 9);
    let budgets = |consumers: &[&Consumer]| -> Vec<_> {
        consumers
            .iter()
            .map(|consumer| (consumer.budget(), consumer.budget_limit()))
            .collect()
    };
    assert_eq!(budgets(&[&first, &second]), [(2, BudgetLimit::MaxSlots); 2]);
    assert_eq!(producer.stats().budget_limit, BudgetLimit::MaxSlots);
    let third = connect_with(&place, 1);
    let last = connect_with(&place, 8);
    assert_eq!(
        budgets(&[&first, &second, &third, &last]),
        [(0, BudgetLimit::MaxSlots); 4]
    );
    drop((first, third, last));
    eventually("the others' slots are shared out", || second.budget() == 6);
    producer.set_upstream_need(5).unwrap();
    assert_eq!(second.budget(), 2);
    producer.set_upstream_need(0).unwrap();
    assert_eq!(budgets(&[&second]), [(7, BudgetLimit::MaxSlots)]);
    let error = producer.set_upstream_need(9).unwrap_err();
    let text = error.to_string();
    assert!(matches!(
        error,
        UpstreamNeedError::TooMany { needed: 13, .. }
    ));
    assert_contains(&text, "9 slots");
    assert_contains(&text, "max-slots is 12");
    // With all budgets used up, each frame still gets a slot.
    publish(&producer, 0, 100);
    let held = receive(&mut second);
    for seed in 1..100 {
        publish(&producer, seed, 100);
    }
    assert_frame(&held, 0, 100);
}

fn a_consumer_that_left_takes_no_more_than_it_holds(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(2).max_slots(12));
    producer.set_upstream_need(1).unwrap();
    // 12 slots: 1 for upstream, 2 for the history, 2 for the producer. Of the remaining 7, one is for copies.
    let mut consumer = connect_with(&place, 100);
    assert_eq!(consumer.budget(), 6);
    let mut held = Vec::new();
    for seed in 0..3 {
        publish(&producer, seed, 100);
        held.push(receive(&mut consumer));
    }
    drop(consumer);
    let again = connect_with(&place, 100);
    assert_eq!(again.budget(), 3);
    held.remove(1);
    let other = connect_with(&place, 100);
    assert_eq!((again.budget(), other.budget()), (1, 1));
    drop(again);
    eventually("one has all that is left", || other.budget() == 4);
    // Each frame gets a slot, with any distribution of the slots.
    for seed in 3..100 {
        publish(&producer, seed, 100);
    }
    assert_frame(&held[0], 0, 100);
    assert_frame(&held[1], 2, 100);
    assert_eq!(producer.stats().cut_off, 0);
}

fn frames_outlive_consumer_and_producer(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let own = publish(&producer, 0, 100_000);
    let frame = receive(&mut consumer);
    let handle = consumer.handle();
    drop(consumer);
    for seed in 1..50 {
        publish(&producer, seed, 100_000);
    }
    assert_frame(&frame, 0, 100_000);
    assert_eq!(handle.stats().unwrap().held, 1);
    drop(producer);
    assert_frame(&frame, 0, 100_000);
    assert_frame(&own, 0, 100_000);
    assert_eq!(frame.pool(), place.pool());
    // A new producer with the same name has separate memory.
    let producer = pool(&place, backing).build().unwrap();
    for seed in 50..100 {
        publish(&producer, seed, 100_000);
    }
    assert_frame(&frame, 0, 100_000);
    assert_frame(&own, 0, 100_000);
    drop((own, frame));
    assert_eq!(handle.stats(), None);
}

fn a_consumer_that_left_releases_with_its_last_frame(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 100);
    publish(&producer, 1, 100);
    let frame = receive(&mut consumer);
    assert_frame(&frame, 1, 100);
    drop(consumer);
    eventually("it left", || producer.num_consumers() == 0);
    publish(&producer, 2, 100);
    let stats = producer.stats();
    assert_eq!(stats.slots_held, 2);
    assert!(stats.consumers[0].leaving && stats.consumers[0].held == 1);
    drop(frame);
    eventually("its connection closes with its last frame", || {
        producer.stats().consumers.is_empty()
    });
    assert_eq!(producer.stats().slots_held, 1);
}
