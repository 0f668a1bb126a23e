// SPDX-License-Identifier: MPL-2.0

//! Preallocated buffers, which stay until they are given up.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use crate::support::{buffers::published, *};
use xmem_core::BufferPool;

const LARGE: usize = 3 << 20;
const SMALL: usize = 1 << 20;

#[test]
fn two_sizes_stay_with_their_numbers() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let large = pool.preallocate_cpu(LARGE, 8).unwrap();
    let small = pool.preallocate_cpu(SMALL, 8).unwrap();
    let before = pool.stats();
    assert_eq!(before.set_aside, 16);
    assert_eq!(before.set_aside_bytes, 8 * (LARGE + SMALL) as u64);
    for (size, indices) in [(LARGE, &large), (SMALL, &small)] {
        // Only one size, for longer than unused memory is kept.
        for _ in 0..700 {
            let buffer = pool.acquire_cpu(size).unwrap();
            assert!(indices.contains(&buffer.buffer()));
        }
        pool.acquire_cpu(100).unwrap();
    }
    // All buffers of one size at once; the next one is allocated.
    let all: Vec<_> = (0..8).map(|_| pool.acquire_cpu(LARGE).unwrap()).collect();
    assert!(all.iter().all(|buffer| large.contains(&buffer.buffer())));
    let more = pool.acquire_cpu(LARGE).unwrap();
    assert!(!large.contains(&more.buffer()) && !small.contains(&more.buffer()));
    drop((all, more));
    assert_eq!(pool.preallocate_cpu(LARGE, 8).unwrap(), large);
    assert_eq!(pool.preallocate_cpu(SMALL, 8).unwrap(), small);
    assert_eq!(pool.stats().set_aside, 16);
}

#[test]
fn another_size_takes_none_that_is_set_aside() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    // A buffer for the small size would also fit.
    let large = pool.preallocate_cpu(LARGE, 2).unwrap();
    let small: Vec<_> = (0..4).map(|_| pool.acquire_cpu(SMALL).unwrap()).collect();
    for buffer in &small {
        assert!(!large.contains(&buffer.buffer()));
    }
    assert!(large.contains(&pool.acquire_cpu(LARGE).unwrap().buffer()));
}

#[test]
fn buffers_that_are_given_up_free_their_memory() {
    let place = Place::new();
    let pool = BufferPool::options(&place.pool())
        .max_buffers(8)
        .open()
        .unwrap();
    let indices = pool.preallocate_cpu(LARGE, 8).unwrap();
    assert!(pool.acquire_cpu(SMALL).is_err());
    assert_eq!(pool.give_up(&indices[..4]), 4);
    assert_eq!(pool.give_up(&indices[..4]), 0);
    pool.acquire_cpu(SMALL).unwrap();
}

#[test]
fn a_published_buffer_stays_valid_when_it_is_given_up() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    pool.preallocate_cpu(4, 2).unwrap();
    let index = published(&pool, b"abcd", 1);
    assert_eq!(pool.give_up(&[index]), 1);
    for _ in 0..700 {
        pool.acquire_cpu(SMALL).unwrap();
    }
    assert_eq!(reader.get(index).unwrap().as_cpu_slice().unwrap(), b"abcd");
    // Each process can only give up its own buffers.
    assert_eq!(reader.stats().set_aside, 0);
    assert_eq!(reader.give_up(&[index]), 0);
}

#[test]
fn two_threads_set_the_same_buffers_aside() {
    const COUNT: usize = 4;
    for round in 0..50 {
        let place = Place::new();
        // There may be one buffer more than that.
        let options = BufferPool::options(&place.pool()).max_buffers(COUNT as u32 + 1);
        let pool = options.open().unwrap();
        // The first buffer creates this process's part of the pool.
        pool.acquire_cpu(1).unwrap();
        let start = Barrier::new(2);
        let set_aside = || {
            start.wait();
            pool.preallocate_cpu(SMALL, COUNT)
        };
        let [one, two] = thread::scope(|scope| {
            [(); 2]
                .map(|()| scope.spawn(set_aside))
                .map(|thread| thread.join().unwrap())
        });
        let numbers = |result: Result<Vec<u32>, _>| BTreeSet::from_iter(result.unwrap());
        assert_eq!(numbers(one), numbers(two), "round {round}");
        assert_eq!(pool.stats().set_aside as usize, COUNT);
    }
}
