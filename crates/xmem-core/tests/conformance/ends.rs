// SPDX-License-Identifier: MPL-2.0

//! The end of a stream and of a pool.

use std::time::Duration;

use xmem_core::{Backing, ReceiveError};

use super::*;

crate::conformance! {
    the_end_of_the_stream_comes_after_the_last_frame
    nothing_is_left_behind
}

fn the_end_of_the_stream_comes_after_the_last_frame(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).history(4).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 64);
    publish(&producer, 1, 64);
    producer.set_eos(true);
    assert!(producer.stats().eos);
    assert_frame(&receive(&mut consumer), 0, 64);
    assert_frame(&receive(&mut consumer), 1, 64);
    for _ in 0..3 {
        assert!(matches!(consumer.receive(None), Err(ReceiveError::Eos)));
    }
    // A late joiner also gets the end.
    assert!(matches!(
        connect(&place).receive(None),
        Err(ReceiveError::Eos)
    ));
    // A new stream begins.
    producer.set_eos(false);
    assert_no_frame(&mut consumer);
    // Closing wakes a consumer that sleeps.
    let sleeper = std::thread::spawn(move || {
        let error = consumer.receive(None).unwrap_err();
        (consumer, error)
    });
    std::thread::sleep(Duration::from_millis(20));
    producer.set_eos(true);
    let (mut consumer, error) = sleeper.join().unwrap();
    assert!(matches!(error, ReceiveError::Eos));
    // A consumer that has received the end then gets ProducerLost. A late one gets the end first.
    let mut late = connect(&place);
    drop(producer);
    eventually("the producer is gone", || {
        matches!(consumer.receive(None), Err(ReceiveError::ProducerLost))
    });
    assert!(matches!(late.receive(None), Err(ReceiveError::Eos)));
    eventually("it gets the same", || {
        matches!(late.receive(None), Err(ReceiveError::ProducerLost))
    });
}

fn nothing_is_left_behind(backing: Backing) {
    let place = Place::new();
    for round in 0..10 {
        let producer = pool(&place, backing).build().unwrap();
        let mut consumer = connect(&place);
        publish(&producer, round, 100_000);
        let frame = receive(&mut consumer);
        assert_frame(&frame, round, 100_000);
        assert_eq!(
            place.segments().is_empty(),
            backing != Backing::PosixShm,
            "segments are where they should be"
        );
        let file = map_of(frame.bytes().unwrap().as_ptr()).unwrap().file;
        assert_eq!(stats_of(&place.pool()).published, 1);
        drop((producer, consumer, frame));
        assert_eq!(mapped(&file), 0);
        place.assert_clean();
    }
}
