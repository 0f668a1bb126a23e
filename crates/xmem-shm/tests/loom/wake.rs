// SPDX-License-Identifier: MPL-2.0

//! Sleeping consumers and their wake-ups.

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use xmem_shm::protocol::wake::{self, Sleeper};

use crate::{check, spawn};

/// A futex with the kernel's semantics: the value is compared and the sleeper queued in one step.
#[derive(Default)]
struct Kernel {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Kernel {
    fn wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.lock.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            // If the consumer is never woken, loom reports a deadlock.
            drop(self.sleepers.wait(queue).unwrap());
        }
    }

    fn wake(&self) {
        let _queue = self.lock.lock().unwrap();
        self.sleepers.notify_one();
    }
}

/// The wake sockets that a consumer watches together: readable from a wake-up until the consumer has noted it.
#[derive(Default)]
struct Sockets {
    readable: Mutex<bool>,
    sleepers: Condvar,
}

impl Sockets {
    fn wait(&self) {
        let mut readable = self.readable.lock().unwrap();
        while !*readable {
            readable = self.sleepers.wait(readable).unwrap();
        }
        *readable = false;
    }

    fn drain(&self) {
        *self.readable.lock().unwrap() = false;
    }

    fn wake(&self) {
        *self.readable.lock().unwrap() = true;
        self.sleepers.notify_one();
    }
}

struct Sleep {
    word: AtomicU32,
    kernel: Kernel,
    sockets: Sockets,
    work: [AtomicBool; 2],
}

impl Sleep {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(0),
            kernel: Kernel::default(),
            sockets: Sockets::default(),
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

    /// As `wait_for`, by the socket.
    fn wait_for_socket(&self, work: usize) {
        while !self.is_there(work) {
            wake::announce_by_socket(&self.word);
            wake::announced();
            if !self.is_there(work) {
                self.sockets.wait();
            }
        }
    }

    fn give(&self, work: usize) {
        self.work[work].store(true, Ordering::Release);
        match wake::wake(&self.word) {
            Some(Sleeper::Futex) => self.kernel.wake(),
            Some(Sleeper::Socket) => self.sockets.wake(),
            None => {}
        }
    }

    /// As `give`, by the consumer's own process.
    fn give_own(&self, work: usize) {
        self.work[work].store(true, Ordering::Release);
        wake::change(&self.word);
        self.kernel.wake();
        self.sockets.wake();
    }

    /// A producer that is killed before it wakes the consumer, and a thread of the consumer that gives it work.
    fn with_killed_producer(give: fn(&Self, usize), wait_for: fn(&Self, usize)) {
        check(None, move || {
            let sleep = Self::new();
            let producer = spawn(sleep.clone(), move |sleep| {
                let _ = wake::wake(&sleep.word);
            });
            let own = spawn(sleep.clone(), move |sleep| give(&sleep, 0));
            wait_for(&sleep, 0);
            producer.join().unwrap();
            own.join().unwrap();
        });
    }
}

/// A producer that gives two pieces of work, for which the consumer waits in these ways.
fn two_pieces(give: fn(&Sleep, usize), waits: [fn(&Sleep, usize); 2]) {
    check(None, move || {
        let sleep = Sleep::new();
        let producer = spawn(sleep.clone(), move |sleep| {
            [0, 1].into_iter().for_each(|work| give(&sleep, work))
        });
        let [first, second] = waits;
        first(&sleep, 0);
        second(&sleep, 1);
        producer.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    two_pieces(Sleep::give, [Sleep::wait_for; 2]);
    two_pieces(Sleep::give, [Sleep::wait_for_socket; 2]);
}

/// A request for one way to be woken may be left when the consumer waits in the other way.
#[test]
fn no_wake_up_is_lost_between_two_ways_to_wait() {
    let ways: [fn(&Sleep, usize); 2] = [Sleep::wait_for_socket, Sleep::wait_for];
    two_pieces(Sleep::give, ways);
    two_pieces(Sleep::give, [ways[1], ways[0]]);
}

/// The kernel had no memory for the first message to the socket.
#[test]
fn the_next_frame_wakes_a_consumer_for_which_there_was_no_memory() {
    check(None, || {
        let sleep = Sleep::new();
        let producer = spawn(sleep.clone(), |sleep| {
            sleep.work[0].store(true, Ordering::Release);
            if wake::wake(&sleep.word).is_some() {
                wake::mark_by_socket(&sleep.word);
            }
            sleep.give(1);
        });
        sleep.wait_for_socket(1);
        producer.join().unwrap();
    });
}

/// A consumer of two pools, which leaves the request of one wait for the next.
#[test]
fn no_wake_up_is_lost_among_several_words() {
    check(Some(3), || {
        let sockets = Arc::new(Sockets::default());
        let pools = [(); 2].map(|()| Arc::new((AtomicU32::new(0), AtomicBool::new(false))));
        let producers = pools.clone().map(|pool| {
            let sockets = sockets.clone();
            thread::spawn(move || {
                pool.1.store(true, Ordering::Release);
                if wake::wake(&pool.0) == Some(Sleeper::Socket) {
                    sockets.wake();
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
            pools
                .iter()
                .for_each(|pool| wake::announce_by_socket(&pool.0));
            wake::announced();
            let mut left = pools.iter().zip(taken).filter(|(_, taken)| !taken);
            if !left.any(|(pool, _)| is_there(pool)) {
                sockets.wait();
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
    Sleep::with_killed_producer(Sleep::give_own, Sleep::wait_for);
    Sleep::with_killed_producer(Sleep::give_own, Sleep::wait_for_socket);
}

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_wake_that_trusts_the_mark_of_a_killed_producer() {
    Sleep::with_killed_producer(Sleep::give, Sleep::wait_for);
}

/// A consumer that does not sleep causes no system call.
#[test]
fn a_consumer_that_is_awake_is_not_woken() {
    loom::model(|| {
        let word = AtomicU32::new(0);
        assert_eq!(wake::wake(&word), None);
        wake::prepare(&word);
        assert_eq!(wake::wake(&word), Some(Sleeper::Futex), "about to sleep");
        assert_eq!(wake::wake(&word), None, "woken already");
        wake::prepare(&word);
        wake::awake(&word);
        assert_eq!(wake::wake(&word), None);
        wake::announce_by_socket(&word);
        assert_eq!(wake::wake(&word), Some(Sleeper::Socket));
        assert_eq!(wake::wake(&word), None, "woken already");
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_wake_without_changing_the_word() {
    check(None, || {
        let sleep = Sleep::new();
        let producer = spawn(sleep.clone(), |sleep| {
            sleep.work[0].store(true, Ordering::Release);
            fence(Ordering::SeqCst);
            if sleep.word.load(Ordering::Relaxed) & 1 != 0 {
                sleep.kernel.wake();
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
        let producer = spawn(sleep.clone(), |sleep| sleep.give(0));
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

#[test]
#[should_panic(expected = "deadlock")]
fn wrong_drain_after_the_look() {
    let wait_for = |sleep: &Sleep, work| {
        while !sleep.is_there(work) {
            wake::announce_by_socket(&sleep.word);
            wake::announced();
            if !sleep.is_there(work) {
                sleep.sockets.drain();
                sleep.sockets.wait();
            }
        }
    };
    two_pieces(Sleep::give, [wait_for; 2]);
}
