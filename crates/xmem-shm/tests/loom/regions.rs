// SPDX-License-Identifier: MPL-2.0

//! The list of regions, which changes while consumers read it.
#![allow(unsafe_code)] // a region's bytes: a cell whose races loom reports

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use xmem_shm::protocol::{regions, ring};

use crate::ring::entry;
use crate::{check, spawn};

/// A list of regions, and the memory of the first region.
struct Regions {
    words: [AtomicU32; 3],
    version: AtomicU64,
    first: UnsafeCell<u32>,
}

impl Regions {
    /// Regions 1 and 2 are in use.
    fn new() -> Self {
        let regions = Self {
            words: [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)],
            version: AtomicU64::new(0),
            first: UnsafeCell::new(7),
        };
        regions::show(&regions.words, &regions.version, [1, 2].into_iter(), 0);
        regions
    }

    /// A consumer that has mapped the first region checks whether it was retired. Returns the version up to which it has unmapped.
    fn sweep(&self) -> u32 {
        let version = regions::version(&self.version);
        let ids: Vec<u32> = regions::list(&self.words).collect();
        assert!(ids.contains(&2), "region 2 is in use all the time: {ids:?}");
        if ids.contains(&1) {
            assert_eq!(version, 0, "an older list with a newer version");
            self.first.with(|first| {
                // SAFETY: the test checks this access; loom reports a concurrent one.
                assert_eq!(unsafe { *first }, 7);
            });
        }
        version
    }
}

/// A region is retired, and another one is added: its memory is free when both consumers have reported that they unmapped it.
#[test]
fn a_region_is_retired_while_two_consumers_look() {
    check(Some(2), || {
        let pool = Arc::new(Regions::new());
        let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let consumers = [0, 1].map(|n| {
            let (pool, seen) = (pool.clone(), seen.clone());
            thread::spawn(move || {
                seen[n].store(pool.sweep().into(), Ordering::Release);
            })
        });
        regions::show(&pool.words, &pool.version, [2].into_iter(), 1);
        regions::show(&pool.words, &pool.version, [2, 3].into_iter(), 1);
        if seen.iter().all(|seen| seen.load(Ordering::Acquire) == 1) {
            pool.first.with_mut(|first| {
                // SAFETY: as above.
                unsafe { *first = 0 }
            });
        }
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

/// A pool grows: a consumer that sees a frame sees its region, in the list and in the producer's answer.
#[test]
fn a_frame_of_a_new_region_is_found_by_two_consumers() {
    check(Some(2), || {
        let pool = Arc::new(Regions::new());
        let entry = Arc::new(entry());
        let head = Arc::new(AtomicU64::new(0));
        let consumers = [0, 1].map(|_| {
            let (pool, entry, head) = (pool.clone(), entry.clone(), head.clone());
            thread::spawn(move || {
                if head.load(Ordering::Relaxed) == 1 {
                    fence(Ordering::Acquire);
                    let mut words = [0; 2];
                    assert!(ring::read(&entry[..], 0, &mut words));
                    assert!(regions::list(&pool.words).any(|id| u64::from(id) == words[0]));
                }
            })
        });
        regions::show(&pool.words, &pool.version, [1, 2, 3].into_iter(), 0);
        ring::write(&entry[..], 0, &[3, 0], None);
        head.store(1, Ordering::Release);
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "in use all the time")]
fn wrong_the_list_of_regions_is_read_forwards() {
    check(None, || {
        let pool = Arc::new(Regions::new());
        let consumer = spawn(pool.clone(), |pool| {
            let ids = [0, 1, 2].map(|at| {
                let id = pool.words[at].load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                id
            });
            assert!(ids.contains(&2), "region 2 is in use all the time: {ids:?}");
        });
        regions::show(&pool.words, &pool.version, [2].into_iter(), 1);
        consumer.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "an older list with a newer version")]
fn wrong_the_version_before_the_list() {
    check(Some(3), || {
        let pool = Arc::new(Regions::new());
        let consumer = spawn(pool.clone(), |pool| {
            pool.sweep();
        });
        pool.version.store(1, Ordering::Release);
        regions::show(&pool.words, &pool.version, [2].into_iter(), 1);
        consumer.join().unwrap();
    });
}
