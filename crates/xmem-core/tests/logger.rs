// SPDX-License-Identifier: MPL-2.0

//! A program's logger may call the pool, so no lock is held during a call of the logger. A separate test program, because a process
//! has one logger.

mod support;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use support::raw::{Memory, Raw};
use support::*;
use xmem_core::{Delivery, Producer, Wait};

const SIZE: usize = 5000;

struct CallsBack;

/// The producers that the logger calls, and the logged messages.
static PRODUCERS: Mutex<Vec<Producer>> = Mutex::new(Vec::new());
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    static IS_LOGGING: Cell<bool> = const { Cell::new(false) };
}

impl Log for CallsBack {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A message that is caused by the calls below, also of another test's producer, causes no further calls.
        let is_nested = IS_LOGGING.replace(true);
        if !is_nested {
            let producers = PRODUCERS.lock().unwrap().clone();
            for producer in producers {
                // All functions that take the lock.
                drop(producer.acquire(SIZE));
                producer.stats();
            }
            IS_LOGGING.set(false);
        }
        LOGGED.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Calls a function with a producer that the logger calls back. Asserts that it ends, and that this message is logged.
#[track_caller]
fn logs(producer: Producer, what: &str, act: impl FnOnce(&Producer) + Send + 'static) {
    // The first test installs the logger.
    let _ = log::set_logger(&CallsBack);
    log::set_max_level(LevelFilter::Trace);
    PRODUCERS.lock().unwrap().push(producer.clone());
    let name = format!("{:?}", producer.pool());
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        act(&producer);
        done.send(()).unwrap();
    });
    is_done
        .recv_timeout(HANG)
        .expect("the logger hangs, or the thread panicked");
    thread.join().unwrap();
    eventually(what, || {
        let logged = LOGGED.lock().unwrap();
        logged
            .iter()
            .any(|line| line.contains(&name) && line.contains(what))
    });
    let is_it = |producer: &mut Producer| format!("{:?}", producer.pool()) == name;
    let mut producers = PRODUCERS.lock().unwrap();
    let producer: Vec<Producer> = producers.extract_if(.., is_it).collect();
    drop(producers);
    // Its end is logged as well.
    drop(producer);
}

#[test]
fn a_new_region() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    logs(producer, "a new region", |producer| {
        publish(producer, 1, SIZE);
    });
}

#[test]
fn budgets_that_become_smaller() {
    let place = Place::new();
    let builder = Producer::builder(place.pool()).history(1).max_slots(8);
    let producer = builder.build().unwrap();
    let _consumer = Raw::join(&place.pool(), 3);
    logs(producer, "max-slots leaves a budget of 0", |producer| {
        producer.set_upstream_need(4).unwrap();
    });
}

#[test]
fn a_consumer_that_is_cut_off() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let (_raw, joined) = Raw::join(&place.pool(), 3);
    // A cursor ahead of the stream.
    Memory::map(&joined.page, true).set(support::raw::CURSOR, 1 << 40);
    logs(producer, "cutting off", |producer| {
        publish(producer, 1, SIZE);
    });
}

#[test]
fn a_lossless_consumer_that_is_too_slow() {
    let place = Place::new();
    let producer = Producer::builder(place.pool())
        .delivery(Delivery::Lossless)
        .lossless_timeout(Some(Duration::from_millis(1)))
        .build()
        .unwrap();
    let _consumer = Raw::join(&place.pool(), 3);
    logs(producer, "held it up", |producer| {
        publish(producer, 1, SIZE);
        producer.drain(Wait::FOREVER).unwrap();
    });
}
