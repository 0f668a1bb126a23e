// SPDX-License-Identifier: MPL-2.0

//! Objects by number, which threads may use while another thread ends the number.
//!
//! An object lies in an entry, which stays where it is and is used again, so that a thread finds it without a lock. The entry's
//! state is one word: the generation, whether a number of this generation is valid, and how many users there are: functions that
//! run, tensors, and objects that refer to this one. The end of a number begins the next generation. The last user drops the object,
//! and only then the entry is free.
#![allow(unsafe_code)] // objects in entries, which one thread drops while others look for them

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// In the state: the entry has an object, and its number is valid. Above it is the generation, below it the count of users.
const VALID: u64 = 1 << 31;

/// Entries of the first chunk. Each chunk has twice as many as the one before.
const FIRST: u64 = 16;
const CHUNKS: usize = 28;

pub(crate) struct Entries<T> {
    chunks: [OnceLock<Box<[Entry<T>]>>; CHUNKS],
    /// An entry that is probably free.
    hint: AtomicU32,
}

struct Entry<T> {
    number: u32,
    state: AtomicU64,
    object: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: one thread has the entry while its object is written or dropped, and otherwise all only read it.
unsafe impl<T: Send + Sync> Sync for Entry<T> {}

impl<T> Entry<T> {
    /// Takes a free entry for a new object.
    fn claim(&self) -> bool {
        // The state is as the last user of the last object left it, after it dropped that (`Held::drop`).
        let state = self.state.load(Ordering::Relaxed);
        state as u32 == 0 && {
            let claimed = state + 1;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            let taken = self
                .state
                .compare_exchange(state, claimed, order.0, order.1);
            taken.is_ok()
        }
    }
}

impl<T> Entries<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            hint: AtomicU32::new(0),
        }
    }

    // Inlined, as below, because they run for each frame.
    #[inline(always)]
    fn entry(&self, number: u32) -> Option<&Entry<T>> {
        let place = u64::from(number) + FIRST;
        let chunk = place.ilog2() - FIRST.ilog2();
        let entries = self.chunks.get(chunk as usize)?.get()?;
        entries.get((place - (FIRST << chunk)) as usize)
    }

    /// The first free entry, if necessary of a new chunk.
    #[cold]
    fn search(&self) -> Option<&Entry<T>> {
        let chunks = (0..).zip(&self.chunks);
        let mut entries = chunks.flat_map(|(chunk, entries)| {
            let numbers = (FIRST << chunk) - FIRST..(FIRST << (chunk + 1)) - FIRST;
            let make = |number| Entry {
                number: number as u32,
                state: AtomicU64::new(1 << 32),
                object: UnsafeCell::new(MaybeUninit::uninit()),
            };
            entries.get_or_init(|| numbers.map(make).collect())
        });
        entries.find(|entry| entry.claim())
    }

    /// Adds an object, and returns its number, which is not 0. `None`: there are too many.
    #[inline(always)]
    pub(crate) fn add(&self, object: T) -> Option<u64> {
        // Its partners are the stores below and in `Held::drop`. An old hint only costs a search.
        let hint = self.entry(self.hint.load(Ordering::Relaxed));
        let hint = hint.filter(|entry| entry.claim());
        let entry = hint.or_else(|| self.search())?;
        self.hint.store(entry.number + 1, Ordering::Relaxed);
        // SAFETY: this thread claimed the entry, and nobody finds it before it is valid.
        unsafe { (*entry.object.get()).write(object) };
        let generation = entry.state.load(Ordering::Relaxed) >> 32;
        // Its partner is in `hold`, which sees the object.
        let valid = generation << 32 | VALID;
        entry.state.store(valid, Ordering::Release);
        Some(generation << 32 | u64::from(entry.number))
    }

    /// Becomes a user of the object with this number, while `next` changes the state. `None`: the number is not valid.
    #[inline(always)]
    fn hold(&'static self, number: u64, next: impl Fn(u64) -> u64) -> Option<Held<T>> {
        let entry = self.entry(number as u32)?;
        let mut state = entry.state.load(Ordering::Relaxed);
        loop {
            // With one more user than fit into the state, it would be another generation.
            if state >> 31 != number >> 32 << 1 | 1 || state as u32 == u32::MAX {
                return None;
            }
            let (entries, next) = (self, next(state));
            // Its partner is in `add`.
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match (entry.state).compare_exchange_weak(state, next, order.0, order.1) {
                Ok(_) => return Some(Held { entries, entry }),
                Err(now) => state = now,
            }
        }
    }

    #[inline(always)]
    pub(crate) fn get(&'static self, number: u64) -> Option<Held<T>> {
        self.hold(number, |state| state + 1)
    }

    /// Ends a number. The object ends with its last user.
    #[inline(always)]
    pub(crate) fn remove(&'static self, number: u64) -> Option<Held<T>> {
        self.hold(number, |state| without_number(state) + 1)
    }
}

/// The state after the end of a number: of the next generation, with the same users.
#[inline(always)]
fn without_number(state: u64) -> u64 {
    // 0 is the generation of no object, so that no number is 0.
    let generation = ((state >> 32) as u32).checked_add(1).unwrap_or(1);
    u64::from(generation) << 32 | (state & (VALID - 1))
}

/// A user of an object.
pub(crate) struct Held<T: 'static> {
    entries: &'static Entries<T>,
    entry: &'static Entry<T>,
}

impl<T> Held<T> {
    /// One more user. `None`: there are too many.
    pub(crate) fn again(&self) -> Option<Self> {
        let (entries, entry) = (self.entries, self.entry);
        let add = |state: u64| (state & (VALID - 1) < VALID - 1).then_some(state + 1);
        // Relaxed, because this user keeps the object.
        let (order, state) = (Ordering::Relaxed, &entry.state);
        let added = state.fetch_update(order, order, add);
        added.is_ok().then_some(Self { entries, entry })
    }

    /// Ends the number of the object, if no other thread did.
    #[inline(always)]
    pub(crate) fn end(self) {
        // A valid number is this object's, because this user keeps it. The drop has the order.
        let end = |state: u64| (state & VALID != 0).then(|| without_number(state));
        let order = Ordering::Relaxed;
        let _ = self.entry.state.fetch_update(order, order, end);
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: an object is in its entry as long as it has users.
        unsafe { (*self.entry.object.get()).assume_init_ref() }
    }
}

impl<T> Drop for Held<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let Self { entries, entry } = self;
        // Acquire: what other users did comes before the object's end. Their partner is the exchange below.
        let mut state = entry.state.load(Ordering::Acquire);
        // As long as the number is valid, or there are other users, the object stays.
        while state as u32 != 1 {
            let order = (Ordering::Release, Ordering::Acquire);
            match (entry.state).compare_exchange_weak(state, state - 1, order.0, order.1) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
        // SAFETY: the last user has the entry: without a valid number nobody finds it, and it is not free yet.
        unsafe { (*entry.object.get()).assume_init_drop() };
        entries.hint.store(entry.number, Ordering::Relaxed);
        // Its partner is in `claim`.
        entry.state.store(state - 1, Ordering::Release);
    }
}
