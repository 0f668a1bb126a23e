// SPDX-License-Identifier: MPL-2.0

//! Sleeping consumers and their wake-ups.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use xmem_shm::protocol::wake;

use crate::check;

/// A futex with the kernel's semantics: the value is compared and the sleeper queued in one step.
#[derive(Default)]
struct Kernel {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Kernel {
    fn wait(&self, word: &AtomicU32, value: u32) {
        self.wait_any([(word, value)]);
    }

    fn wait_any<const N: usize>(&self, words: [(&AtomicU32, u32); N]) {
        let queue = self.lock.lock().unwrap();
        let is_same = |(word, value): (&AtomicU32, u32)| word.load(Ordering::SeqCst) == value;
        if words.into_iter().all(is_same) {
            // If the consumer is never woken, loom reports a deadlock.
            drop(self.sleepers.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.lock.lock().unwrap();
        self.sleepers.notify_one();
    }
}

struct Sleep {
    word: AtomicU32,
    kernel: Kernel,
    work: [AtomicBool; 2],
}

impl Sleep {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(0),
            kernel: Kernel::default(),
            work: [AtomicBool::new(false), AtomicBool::new(false)],
        })
    }

    fn is_there(&self, work: usize) -> bool {
        self.work[work].load(Ordering::Relaxed)
    }

    /// The consumer: sleeps until this work is available.
    fn wait_for(&self, work: usize) {
        while !self.is_there(work) {
            let value = wake::prepare(&self.word);
            if !self.is_there(work) {
                self.kernel.wait(&self.word, value);
            }
            wake::awake(&self.word);
        }
    }

    fn give(&self, work: usize) {
        self.work[work].store(true, Ordering::Release);
        if wake::wake(&self.word) {
            self.kernel.wake();
        }
    }

    /// As `give`, by the consumer's own process.
    fn give_own(&self, work: usize) {
        self.work[work].store(true, Ordering::Release);
        wake::change(&self.word);
        self.kernel.wake();
    }

    /// A producer that is killed before it wakes the consumer, and a thread of the consumer that gives it work.
    fn with_killed_producer(give: fn(&Self, usize)) {
        check(None, move || {
            let sleep = Self::new();
            let producer = thread::spawn({
                let sleep = sleep.clone();
                move || {
                    wake::wake(&sleep.word);
                }
            });
            let own = thread::spawn({
                let sleep = sleep.clone();
                move || give(&sleep, 0)
            });
            sleep.wait_for(0);
            producer.join().unwrap();
            own.join().unwrap();
        });
    }
}

#[test]
fn no_wake_up_is_lost() {
    check(None, || {
        let sleep = Sleep::new();
        let producer = thread::spawn({
            let sleep = sleep.clone();
            move || {
                sleep.give(0);
                sleep.give(1);
            }
        });
        sleep.wait_for(0);
        sleep.wait_for(1);
        producer.join().unwrap();
    });
}

/// A consumer of two pools, which leaves the announcements of one sleep for the next.
#[test]
fn no_wake_up_is_lost_among_several_words() {
    check(Some(3), || {
        let kernel = Arc::new(Kernel::default());
        let pools = [(); 2].map(|()| Arc::new((AtomicU32::new(0), AtomicBool::new(false))));
        let producers = pools.clone().map(|pool| {
            let kernel = kernel.clone();
            thread::spawn(move || {
                pool.1.store(true, Ordering::Release);
                if wake::wake(&pool.0) {
                    kernel.wake();
                }
            })
        });
        let is_there = |pool: &(AtomicU32, AtomicBool)| pool.1.load(Ordering::Relaxed);
        let mut taken = [false; 2];
        loop {
            for (taken, pool) in taken.iter_mut().zip(&pools) {
                *taken = *taken || is_there(pool);
            }
            if taken == [true; 2] {
                break;
            }
            let values = pools.each_ref().map(|pool| wake::announce(&pool.0));
            wake::announced();
            let mut left = pools.iter().zip(taken).filter(|(_, taken)| !taken);
            if !left.any(|(pool, _)| is_there(pool)) {
                kernel.wait_any([(&pools[0].0, values[0]), (&pools[1].0, values[1])]);
            }
        }
        for producer in producers {
            producer.join().unwrap();
        }
    });
}

/// The producer and the consumer's own control thread, at the same time.
#[test]
fn no_wake_up_is_lost_between_two_wakers() {
    check(Some(3), || {
        let sleep = Sleep::new();
        let wakers = [0, 1].map(|work| {
            let sleep = sleep.clone();
            thread::spawn(move || sleep.give(work))
        });
        sleep.wait_for(0);
        sleep.wait_for(1);
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

#[test]
fn no_wake_up_is_lost_after_a_producer_was_killed() {
    Sleep::with_killed_producer(Sleep::give_own);
}

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_wake_that_trusts_the_mark_of_a_killed_producer() {
    Sleep::with_killed_producer(Sleep::give);
}

/// A consumer that does not sleep causes no system call.
#[test]
fn a_consumer_that_is_awake_is_not_woken() {
    loom::model(|| {
        let word = AtomicU32::new(0);
        assert!(!wake::wake(&word));
        wake::prepare(&word);
        assert!(wake::wake(&word), "about to sleep");
        assert!(!wake::wake(&word), "woken already");
        wake::prepare(&word);
        wake::awake(&word);
        assert!(!wake::wake(&word));
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_wake_without_changing_the_word() {
    check(None, || {
        let sleep = Sleep::new();
        let producer = thread::spawn({
            let sleep = sleep.clone();
            move || {
                sleep.work[0].store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                if sleep.word.load(Ordering::Relaxed) & 1 != 0 {
                    sleep.kernel.wake();
                }
            }
        });
        sleep.wait_for(0);
        producer.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_sleep_on_a_value_read_after_the_look() {
    check(None, || {
        let sleep = Sleep::new();
        let producer = thread::spawn({
            let sleep = sleep.clone();
            move || sleep.give(0)
        });
        while !sleep.is_there(0) {
            wake::prepare(&sleep.word);
            if !sleep.is_there(0) {
                let value = sleep.word.load(Ordering::Relaxed);
                sleep.kernel.wait(&sleep.word, value);
            }
            wake::awake(&sleep.word);
        }
        producer.join().unwrap();
    });
}
