// SPDX-License-Identifier: MPL-2.0

//! Consumers that write invalid words to their lease pages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xmem_core::{Delivery, Departure, PoolEvent, Producer};

use crate::support::raw::{self, Memory, Raw};
use crate::support::*;
use crate::{Bystander, OnDrop, only_the_bystander_is_left};

/// Joins as a consumer that writes invalid words to its lease page at any time, while other consumers run.
fn with_a_hostile_consumer(
    delivery: Delivery,
    lie: impl Fn(&Memory, &Memory, u32, &mut Random) + Sync,
    mut meanwhile: impl FnMut(&mut Bystander<'_>),
) {
    let place = Place::new();
    let departures = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let producer = Producer::builder(place.pool())
        .delivery(delivery)
        .history(2)
        .max_slots(24)
        .on_event({
            let departures = departures.clone();
            move |event| {
                if let PoolEvent::Disconnected { reason, .. } = event {
                    departures.lock().unwrap().push(reason);
                }
            }
        })
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(30);
    let (raw, joined) = Raw::join(&place.pool(), 4);
    let control = Memory::map(&joined.control, false);
    let page = Memory::map(&joined.page, true);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(11);
            while !done.load(Ordering::Relaxed) {
                lie(&control, &page, joined.max_slots, &mut random);
            }
        });
        // Also if an assertion below fails.
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        eventually("it is disconnected", || {
            meanwhile(&mut bystander);
            producer.stats().cut_off == 1
        });
    });
    bystander.frames(300);
    only_the_bystander_is_left(&producer);
    assert_eq!(producer.stats().cut_off, 1);
    while raw.recv().is_some() {}
    eventually("it gets the error", || {
        departures.lock().unwrap()[..] == [Departure::CutOff]
    });
}

/// Joins with a budget of two after some frames, and maps the control memory and the lease page.
fn join(place: &Place, bystander: &mut Bystander<'_>) -> (Raw, Memory, Memory) {
    bystander.frames(30);
    let (raw, joined) = Raw::join(&place.pool(), 2);
    let control = Memory::map(&joined.control, false);
    (raw, control, Memory::map(&joined.page, true))
}

/// Stores a lease for the current content of a slot.
fn pin(control: &Memory, page: &Memory, slot: usize) {
    let word = control.words()[raw::SLOTS + slot].load(Ordering::Relaxed);
    page.halves()[raw::LEASES + slot].store((word >> 32) as u32, Ordering::Relaxed);
}

#[test]
fn a_consumer_with_garbage_in_its_lease_page_is_disconnected() {
    with_a_hostile_consumer(
        Delivery::Live,
        |_, page, _, random| {
            for word in page.words() {
                word.store(random.next(), Ordering::Relaxed);
            }
        },
        |bystander| bystander.frames(10),
    );
}

#[test]
fn a_consumer_above_its_budget_is_disconnected() {
    with_a_hostile_consumer(
        Delivery::Live,
        |control, page, max_slots, _| {
            for slot in 0..max_slots as usize {
                pin(control, page, slot);
            }
        },
        |bystander| bystander.frames(10),
    );
}

#[test]
fn a_consumer_that_leases_a_future_frame_is_disconnected() {
    with_a_hostile_consumer(
        Delivery::Live,
        |_, page, _, _| page.halves()[raw::LEASES + 3].store(1 << 30, Ordering::Relaxed),
        |bystander| bystander.frames(10),
    );
}

#[test]
fn a_consumer_with_a_cursor_ahead_of_the_stream_is_disconnected() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        with_a_hostile_consumer(
            delivery,
            |_, page, _, _| page.set(raw::CURSOR, 1 << 60),
            |bystander| bystander.frames(10),
        );
    }
}

/// A consumer may hold any frames within its budget.
#[test]
fn a_consumer_that_pins_its_budget_delays_no_other() {
    let place = Place::new();
    let producer = place.producer(|it| it.max_slots(24));
    let mut bystander = Bystander::new(&producer);
    let (_raw, control, page) = join(&place, &mut bystander);
    for slot in 0..2 {
        pin(&control, &page, slot);
    }
    bystander.frames(500);
    assert_eq!(producer.stats().cut_off, 0);
    assert_eq!(page.words()[raw::FLAGS].load(Ordering::Relaxed), 0);
}

/// How long frames are kept for a consumer is its own word.
#[test]
fn a_consumer_that_asks_for_all_frames_for_ever_delays_no_other() {
    let place = Place::new();
    let producer = place.producer(|it| it.history_time(Duration::from_nanos(1)).max_slots(24));
    let mut bystander = Bystander::new(&producer);
    let (_raw, _control, page) = join(&place, &mut bystander);
    page.set(raw::KEEP_FOR, u64::MAX);
    bystander.frames(500);
    let stats = producer.stats();
    assert_eq!((stats.cut_off, stats.dropped), (0, 0));
    assert!(stats.slots_held > 10, "{} slots", stats.slots_held);
}

/// Slots that it does not hold when it leaves are reserved for others.
#[test]
fn a_consumer_that_takes_frames_after_leaving_is_disconnected() {
    let place = Place::new();
    let producer = place.producer(|it| it.max_slots(24));
    let mut bystander = Bystander::new(&producer);
    let (raw, control, page) = join(&place, &mut bystander);
    pin(&control, &page, 0);
    page.set(raw::CURSOR, u64::MAX);
    raw.send(raw::LEAVE, &[]).unwrap();
    eventually("its leave is noticed", || {
        producer.stats().consumers.iter().any(|it| it.leaving)
    });
    // Another consumer joins and leaves.
    let _other = Raw::join(&place.pool(), 2);
    bystander.frames(100);
    assert_eq!(producer.stats().cut_off, 0);
    pin(&control, &page, 1);
    eventually("it is disconnected", || {
        bystander.frames(10);
        producer.stats().cut_off == 1
    });
}

/// A consumer that does not advance is disconnected, also if its cursor moves.
#[test]
fn a_cursor_that_goes_back_delays_no_lossless_pool() {
    let place = Place::new();
    let producer = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .lossless_timeout(Some(Duration::from_millis(100)))
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(600);
    let (_raw, joined) = Raw::join(&place.pool(), 1);
    let page = Memory::map(&joined.page, true);
    let start = page.words()[raw::CURSOR].load(Ordering::Relaxed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = OnDrop(|| done.store(true, Ordering::Relaxed));
        scope.spawn(|| {
            // Another position each time that the producer reads it.
            for back in (1..500).cycle() {
                page.set(raw::CURSOR, start - back);
                std::thread::sleep(Duration::from_millis(1));
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        bystander.frames(100);
    });
    assert_eq!(producer.stats().timed_out, 1);
}

/// A mapped region counts towards the pool's limit only for the time that a correct consumer may need to release it.
#[test]
fn a_consumer_that_never_releases_a_region_starves_no_pool() {
    let place = Place::new();
    let producer = place.producer(|it| it.max_bytes(8 << 20));
    publish(&producer, 0, 1 << 20);
    let (raw, joined) = Raw::join(&place.pool(), 1);
    raw.send(&raw::get_region(1), &[]).unwrap();
    let region = raw.recv_kind(3).1.remove(0);
    let page = Memory::map(&joined.page, true);
    page.set(raw::REGIONS_SEEN, 0);
    eventually("there is room for larger frames", || {
        producer.acquire(6 << 20).is_ok()
    });
    assert_eq!(producer.stats().cut_off, 0);
    drop(region);
}
