// SPDX-License-Identifier: MPL-2.0

//! Registers host memory with devices for direct access, and keeps work off the driver's threads.

use xmem_cuda::device::Device;
use xmem_cuda::{pending, reaper};
use xmem_shm::lock::inside;

use crate::region::{Memory, Region, RegionView};

pub(crate) use xmem_cuda::copy::Pinned;
pub(crate) use xmem_cuda::reaper::until;

impl Region {
    /// Registers the region with a device, if possible.
    pub(crate) fn pin(&self, device: &Device) {
        if let Self::Memfd(region) = self {
            region.pinned.pin(&region.mapping, false, device);
        }
    }
}

impl RegionView {
    /// Registers the region with a device, if possible.
    pub(crate) fn pin(&self, device: &Device) {
        if let Memory::Memfd(mapping, _) = &self.memory {
            // For reading only, even if it is mapped for writing.
            self.pinned.pin(mapping, true, device);
        }
    }
}

/// On a thread of the driver, drops what was derived from the region on another thread. Release hooks run with it, and are code of
/// the program that may call the driver.
impl Drop for RegionView {
    fn drop(&mut self) {
        let derived = inside(&mut self.derived);
        if !derived.is_empty() && pending::is_host_function() {
            let derived = std::mem::take(derived);
            reaper::elsewhere(move || drop(derived));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use xmem_cuda::pending::as_host_function;

    use super::*;
    use crate::region::{Backing, RegionSettings, Ticket};

    /// Reports the thread on which it is dropped.
    #[derive(Clone)]
    struct Reports(Sender<Option<String>>);

    impl Drop for Reports {
        fn drop(&mut self) {
            let _ = self
                .0
                .send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn objects_over_a_region_are_not_dropped_on_a_driver_thread() {
        let settings = RegionSettings {
            backing: Backing::Memfd,
            shm_prefix: "",
            udmabuf: None,
        };
        let region = Region::create(4096, settings).unwrap();
        let view = || {
            let Ticket::Memfd(fd) = region.ticket() else {
                panic!("no other kind was asked for");
            };
            let fd = fd.try_clone_to_owned().unwrap();
            RegionView::open(Ticket::Memfd(fd), 4096).unwrap()
        };
        let (send, receive) = channel();
        let used = view();
        used.derive(1, Reports(send.clone()), |_| true);
        as_host_function(|| drop(used));
        assert_eq!(receive.recv().unwrap().as_deref(), Some("xmem-cuda-ends"));
        let used = view();
        used.derive(1, Reports(send), |_| true);
        drop(used);
        assert_eq!(
            receive.recv().unwrap().as_deref(),
            std::thread::current().name()
        );
    }
}
