// SPDX-License-Identifier: MPL-2.0

//! The entries behind handles, on several threads.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

#[path = "../../src/entries.rs"]
mod entries;

use entries::Entries;

const THREADS: u64 = 4;

#[derive(Debug)]
struct Object {
    id: u64,
    is_alive: AtomicBool,
    /// How many have ended.
    ended: &'static AtomicU64,
}

impl Object {
    fn new(id: u64, ended: &'static AtomicU64) -> Self {
        let is_alive = AtomicBool::new(true);
        Self {
            id,
            is_alive,
            ended,
        }
    }

    /// It stays the same object as long as a user has it.
    fn check(&self) {
        let id = black_box(self).id;
        thread::yield_now();
        assert_eq!(black_box(self).id, id);
        assert!(self.is_alive.load(Ordering::Relaxed));
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        assert!(self.is_alive.swap(false, Ordering::Relaxed), "ended twice");
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_object_ends_once_after_its_last_user() {
    static ENTRIES: Entries<Object> = Entries::new();
    static ENDED: AtomicU64 = AtomicU64::new(0);
    // Threads look for the same few objects.
    let places = [const { AtomicU64::new(0) }; 3];
    let numbers = Mutex::new(HashSet::new());
    let start = Barrier::new(THREADS as usize);
    let end = |number: u64| {
        if let Some(held) = ENTRIES.remove(number) {
            held.check();
            assert!(ENTRIES.get(number).is_none() && ENTRIES.remove(number).is_none());
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (places, numbers, start, end) = (&places, &numbers, &start, &end);
            scope.spawn(move || {
                start.wait();
                for round in 0..4_000 {
                    let place = &places[((round * 7 + thread) % 3) as usize];
                    let number = place.load(Ordering::Relaxed);
                    match (round + thread) % 4 {
                        0 => {
                            let number = ENTRIES.add(Object::new(round, &ENDED)).unwrap();
                            assert!(numbers.lock().unwrap().insert(number), "given twice");
                            end(place.swap(number, Ordering::Relaxed));
                        }
                        1 if round % 8 == 1 => end(number),
                        1 => {
                            if let Some(held) = ENTRIES.get(number) {
                                held.end();
                                assert!(ENTRIES.get(number).is_none());
                            }
                        }
                        _ => {
                            if let Some(held) = ENTRIES.get(number) {
                                let again = held.again().unwrap();
                                drop(held);
                                again.check();
                            }
                        }
                    }
                }
            });
        }
    });
    places.iter().for_each(|it| end(it.load(Ordering::Relaxed)));
    let made = numbers.into_inner().unwrap();
    assert!(!made.contains(&0));
    assert_eq!(ENDED.load(Ordering::Relaxed), made.len() as u64);
}

#[test]
fn entries_are_used_again_and_grow() {
    static ENTRIES: Entries<Object> = Entries::new();
    static ENDED: AtomicU64 = AtomicU64::new(0);
    let add = |id| ENTRIES.add(Object::new(id, &ENDED)).unwrap();
    let numbers: Vec<u64> = (0..1_000).map(add).collect();
    for (id, number) in (0..).zip(&numbers) {
        assert_eq!(ENTRIES.get(*number).unwrap().id, id);
    }
    // Of no entry, of a free one, and of the next generation.
    for number in [
        0,
        7,
        u64::MAX,
        1 << 32 | 1_000,
        1 << 32 | u64::from(u32::MAX),
        numbers[3] + (1 << 32),
    ] {
        assert!(ENTRIES.get(number).is_none(), "{number:x}");
    }
    let held = ENTRIES.get(numbers[5]).unwrap();
    for number in &numbers {
        drop(ENTRIES.remove(*number).unwrap());
    }
    held.check();
    assert_eq!(ENDED.load(Ordering::Relaxed), 999);
    drop(held);
    assert_eq!(ENDED.load(Ordering::Relaxed), 1_000);
    let again: HashSet<u64> = (0..1_000).map(add).collect();
    let entry = |number: &u64| *number as u32;
    let is_old = |number: &u64| numbers.iter().any(|old| entry(old) == entry(number));
    assert!(again.iter().filter(|number| is_old(number)).count() >= 990);
    assert!(again.is_disjoint(&numbers.into_iter().collect()));
}
