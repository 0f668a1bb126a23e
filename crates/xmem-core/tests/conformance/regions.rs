// SPDX-License-Identifier: MPL-2.0

//! Regions are removed when they are not needed any more.

use xmem_core::{Backing, CreateError, Delivery, ReceiveError};

use super::*;

crate::conformance! {
    regions_are_released_when_the_frame_size_changes
    regions_are_released_after_a_peak
    retired_regions_do_not_use_up_max_bytes
    a_closed_pool_removes_no_region
    consumers_can_take_all_frames_of_a_pool_that_ended
    dma_buffers_are_handed_out_only_if_that_is_allowed
}

/// `cargo xtask camera` tests the DMA buffers themselves, on a kernel that has them.
fn dma_buffers_are_handed_out_only_if_that_is_allowed(backing: Backing) {
    let reason = match backing {
        Backing::PosixShm => "backing=posix-shm",
        _ => "set dmabuf=allow on xmemsink",
    };
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut usual = connect(&place);
    let mut device = place.consumer(|it| it.dmabuf(true));
    publish(&producer, 0, 300_000);
    let frame = receive(&mut usual);
    assert_frame(&frame, 0, 300_000);
    assert!(frame.dmabuf().is_none());
    for _ in 0..2 {
        let error = device.receive(Some(HANG)).unwrap_err();
        let is_refused = matches!(&error, ReceiveError::NoDmabuf(why) if why.contains(reason));
        assert!(is_refused, "{error}");
    }
    // It holds nothing, and it was not disconnected.
    assert_eq!(device.held(), 0);
    assert_eq!(producer.stats().consumers.len(), 2);
    drop((frame, usual, device, producer));

    let allowing = pool(&place, backing).allow_dmabuf(true).build();
    match (backing, std::fs::File::open("/dev/udmabuf")) {
        (Backing::PosixShm, _) => {
            assert!(matches!(allowing, Err(CreateError::Settings(_))));
        }
        (_, Err(_)) => {
            let error = allowing.unwrap_err();
            assert!(matches!(error, CreateError::Dmabuf(_)), "{error}");
            assert_contains(&error.to_string(), "/dev/udmabuf");
        }
        (_, Ok(_)) => drop(allowing.unwrap()),
    }
    place.assert_clean();
}

fn regions_are_released_when_the_frame_size_changes(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 2 << 20);
    let old = receive(&mut consumer);
    let file = map_of(old.bytes().unwrap().as_ptr()).unwrap().file;
    assert_eq!(mapped(&file), 2, "the producer's view and the consumer's");
    for seed in 1..100 {
        publish(&producer, seed, 300_000);
        assert_frame(&receive(&mut consumer), seed, 300_000);
    }
    assert_eq!(producer.collect(), 0, "a frame is held in the old one");
    let with_both = producer.stats().bytes;
    assert_frame(&old, 0, 2 << 20);
    let address = old.bytes().unwrap().as_ptr();
    drop(old);
    assert_eq!(producer.collect(), 1);
    // The consumer unmaps the region at its next receive call, and reports it.
    publish(&producer, 100, 300_000);
    assert_frame(&receive(&mut consumer), 100, 300_000);
    producer.collect();
    let stats = producer.stats();
    assert!(stats.bytes < with_both, "{} < {with_both}", stats.bytes);
    assert_eq!(stats.regions, 1, "{stats:?}");
    assert_eq!(mapped(&file), 0, "at {address:?}");
    // The region is also removed without a call if the size has changed permanently.
    for seed in 0..200 {
        publish(&producer, seed, 3 << 20);
        assert_frame(&receive(&mut consumer), seed, 3 << 20);
    }
    assert_eq!(producer.stats().regions, 1, "{:?}", producer.stats());
}

fn regions_are_released_after_a_peak(backing: Backing) {
    const SIZE: usize = 300_000;
    let place = Place::new();
    let producer = pool(&place, backing).history(2).build().unwrap();
    let mut consumer = connect(&place);
    let before = producer
        .acquire(SIZE)
        .map(|_| producer.stats().bytes)
        .unwrap();
    let mut peak: Vec<_> = (0..13).map(|_| producer.acquire(SIZE).unwrap()).collect();
    assert!(producer.stats().regions > 3, "{:?}", producer.stats());
    // The slots that were used last are in several regions.
    let last: Vec<_> = [12, 8, 4].map(|at| peak.remove(at)).into();
    drop(peak);
    drop(last);
    for seed in 0..1500 {
        publish(&producer, seed, SIZE);
        assert_frame(&receive(&mut consumer), seed, SIZE);
    }
    let stats = producer.stats();
    assert_eq!((stats.regions, stats.bytes), (1, before), "{stats:?}");
}

/// A consumer does not keep regions that it never requested. It also unmaps the others while it sleeps.
fn retired_regions_do_not_use_up_max_bytes(backing: Backing) {
    let place = Place::new();
    let producer = place.producer(|it| it.backing(backing).history(1).max_bytes(2_200_000));
    let mut idle = connect(&place);
    let mut active = connect(&place);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            for seed in 0..40 {
                assert_frame(&receive(&mut active), seed, size_of(seed));
            }
            // Returned, so that its statistics can still be read below.
            active
        });
        for seed in 0..40 {
            eventually("there is room", || {
                let Ok(mut slot) = producer.acquire(size_of(seed)) else {
                    return false;
                };
                fill(seed, slot.as_mut_slice());
                slot.publish(seeded(seed, size_of(seed))).is_ok()
            });
            eventually("it is taken", || {
                producer.stats().consumers[1].received == seed + 1
            });
            assert!(producer.stats().bytes <= 2_200_000);
        }
        drop(sleeper.join().unwrap());
    });
    assert_frame(&receive(&mut idle), 39, size_of(39));

    fn size_of(seed: u64) -> usize {
        if seed.is_multiple_of(2) {
            300_000
        } else {
            2_000_000
        }
    }
}

/// Consumers may still take the frames.
fn a_closed_pool_removes_no_region(backing: Backing) {
    let place = Place::new();
    let producer = pool(&place, backing).build().unwrap();
    let mut consumer = connect(&place);
    publish(&producer, 0, 2 << 20);
    drop(receive(&mut consumer));
    publish(&producer, 1, 2 << 20);
    publish(&producer, 2, 300_000);
    producer.close();
    assert_eq!(producer.collect(), 0);
    assert_frame(&receive(&mut consumer), 1, 2 << 20);
}

/// Their programs may be busy when the producer ends.
fn consumers_can_take_all_frames_of_a_pool_that_ended(backing: Backing) {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let place = Place::new();
        let builder = pool(&place, backing).delivery(delivery).history(12);
        let producer = builder.build().unwrap();
        let mut consumers = [connect(&place), connect(&place)];
        publish(&producer, 0, 300_000);
        assert_frame(&receive(&mut consumers[0]), 0, 300_000);
        for seed in 1..12 {
            producer.set_caps(&format!("a/b,number={seed}")).unwrap();
            publish(&producer, seed, 2 << 20);
        }
        producer.set_eos(true);
        drop(producer);
        for (consumer, first) in consumers.iter_mut().zip([1, 0]) {
            for seed in first..12 {
                let size = if seed == 0 { 300_000 } else { 2 << 20 };
                assert_frame(&receive(consumer), seed, size);
            }
            let end = consumer.receive(Some(HANG));
            assert!(matches!(end, Err(ReceiveError::Eos)), "{end:?}");
            assert_eq!(consumer.stats().missed, 0);
        }
    }
}
