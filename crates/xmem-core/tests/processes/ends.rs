// SPDX-License-Identifier: MPL-2.0

//! The owner of a pool, and the files that it leaves.

use std::time::Duration;

use xmem_core::{Consumer, CreateError, Producer};

use crate::start;
use crate::support::*;

#[test]
fn the_error_of_a_second_producer_names_the_first() {
    let place = Place::new();
    let mut first = start("produce", "ready", &place);
    for _ in 0..3 {
        let error = Producer::builder(place.pool()).build().unwrap_err();
        let CreateError::InUse { pool, holder } = &error else {
            panic!("{error}");
        };
        assert_eq!(*pool, place.pool());
        assert_contains(holder, &first.pid().to_string());
        assert!(error.to_string().contains(holder));
    }
    // The first producer is not affected.
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    assert_whole(&receive(&mut consumer));
    // A stopped producer still owns the pool.
    first.stop();
    assert!(matches!(
        Producer::builder(place.pool()).build(),
        Err(CreateError::InUse { .. })
    ));
    first.kill();
    Producer::builder(place.pool()).build().unwrap();
}

#[test]
fn a_closing_producer_wakes_sleepers_in_other_processes() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut sleepers = [(); 3].map(|()| start("sleep", "joined", &place));
    std::thread::sleep(Duration::from_millis(30));
    drop(producer);
    for sleeper in &mut sleepers {
        assert_eq!(sleeper.reply(), "ProducerLost");
    }
}

/// The memory of a large frame among small ones is kept, or allocated each time, depending on a setting.
#[test]
fn frames_of_mixed_sizes_keep_their_regions() {
    for (mixed, regions) in [(true, 2), (false, 1)] {
        let place = Place::new();
        let producer = place.producer(|it| it.history(0).mixed_sizes(mixed));
        for seed in 0..380 {
            let size = if seed % 100 == 0 { 2_000_000 } else { 300_000 };
            publish(&producer, seed, size);
        }
        // Regions are checked every 64 frames. The last large frame was number 300.
        assert_eq!(producer.stats().regions, regions, "mixed sizes: {mixed}");
    }
}
