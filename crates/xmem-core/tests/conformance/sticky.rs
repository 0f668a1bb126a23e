// SPDX-License-Identifier: MPL-2.0

//! The sticky state of a frame.

use xmem_core::{Backing, Delivery, StartFrom, Sticky};

use super::*;

crate::conformance! {
    frames_belong_to_their_sticky_version
    lossless_frames_keep_their_sticky_version
}

fn frames_belong_to_their_sticky_version(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(8).build().unwrap();
    let version = producer.set_sticky(&sticky(0)).unwrap();
    let mut consumer = connect(&place);
    eventually("the state comes before the first frame", || {
        consumer
            .sticky()
            .is_some_and(|state| state.text("caps") == Some("video/x-raw,n=0"))
    });
    publish(&producer, 0, 10);
    assert!(producer.set_sticky(&sticky(1)).unwrap() > version);
    publish(&producer, 1, 10);
    publish(&producer, 2, 10);
    producer.set_sticky(&sticky(2)).unwrap();
    producer.set_sticky(&sticky(3)).unwrap();
    publish(&producer, 3, 10);
    let mut late = place.consumer(|it| it.start_from(StartFrom::Oldest));
    for consumer in [&mut consumer, &mut late] {
        for (seed, n) in [(0, 0), (1, 1), (2, 1), (3, 3)] {
            let frame = receive(consumer);
            assert_frame(&frame, seed, 10);
            assert_eq!(**frame.sticky(), sticky(n), "frame {seed}");
        }
    }
    assert_eq!(*producer.sticky(), sticky(3));
    assert_eq!(
        producer.stats().sticky,
        [("caps".to_owned(), "video/x-raw,n=3".to_owned())]
    );
    // A large state works as well.
    let mut large = Sticky::new();
    large.set("tags", vec![7; 3 << 20]);
    producer.set_sticky(&large).unwrap();
    publish(&producer, 4, 10);
    assert_eq!(**receive(&mut consumer).sticky(), large);
    large.set("tags", vec![7; xmem_core::MAX_NAMED_SIZE]);
    assert!(producer.set_sticky(&large).is_err());
}

/// A lossless frame keeps its state through any number of state changes.
fn lossless_frames_keep_their_sticky_version(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).delivery(Delivery::Lossless));
    let mut consumer = connect(&place);
    for n in 0..150 {
        producer.set_sticky(&sticky(n)).unwrap();
        publish(&producer, n, 10);
    }
    for n in 0..150 {
        let frame = receive(&mut consumer);
        assert_frame(&frame, n, 10);
        assert_eq!(**frame.sticky(), sticky(n));
    }
}

fn sticky(n: u64) -> Sticky {
    let mut sticky = Sticky::new();
    sticky.set("caps", format!("video/x-raw,n={n}"));
    sticky
}
