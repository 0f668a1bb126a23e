// SPDX-License-Identifier: MPL-2.0

//! Words that a kernel stores 0 to when it is done with something that this process keeps for it.

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

/// The words that are not in use. Their pages stay registered. Reason: the driver may wait for the device when it registers or
/// unregisters memory.
static FREE: Mutex<Vec<Word>> = Mutex::new(Vec::new());

/// 32 bits of host memory that devices can write.
#[derive(Debug, Clone)]
struct Word {
    page: Arc<Registered<Mapping>>,
    device: Device,
    at: usize,
    address: u64,
}

impl Word {
    /// A new page of words.
    fn page(device: &Device) -> Result<Vec<Self>, CudaError> {
        // Shared memory. Reason: after a fork the parent's next write to private memory would go to another page than the device's.
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
            // Relaxed: the driver orders a launch after it, and nothing is read by it.
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// A word in use, which is free again after this.
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
        // Acquire: pairs with the kernel's fence for the whole system, so all its reads came before.
        let value = self.0.value().map(|word| word.load(Ordering::Acquire));
        value.is_none_or(|value| value == 0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // A forked child has none of the pages, and another thread may have held the lock.
        if self.0.device.is_of_this_process() {
            lock(&FREE).push(self.0.clone());
        }
    }
}

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

/// A word that keeps something until a kernel stores 0 to it.
///
/// If no kernel ever does, it is kept until [`end`](Self::end), until the device's context fails, or for as long as the process
/// runs.
#[derive(Debug)]
pub struct ReleaseWord {
    word: Arc<Taken>,
    number: u64,
}

impl ReleaseWord {
    /// Drops `kept` when a kernel on `device` has stored 0 to the word: on a thread that may not call the driver.
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

    /// The address, on the device, of the 32-bit word to which the kernel stores 0, once, after a fence for the whole system.
    pub fn ptr(&self) -> u64 {
        self.word.0.address
    }

    /// Ends it now. No kernel may store to the word after this.
    pub fn end(&self) {
        pending::end(self.number);
    }
}
