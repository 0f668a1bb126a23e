// SPDX-License-Identifier: MPL-2.0

//! Reports to the producer about this consumer's devices. Nothing here calls a driver.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::meta::Text;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;

use super::link::Link;
use crate::stats::device_words;

/// The device half of a connection.
pub(crate) struct DeviceHalf {
    link: Arc<Link>,
    /// How this process came by device memory, as it was reported.
    text: Mutex<String>,
    asked_for_marks: AtomicBool,
    kept: Mutex<Option<Kept>>,
}

/// The state that the module `cuda` keeps with a connection.
type Kept = Arc<dyn Any + Send + Sync>;

impl DeviceHalf {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: link.clone(),
            text: Mutex::default(),
            asked_for_marks: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// How this process came by device memory. Empty if it has none, and in a forked child.
    pub(super) fn text(&self) -> String {
        if !self.link.is_of_this_process() {
            return String::new();
        }
        lock(&self.text).clone()
    }

    /// Reports to the producer how this process came by device memory.
    pub(crate) fn report(&self, works: bool, how: &str) {
        *lock(&self.text) = device_words(works, how);
        let how = Text::new(how);
        // The producer needs it for its figures only.
        let _ = self.link.send(&ToProducer::Device { works, how });
        fault::point(Point::DeviceSaid);
    }

    /// Has the producer mark frames when devices are done with them. Asked for once, and again if that could not be sent.
    pub(crate) fn ask_for_marks(&self) {
        if !self.asked_for_marks.swap(true, Ordering::Relaxed)
            && self.link.send(&ToProducer::MarkReady).is_err()
        {
            self.asked_for_marks.store(false, Ordering::Relaxed);
        }
    }

    /// A place in which the module `cuda` keeps something for as long as the connection lives.
    pub(crate) fn kept(&self) -> MutexGuard<'_, Option<Kept>> {
        lock(&self.kept)
    }
}
