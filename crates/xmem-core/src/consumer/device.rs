// SPDX-License-Identifier: MPL-2.0

//! Reports about this consumer's devices to the producer. This file calls no driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use xmem_shm::abi::text::Text;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;

use super::link::Link;
use crate::stats::device_words;

/// The device state of a connection.
pub(crate) struct DeviceHalf {
    link: Arc<Link>,
    /// How this process opened device memory, as reported.
    text: Mutex<String>,
    asked_for_marks: AtomicBool,
}

impl DeviceHalf {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: link.clone(),
            text: Mutex::default(),
            asked_for_marks: AtomicBool::new(false),
        }
    }

    /// How this process opened device memory. Empty if it has none, and in a forked child.
    pub(super) fn text(&self) -> String {
        if !self.link.is_of_this_process() {
            return String::new();
        }
        lock(&self.text).clone()
    }

    /// Reports to the producer how this process opened device memory.
    pub(crate) fn report(&self, works: bool, how: &str) {
        *lock(&self.text) = device_words(works, how);
        let how = Text::new(how);
        // The producer uses it only for its figures, so an error is ignored.
        let _ = self.link.send(&ToProducer::Device { works, how });
        fault::point(Point::DeviceSaid);
    }

    /// Requests that the producer marks frames whose work has ended. Sent once, and again if that failed.
    pub(crate) fn ask_for_marks(&self) {
        if !self.asked_for_marks.swap(true, Ordering::Relaxed)
            && self.link.send(&ToProducer::MarkReady).is_err()
        {
            self.asked_for_marks.store(false, Ordering::Relaxed);
        }
    }
}
