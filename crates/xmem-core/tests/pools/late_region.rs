// SPDX-License-Identifier: MPL-2.0

//! A region that reaches a consumer after it was retired. The model in xmem-shm's `tests/exhaustive` found this case.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::support::raw::{self, Fake, Memory, Raw};
use crate::support::*;
use rustix::fs::{fstat, major, minor};
use xmem_core::{Canceller, Consumer, ReceiveError};

const GET_REGION: u8 = 3;
const GET_STICKY: u8 = 4;

/// Answers requests for the sticky state until the region is requested.
fn until_the_region_is_asked_for(raw: &Raw) {
    loop {
        match raw.recv().expect("a question").0[0] {
            GET_REGION => return,
            GET_STICKY => raw.send(&raw::sticky(1), &[sticky().as_fd()]).unwrap(),
            _ => {}
        }
    }
}

fn sticky() -> OwnedFd {
    raw::memory(8, true)
}

#[test]
fn a_region_that_arrives_after_it_was_retired_is_not_kept() {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    raw::publish_entry(&control, 0, &[]);
    let page_fd = raw::memory(1 << 16, true);
    let page = Memory::map(&page_fd, true);
    let region = raw::memory(8192, true);
    let stat = fstat(&region).unwrap();
    let file = format!(
        "{:02x}:{:02x} {}",
        major(stat.st_dev),
        minor(stat.st_dev),
        stat.st_ino
    );
    let pool = place.pool();
    std::thread::scope(|scope| {
        let cancel = Canceller::new();
        let builder = Consumer::builder(&pool).canceller(&cancel);
        let consumer = scope.spawn(move || builder.connect().unwrap());
        let raw = fake.welcome(&control_fd, &page_fd);
        let mut consumer = consumer.join().unwrap();
        let asking = scope.spawn(move || {
            let result = consumer.receive(Some(HANG));
            (consumer, result)
        });
        until_the_region_is_asked_for(&raw);
        cancel.cancel();
        let (mut consumer, result) = asking.join().unwrap();
        assert!(matches!(result, Err(ReceiveError::Cancelled)), "{result:?}");
        cancel.reset();

        // The frame's slot is claimed, and the region is removed.
        control.set(raw::SLOTS + 1, 6 << 32);
        control.set(raw::SLOTS + 4, 0);
        control.set(raw::REGIONS_VERSION, 1);
        let receiving = scope.spawn(move || {
            let result = consumer.receive(Some(HANG));
            (consumer, result)
        });
        eventually("the consumer reports the release", || {
            page.words()[raw::REGIONS_SEEN].load(Ordering::Acquire) == 1
        });
        // The producer has removed the region. The answer to the first request arrives now.
        raw.send(&raw::region(1, 8192, 0, ""), &[region.as_fd()])
            .unwrap();
        eventually("the consumer goes on without the frame", || {
            page.words()[raw::CURSOR].load(Ordering::Acquire) == 1
        });
        eventually("it unmaps the released region", || mapped(&file) == 0);
        drop(raw);
        let (_consumer, result) = receiving.join().unwrap();
        assert!(
            matches!(result, Err(ReceiveError::ProducerLost)),
            "{result:?}"
        );
    });
}
