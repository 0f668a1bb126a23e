// SPDX-License-Identifier: MPL-2.0

//! Every interleaving of the slot protocol, and of what the memory model allows, explored by loom.
//!
//! `RUSTFLAGS="--cfg xmem_loom" cargo test -p xmem-core --release --test loom`
//!
//! The models whose names begin with `wrong_` are protocols that look right and are not. They show that the others
//! would fail if the code did.
#![cfg(xmem_loom)]
#![allow(unsafe_code)] // the frame's bytes: a cell whose races loom reports

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use xmem_core::protocol::lease::{self, Hold};
use xmem_core::protocol::slot::{SlotState, SlotWord};
use xmem_core::protocol::{regions, ring, wake};

/// All interleavings with at most this many preemptions; `None`: simply all.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// A slot with a frame of one word in it, which is its generation.
struct Slot {
    word: AtomicU64,
    frame: UnsafeCell<u32>,
}

impl Slot {
    /// Holds the frame of generation 1.
    fn published() -> Self {
        Self {
            word: AtomicU64::new(SlotWord::new(1, SlotState::Published).0),
            frame: UnsafeCell::new(1),
        }
    }

    fn write(&self, generation: u32) {
        self.frame.with_mut(|frame| {
            // SAFETY: what this test is about; loom reports any access at the same time.
            unsafe { *frame = generation }
        });
    }

    fn read(&self) -> u32 {
        self.frame.with(|frame| {
            // SAFETY: as above.
            unsafe { *frame }
        })
    }

    /// The producer's turn: claims the slot, writes a frame, publishes it. Returns whether it could.
    fn produce(&self, held: impl FnOnce(u32) -> bool) -> bool {
        let Some(word) = lease::claim(&self.word, held) else {
            return false;
        };
        self.write(word.generation());
        lease::publish(&self.word, word, false);
        true
    }

    /// A consumer's turn: holds the frame, reads it twice, gives it back. Returns whether it could.
    fn consume(&self, lease: &AtomicU32, generation: u32) -> bool {
        if lease::hold(&self.word, lease, generation) != Hold::Held {
            assert_eq!(lease.load(Ordering::Relaxed), 0, "a lease that nobody has");
            return false;
        }
        assert_eq!(self.read(), generation);
        assert_eq!(self.read(), generation);
        lease::release(&self.word, lease);
        true
    }
}

fn holds(lease: &AtomicU32, generation: u32) -> bool {
    lease.load(Ordering::Relaxed) == generation
}

#[test]
fn hold_and_claim_keep_out_of_each_others_way() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || {
                slot.consume(&lease, 1);
                // The frame after it, if it is there by now.
                slot.consume(&lease, 2);
            }
        });
        for _ in 0..2 {
            slot.produce(|generation| holds(&lease, generation));
        }
        consumer.join().unwrap();
        assert!(
            slot.produce(|generation| holds(&lease, generation)),
            "free again at the end"
        );
    });
}

#[test]
fn two_consumers_and_a_producer() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let leases = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let consumers = [0, 1].map(|n| {
            let (slot, leases) = (slot.clone(), leases.clone());
            thread::spawn(move || {
                slot.consume(&leases[n], 1);
            })
        });
        slot.produce(|generation| leases.iter().any(|lease| holds(lease, generation)));
        for consumer in consumers {
            consumer.join().unwrap();
        }
        assert!(slot.produce(|generation| leases.iter().any(|lease| holds(lease, generation))));
    });
}

/// A claim that finds a lease puts the slot back, frame and all, also for a consumer that comes just then.
#[test]
fn a_refused_claim_changes_nothing() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        // One consumer holds it all the time.
        let first = Arc::new(AtomicU32::new(1));
        let second = Arc::new(AtomicU32::new(0));
        let joining = thread::spawn({
            let (slot, second) = (slot.clone(), second.clone());
            move || match lease::hold(&slot.word, &second, 1) {
                Hold::Held => {
                    assert_eq!(slot.read(), 1);
                    lease::release(&slot.word, &second);
                }
                Hold::Claimed => {}
                Hold::Gone => panic!("it was there all the time"),
            }
        });
        let held = |generation| holds(&first, generation) || holds(&second, generation);
        assert!(!slot.produce(held));
        assert!(!slot.produce(held));
        assert_eq!(slot.read(), 1);
        joining.join().unwrap();
        assert_eq!(
            slot.word.load(Ordering::Relaxed),
            SlotWord::new(1, SlotState::Published).0
        );
    });
}

type Pages = Mutex<Vec<Arc<AtomicU32>>>;

/// Whoever lets a consumer in puts its page into the list before the consumer has it.
#[test]
fn a_consumer_joins_meanwhile() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let pages = Arc::new(Pages::default());
        let control = thread::spawn({
            let (slot, pages) = (slot.clone(), pages.clone());
            move || {
                let page = Arc::new(AtomicU32::new(0));
                pages.lock().unwrap().push(page.clone());
                thread::spawn(move || slot.consume(&page, 1))
                    .join()
                    .unwrap();
            }
        });
        {
            let pages = pages.lock().unwrap();
            slot.produce(|generation| pages.iter().any(|page| holds(page, generation)));
        }
        control.join().unwrap();
    });
}

/// The list may also be read without its lock, if it is read after the slot is claimed.
#[test]
fn a_consumer_joins_while_a_slot_is_claimed() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let pages = Arc::new(Pages::default());
        let consumer = thread::spawn({
            let (slot, pages) = (slot.clone(), pages.clone());
            move || {
                let page = Arc::new(AtomicU32::new(0));
                pages.lock().unwrap().push(page.clone());
                slot.consume(&page, 1);
            }
        });
        slot.produce(|generation| {
            let pages = pages.lock().unwrap().clone();
            pages.iter().any(|page| holds(page, generation))
        });
        consumer.join().unwrap();
    });
}

#[test]
#[should_panic]
fn wrong_the_list_of_consumers_is_read_before_the_claim() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let pages = Arc::new(Pages::default());
        let consumer = thread::spawn({
            let (slot, pages) = (slot.clone(), pages.clone());
            move || {
                let page = Arc::new(AtomicU32::new(0));
                pages.lock().unwrap().push(page.clone());
                slot.consume(&page, 1);
            }
        });
        let known = pages.lock().unwrap().clone();
        slot.produce(|generation| known.iter().any(|page| holds(page, generation)));
        consumer.join().unwrap();
    });
}

#[test]
#[should_panic]
fn wrong_validate_then_announce() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || {
                let word = SlotWord(slot.word.load(Ordering::Acquire));
                fence(Ordering::SeqCst);
                if word.generation() == 1 && word.state() == Some(SlotState::Published) {
                    lease.store(1, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    assert_eq!(slot.read(), 1);
                    lease::release(&slot.word, &lease);
                }
            }
        });
        slot.produce(|generation| holds(&lease, generation));
        consumer.join().unwrap();
    });
}

#[test]
#[should_panic]
fn wrong_scan_then_claim() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || slot.consume(&lease, 1)
        });
        let held = holds(&lease, 1);
        fence(Ordering::SeqCst);
        slot.produce(|_| held);
        consumer.join().unwrap();
    });
}

/// Release and acquire are not enough: the store may still be on its way when the load is done.
#[test]
#[should_panic]
fn wrong_announce_without_a_full_fence() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || {
                lease.store(1, Ordering::Release);
                let word = SlotWord(slot.word.load(Ordering::Acquire));
                if word == SlotWord::new(1, SlotState::Published) {
                    assert_eq!(slot.read(), 1);
                }
                lease::release(&slot.word, &lease);
            }
        });
        slot.produce(|generation| holds(&lease, generation));
        consumer.join().unwrap();
    });
}

/// A consumer that leaves it to a device to end its lease on a frame, and may take the same frame again: `again` does so.
fn a_device_ends_a_lease(again: fn(&Slot, &AtomicU32)) {
    check(Some(3), move || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(0));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || {
                if lease::hold(&slot.word, &lease, 1) != Hold::Held {
                    return;
                }
                let device = thread::spawn({
                    let (slot, lease) = (slot.clone(), lease.clone());
                    move || {
                        assert_eq!(slot.read(), 1);
                        // A plain store: it does not look whose lease it ends.
                        lease.store(0, Ordering::Release);
                    }
                });
                again(&slot, &lease);
                device.join().unwrap();
            }
        });
        slot.produce(|generation| holds(&lease, generation));
        consumer.join().unwrap();
    });
}

#[test]
fn a_device_ends_a_lease_and_the_slot_is_held_again_when_that_is_seen() {
    a_device_ends_a_lease(|slot, lease| {
        if lease.load(Ordering::Acquire) == 0 {
            slot.consume(lease, 1);
        }
    });
}

#[test]
#[should_panic]
fn wrong_a_slot_is_held_again_before_a_device_has_ended_its_lease() {
    a_device_ends_a_lease(|slot, lease| {
        slot.consume(lease, 1);
    });
}

/// A consumer dies while it holds a frame, or tries to. When it is dead its page is dropped, and the slot is free.
#[test]
fn a_dead_consumers_slot_is_reclaimed() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let page = Arc::new(AtomicU32::new(0));
        let pages = Arc::new(Mutex::new(vec![page.clone()]));
        let dying = thread::spawn({
            let slot = slot.clone();
            move || {
                if lease::hold(&slot.word, &page, 1) == Hold::Held {
                    assert_eq!(slot.read(), 1);
                }
                // Dies here, with its lease.
            }
        });
        let reaper = thread::spawn({
            let pages = pages.clone();
            move || {
                dying.join().unwrap();
                pages.lock().unwrap().clear();
            }
        });
        let produce = || {
            let pages = pages.lock().unwrap();
            slot.produce(|generation| pages.iter().any(|page| holds(page, generation)))
        };
        produce();
        reaper.join().unwrap();
        assert!(produce());
    });
}

/// One consumer dies, another one holds the same frame: the slot is free when the one is noticed and the other is done.
#[test]
fn a_slot_is_reclaimed_from_the_dead_and_kept_for_the_living() {
    check(Some(2), || {
        let slot = Arc::new(Slot::published());
        let page = |_| Arc::new(AtomicU32::new(0));
        let [dead, living] = [0, 1].map(page);
        let pages = Arc::new(Mutex::new(vec![dead.clone(), living.clone()]));
        let dying = thread::spawn({
            let slot = slot.clone();
            move || {
                if lease::hold(&slot.word, &dead, 1) == Hold::Held {
                    assert_eq!(slot.read(), 1);
                }
                // Dies here, with its lease.
            }
        });
        let reading = thread::spawn({
            let slot = slot.clone();
            move || slot.consume(&living, 1)
        });
        let produce = |pages: &[Arc<AtomicU32>]| {
            slot.produce(|generation| pages.iter().any(|page| holds(page, generation)))
        };
        produce(&pages.lock().unwrap());
        dying.join().unwrap();
        // HUP.
        pages.lock().unwrap().remove(0);
        produce(&pages.lock().unwrap());
        reading.join().unwrap();
        assert!(produce(&pages.lock().unwrap()), "free again at the end");
    });
}

/// Who gives back and who asks to be told cannot miss each other.
#[test]
fn release_and_ask_to_ring_see_each_other() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(1));
        let consumer = thread::spawn({
            let (slot, lease) = (slot.clone(), lease.clone());
            move || {
                assert_eq!(slot.read(), 1);
                lease::release(&slot.word, &lease)
            }
        });
        lease::ask_to_ring(&slot.word);
        let free = !holds(&lease, 1);
        let rings = consumer.join().unwrap();
        assert!(rings || free, "given back, and nobody knows");
    });
}

/// The same with the count of waiting threads, which a consumer looks at after it gave back.
#[test]
fn release_and_a_waiting_producer_see_each_other() {
    check(None, || {
        let slot = Arc::new(Slot::published());
        let lease = Arc::new(AtomicU32::new(1));
        let waiting = Arc::new(AtomicU64::new(0));
        let consumer = thread::spawn({
            let (slot, lease, waiting) = (slot.clone(), lease.clone(), waiting.clone());
            move || {
                lease::release(&slot.word, &lease);
                waiting.load(Ordering::Relaxed) != 0
            }
        });
        waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let free = !holds(&lease, 1);
        let rings = consumer.join().unwrap();
        assert!(rings || free, "given back, and nobody knows");
    });
}

#[test]
#[should_panic(expected = "nobody knows")]
fn wrong_a_flag_without_fences() {
    check(None, || {
        let lease = Arc::new(AtomicU32::new(1));
        let waiting = Arc::new(AtomicU64::new(0));
        let consumer = thread::spawn({
            let (lease, waiting) = (lease.clone(), waiting.clone());
            move || {
                lease.store(0, Ordering::Release);
                waiting.load(Ordering::Acquire) != 0
            }
        });
        waiting.store(1, Ordering::Release);
        let free = lease.load(Ordering::Acquire) == 0;
        let rings = consumer.join().unwrap();
        assert!(rings || free, "given back, and nobody knows");
    });
}

/// An entry with two words of payload.
fn entry() -> [AtomicU64; 3] {
    [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]
}

#[test]
fn ring_entries_are_never_mixed() {
    check(None, || {
        let entry = Arc::new(entry());
        let reader = thread::spawn({
            let entry = entry.clone();
            move || {
                let mut words = [0; 2];
                for sequence in [3, 7] {
                    if ring::read(&entry[..], sequence, &mut words) {
                        assert_eq!(words, [sequence * 10, sequence * 10 + 1]);
                    }
                }
            }
        });
        for sequence in [3, 7] {
            ring::write(&entry[..], sequence, &[sequence * 10, sequence * 10 + 1]);
        }
        reader.join().unwrap();
        let mut words = [0; 2];
        assert!(!ring::read(&entry[..], 3, &mut words));
        assert!(ring::read(&entry[..], 7, &mut words));
    });
}

#[test]
fn the_newest_entry_of_a_slot_is_never_mixed() {
    check(None, || {
        let entry = Arc::new(entry());
        let reader = thread::spawn({
            let entry = entry.clone();
            move || {
                let mut words = [0; 2];
                if ring::read_any(&entry[..], &mut words) {
                    assert_eq!(words[0] + 1, words[1]);
                    assert_ne!(words[0], 0);
                }
            }
        });
        ring::write(&entry[..], 0, &[10, 11]);
        ring::write(&entry[..], 1, &[20, 21]);
        reader.join().unwrap();
    });
}

/// An entry that is there when the head says so.
#[test]
fn the_head_comes_after_its_entry() {
    check(None, || {
        let entry = Arc::new(entry());
        let head = Arc::new(AtomicU64::new(0));
        let reader = thread::spawn({
            let (entry, head) = (entry.clone(), head.clone());
            move || {
                if head.load(Ordering::Relaxed) == 1 {
                    fence(Ordering::Acquire);
                    let mut words = [0; 2];
                    assert!(ring::read(&entry[..], 0, &mut words));
                    assert_eq!(words, [10, 11]);
                }
            }
        });
        ring::write(&entry[..], 0, &[10, 11]);
        head.store(1, Ordering::Release);
        reader.join().unwrap();
    });
}

#[test]
#[should_panic]
fn wrong_a_reader_that_does_not_look_again() {
    check(None, || {
        let entry = Arc::new(entry());
        ring::write(&entry[..], 0, &[10, 11]);
        let reader = thread::spawn({
            let entry = entry.clone();
            move || {
                if entry[0].load(Ordering::Acquire) == 2 {
                    let words = [1, 2].map(|at| entry[at].load(Ordering::Relaxed));
                    assert_eq!(words, [10, 11]);
                }
            }
        });
        ring::write(&entry[..], 1, &[20, 21]);
        reader.join().unwrap();
    });
}

/// A futex as the kernel does it: the value is compared, and the sleeper queued, in one step.
#[derive(Default)]
struct Kernel {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Kernel {
    fn wait(&self, word: &AtomicU32, value: u32) {
        let queue = self.lock.lock().unwrap();
        if word.load(Ordering::SeqCst) == value {
            // Who is never woken shows as a deadlock.
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

    /// The consumer: sleeps until this work is there.
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

/// The producer and the consumer's own control thread, both at once.
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

/// Nobody asleep, no system call: a consumer that is awake is not woken.
#[test]
fn who_is_awake_is_not_woken() {
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

/// A list of regions, and the memory of the first.
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

    /// A consumer that has the first region mapped looks whether it went. Says up to which version it has let go.
    fn sweep(&self) -> u32 {
        let version = regions::version(&self.version);
        let ids: Vec<u32> = regions::list(&self.words).collect();
        assert!(ids.contains(&2), "region 2 is in use all the time: {ids:?}");
        if ids.contains(&1) {
            assert_eq!(version, 0, "an older list with a newer version");
            self.first.with(|first| {
                // SAFETY: what this test is about; loom reports any access at the same time.
                assert_eq!(unsafe { *first }, 7);
            });
        }
        version
    }
}

/// A region goes, and another comes: its memory is free when both consumers have said that they let go.
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

/// A pool grows: whoever sees a frame sees its region, in the list and in what the producer answers.
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
        ring::write(&entry[..], 0, &[3, 0]);
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
        let consumer = thread::spawn({
            let pool = pool.clone();
            move || {
                let ids = [0, 1, 2].map(|at| {
                    let id = pool.words[at].load(Ordering::Relaxed);
                    fence(Ordering::Acquire);
                    id
                });
                assert!(ids.contains(&2), "region 2 is in use all the time: {ids:?}");
            }
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
        let consumer = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.sweep();
            }
        });
        pool.version.store(1, Ordering::Release);
        regions::show(&pool.words, &pool.version, [2].into_iter(), 1);
        consumer.join().unwrap();
    });
}
