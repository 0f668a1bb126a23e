// SPDX-License-Identifier: MPL-2.0

//! Consumers that join and die: the list of lease pages.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use xmem_shm::protocol::lease::{self, Hold};

use crate::slot::{Slot, holds};
use crate::{check, spawn};

type Pages = Mutex<Vec<Arc<AtomicU32>>>;

/// A consumer adds its page to the list and takes the frame.
fn joining(slot: &Arc<Slot>, pages: &Arc<Pages>) -> thread::JoinHandle<()> {
    let (slot, pages) = (slot.clone(), pages.clone());
    thread::spawn(move || {
        let page = Arc::new(AtomicU32::new(0));
        pages.lock().unwrap().push(page.clone());
        slot.consume(&page, 1);
    })
}

/// The producer adds a joining consumer's page to the list before the consumer has it.
#[test]
fn a_consumer_joins_meanwhile() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let pages = Arc::new(Pages::default());
        let control = spawn((slot.clone(), pages.clone()), |(slot, pages)| {
            let page = Arc::new(AtomicU32::new(0));
            pages.lock().unwrap().push(page.clone());
            thread::spawn(move || slot.consume(&page, 1))
                .join()
                .unwrap();
        });
        {
            let pages = pages.lock().unwrap();
            slot.produce(|generation| pages.iter().any(|page| holds(page, generation)));
        }
        control.join().unwrap();
    });
}

/// The list may also be read without its lock, if it is read after the slot was claimed.
#[test]
fn a_consumer_joins_while_a_slot_is_claimed() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let pages = Arc::new(Pages::default());
        let consumer = joining(&slot, &pages);
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
        let consumer = joining(&slot, &pages);
        let known = pages.lock().unwrap().clone();
        slot.produce(|generation| known.iter().any(|page| holds(page, generation)));
        consumer.join().unwrap();
    });
}

/// A consumer that ends while its lease is set.
fn dying(slot: &Arc<Slot>, page: Arc<AtomicU32>) -> thread::JoinHandle<()> {
    let slot = slot.clone();
    thread::spawn(move || {
        if lease::hold(&slot.word, &page, 1) == Hold::Held {
            assert_eq!(slot.read(), 1);
        }
    })
}

/// A consumer dies while it holds a frame, or while it takes one. Afterwards its page is dropped, and the slot is free.
#[test]
fn a_dead_consumers_slot_is_reclaimed() {
    check(Some(3), || {
        let slot = Arc::new(Slot::published());
        let page = Arc::new(AtomicU32::new(0));
        let pages = Arc::new(Mutex::new(vec![page.clone()]));
        let dying = dying(&slot, page);
        let reaper = spawn(pages.clone(), move |pages| {
            dying.join().unwrap();
            pages.lock().unwrap().clear();
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

/// One consumer dies, and another one holds the same frame: the slot is free when the death is detected and the other lease is
/// released.
#[test]
fn a_slot_is_reclaimed_from_the_dead_and_kept_for_the_living() {
    check(Some(2), || {
        let slot = Arc::new(Slot::published());
        let page = |_| Arc::new(AtomicU32::new(0));
        let [dead, living] = [0, 1].map(page);
        let pages = Arc::new(Mutex::new(vec![dead.clone(), living.clone()]));
        let dying = dying(&slot, dead);
        let reading = spawn(slot.clone(), move |slot| slot.consume(&living, 1));
        let produce = |pages: &[Arc<AtomicU32>]| {
            slot.produce(|generation| pages.iter().any(|page| holds(page, generation)))
        };
        produce(&pages.lock().unwrap());
        dying.join().unwrap();
        // Its connection was closed.
        pages.lock().unwrap().remove(0);
        produce(&pages.lock().unwrap());
        reading.join().unwrap();
        assert!(produce(&pages.lock().unwrap()), "free again at the end");
    });
}
