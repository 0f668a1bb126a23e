// SPDX-License-Identifier: MPL-2.0

//! Release hooks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use xmem_core::{Backing, Delivery, FrameMeta, ReceiveError};

use super::*;

crate::conformance! {
    frames_with_hooks_can_be_taken_after_the_end
    a_release_hook_runs_once_after_the_last_reference
    a_frame_without_a_lease_is_released_by_the_history
    a_release_hook_runs_when_an_idle_pool_is_closed
    a_release_hook_of_an_unpublished_frame_never_runs
    frames_are_kept_until_enough_consumers_took_them
}

/// A hook that counts its calls.
fn count(runs: &Arc<AtomicU32>) -> impl FnOnce() + Send + use<> {
    let runs = runs.clone();
    move || {
        runs.fetch_add(1, Ordering::SeqCst);
    }
}

fn frames_with_hooks_can_be_taken_after_the_end(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).delivery(Delivery::Lossless));
    let mut consumer = connect(&place);
    publish(&producer, 0, 64);
    assert_frame(&receive(&mut consumer), 0, 64);
    let ran = Arc::new(AtomicBool::new(false));
    for seed in 1..4 {
        let mut slot = filled(&producer, seed, 64);
        let ran = ran.clone();
        slot.set_release_hook(move || ran.store(true, Ordering::Relaxed));
        slot.publish(seeded(seed, 64)).unwrap();
    }
    drop(producer);
    assert!(
        ran.load(Ordering::Relaxed),
        "hooks run when the pool is closed"
    );
    for seed in 1..4 {
        assert_frame(&receive(&mut consumer), seed, 64);
    }
    assert!(matches!(
        consumer.receive(None),
        Err(ReceiveError::ProducerLost)
    ));
}

fn a_release_hook_runs_once_after_the_last_reference(backing: Backing) {
    // The orders of releases: the producer's own reference, the history, the two consumers.
    for order in [
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [1, 2, 3, 0],
        [2, 0, 3, 1],
        [1, 0, 2, 3],
    ] {
        let place = Place::new();
        let producer = pool(&place, backing).history(1).build().unwrap();
        let mut consumers = [connect(&place), connect(&place)];
        let runs = Arc::new(AtomicU32::new(0));
        let mut slot = filled(&producer, 1, 50);
        slot.set_release_hook(count(&runs));
        let mut own = Some(slot.publish(seeded(1, 50)).unwrap());
        let mut held = consumers.each_mut().map(|consumer| Some(receive(consumer)));
        for (step, who) in (1..).zip(order) {
            assert_eq!(runs.load(Ordering::SeqCst), 0, "{order:?}");
            match who {
                0 => own = None,
                1 => drop(publish(&producer, 2, 50)),
                n => held[n - 2] = None,
            }
            if step < 4 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Also without other activity in the pool.
        eventually("the hook ran", || runs.load(Ordering::SeqCst) > 0);
        drop((own, held));
        for seed in 3..20 {
            publish(&producer, seed, 50);
        }
        producer.collect();
        drop((producer, consumers));
        assert_eq!(runs.load(Ordering::SeqCst), 1, "{order:?}");
    }
}

fn a_frame_without_a_lease_is_released_by_the_history(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut consumer = connect(&place);
    let runs = Arc::new(AtomicU32::new(0));
    let mut slot = filled(&producer, 1, 50);
    slot.set_release_hook(count(&runs));
    let refused = slot.publish_unheld(&FrameMeta::new(usize::MAX));
    let slot = refused.unwrap_err().lease;
    assert_eq!(slot.publish_unheld(&seeded(1, 50)).unwrap(), 0);
    assert_frame(&receive(&mut consumer), 1, 50);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    publish(&producer, 2, 50);
    eventually("the hook ran", || runs.load(Ordering::SeqCst) > 0);
    drop((producer, consumer));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

fn a_release_hook_runs_when_an_idle_pool_is_closed(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    let runs = Arc::new(AtomicU32::new(0));
    let mut slot = filled(&producer, 1, 50);
    slot.set_release_hook(count(&runs));
    slot.publish(seeded(1, 50)).unwrap();
    let frame = receive(&mut consumer);
    drop(producer);
    assert_frame(&frame, 1, 50);
    drop((frame, consumer));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

fn a_release_hook_of_an_unpublished_frame_never_runs(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let token = Arc::new(());
    let mut slot = producer.acquire(50).unwrap();
    let kept = token.clone();
    slot.set_release_hook(move || panic!("{kept:?}"));
    drop(slot);
    assert_eq!(Arc::strong_count(&token), 1, "the hook is dropped");
    publish(&producer, 0, 50);
}

fn frames_are_kept_until_enough_consumers_took_them(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(1).build().unwrap();
    let mut first = connect(&place);
    let mut second = connect(&place);
    let runs = Arc::new(AtomicU32::new(0));
    // Keeps the frame of a seed until `consumers` consumers took it. Returns the slot.
    let keep = |seed, consumers| {
        let mut slot = filled(&producer, seed, 80);
        slot.keep_until(consumers);
        slot.set_release_hook(count(&runs));
        slot.publish(seeded(seed, 80)).unwrap().info().slot
    };
    let publish_others = |not_into| {
        for seed in 1000..1050 {
            assert_ne!(publish(&producer, seed, 80).info().slot, not_into);
        }
    };

    // Two consumers take it, and release it one after the other.
    let kept = keep(5, 2);
    let one = receive(&mut first);
    publish_others(kept);
    drop(one);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 0, "one of two took it");
    // The second consumer missed that frame, which has left the history, but gets the next one.
    let kept = keep(6, 2);
    let frames = [&mut first, &mut second].map(|consumer| {
        let frame = receive(consumer);
        assert_frame(&frame, 6, 80);
        frame
    });
    publish_others(kept);
    let [one, two] = frames;
    drop(two);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    drop(one);
    eventually("both released it", || runs.load(Ordering::SeqCst) == 1);

    // A consumer that took the frame and leaves counts as having released it.
    let kept = keep(7, 2);
    let frames = [&mut first, &mut second].map(receive);
    publish_others(kept);
    drop((frames, second));
    eventually("both released it", || runs.load(Ordering::SeqCst) == 2);
    let kept = keep(8, 2);
    drop(receive(&mut first));
    drop(first);
    eventually("it left", || producer.stats().consumers.is_empty());
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 2, "one of two took it");
    let mut third = connect(&place);
    publish(&producer, 9, 80);
    assert_frame(&receive(&mut third), 9, 80);
    publish_others(kept);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    drop(producer);
    assert_eq!(
        runs.load(Ordering::SeqCst),
        4,
        "at the latest with the pool"
    );
}
