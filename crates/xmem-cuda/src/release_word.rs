// SPDX-License-Identifier: MPL-2.0

//! Release words. A release word keeps a value of this process, such as a frame, until a kernel stores 0 to the word.

use std::sync::{Arc, Mutex};

use xmem_shm::lock::lock;
use xmem_shm::os::mapping::{Access, Mapping};
use xmem_shm::os::memfd;
use xmem_shm::sync::{AtomicU32, Ordering};

use crate::device::Device;
use crate::error::CudaError;
use crate::host::{DEVICEMAP, Registered};
use crate::pending::{self, Ends};
use crate::{reaper, when};

const PAGE: usize = 4096;

/// The unused words. Their pages stay registered, because the driver may wait for the device when it registers or unregisters
/// memory.
static FREE: Mutex<Vec<Word>> = Mutex::new(Vec::new());

/// 32 bits of host memory that devices can write.
#[derive(Debug, Clone)]
struct Word {
    page: Arc<Registered>,
    device: Device,
    at: usize,
    address: u64,
}

impl Word {
    /// Allocates a page of words, and registers it with the device.
    fn page(device: &Device) -> Result<Vec<Self>, CudaError> {
        // The memory is shared, because after a fork the parent's next write to private memory would go to a copy of the page,
        // which the device does not use.
        let page = memfd::create("xmem-words", PAGE);
        let page = page.and_then(|fd| Mapping::new(fd, PAGE, Access::ReadWrite));
        let page = page.and_then(|mut page| page.keep_from_children().map(|()| page));
        let page = page.map_err(|error| {
            log::warn!("cannot map a page for release words: {error}");
            CudaError::Unsupported {
                what: "share a page of host memory",
            }
        })?;
        let page = Arc::new(Registered::new(&Arc::new(page), DEVICEMAP, device)?);
        let address = page.address(device)?;
        let word = |at: usize| Self {
            page: page.clone(),
            device: device.clone(),
            at,
            address: address + (at * size_of::<u32>()) as u64,
        };
        Ok((0..PAGE / size_of::<u32>()).map(word).collect())
    }

    fn value(&self) -> Option<&AtomicU32> {
        self.page
            .memory()
            .words32(self.at * size_of::<u32>(), 1)
            .first()
    }

    fn store(&self, value: u32) {
        if let Some(word) = self.value() {
            // Relaxed: the driver orders a later launch after this store, and the store publishes no other data.
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// A word in use. It returns to [`FREE`] when the value is dropped.
#[derive(Debug)]
struct Taken(Word);

impl Taken {
    fn new(device: &Device) -> Result<Self, CudaError> {
        device.check_process()?;
        let mut free = lock(&FREE);
        let at = free
            .iter()
            .position(|word| word.device.ordinal() == device.ordinal());
        let found = at.map(|at| free.swap_remove(at));
        drop(free);
        let word = match found {
            Some(word) => word,
            None => {
                let mut page = Word::page(device)?;
                let word = page.pop().ok_or(CudaError::Gone)?;
                lock(&FREE).append(&mut page);
                word
            }
        };
        word.store(1);
        Ok(Self(word))
    }

    fn is_over(&self) -> bool {
        // Acquire: pairs with the kernel's system-wide fence before its store of 0. So all reads of the kernel happened before.
        let value = self.0.value().map(|word| word.load(Ordering::Acquire));
        value.is_none_or(|value| value == 0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // Not in a forked child, because it does not have the pages, and a thread of the parent may have held the lock at the
        // fork.
        if self.0.device.is_of_this_process() {
            lock(&FREE).push(self.0.clone());
        }
    }
}

/// The kept value, as an entry in the list of pending ends.
struct Kept<T> {
    _kept: T,
    word: Arc<Taken>,
}

impl<T: Send> Ends for Kept<T> {
    fn end(self: Box<Self>) {}

    fn is_over(&self) -> bool {
        self.word.is_over()
    }
}

/// A word that keeps a value until a kernel stores 0 to the word.
///
/// If no kernel stores 0, the value is kept until [`end`](Self::end) is called, the device's context fails, or the process ends.
#[derive(Debug)]
pub struct ReleaseWord {
    word: Arc<Taken>,
    number: u64,
}

impl ReleaseWord {
    /// Drops `kept` after a kernel on `device` has stored 0 to the word. The drop may run on a thread that must not call the
    /// driver.
    ///
    /// # Errors
    ///
    /// [`CudaError::Forked`] in a forked child, [`CudaError::Driver`] if the device cannot write host memory.
    pub fn new(kept: impl Send + 'static, device: &Device) -> Result<Self, CudaError> {
        let word = Arc::new(Taken::new(device)?);
        let kept = Kept {
            _kept: kept,
            word: word.clone(),
        };
        let number = when::list_only(Box::new(kept), device);
        reaper::until(move || pending::end_if_over(number));
        Ok(Self { word, number })
    }

    /// The address of the 32-bit word on the device. The kernel stores 0 to it once, after a system-wide fence.
    pub fn ptr(&self) -> u64 {
        self.word.0.address
    }

    /// Drops the value now. No kernel may store to the word after this.
    pub fn end(&self) {
        pending::end(self.number);
    }
}
