// SPDX-License-Identifier: MPL-2.0

//! Regions on the heap, for tests inside one process.
#![allow(unsafe_code)] // raw memory that two sides share

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use xmem_shm::lock::lock;

use crate::error::RegionError;

#[derive(Debug)]
pub(crate) struct Memory {
    id: u64,
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; who may write it when is the slot protocol's business, as with every region.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        registry().remove(&self.id);
        // SAFETY: allocated in `create` with this layout; whoever refers to it keeps an `Arc` of it.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

#[derive(Debug)]
pub(crate) struct Owned {
    pub(super) memory: Arc<Memory>,
}

fn registry() -> std::sync::MutexGuard<'static, HashMap<u64, Weak<Memory>>> {
    static REGISTRY: LazyLock<Mutex<HashMap<u64, Weak<Memory>>>> = LazyLock::new(Mutex::default);
    lock(&REGISTRY)
}

impl Owned {
    pub(super) fn create(len: usize) -> Result<Self, RegionError> {
        let layout =
            Layout::from_size_align(len.max(1), 4096).map_err(|error| RegionError::NoSpace {
                size: len,
                error: std::io::Error::other(error),
            })?;
        // SAFETY: the size is not zero.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        let memory = Arc::new(Memory {
            id: xmem_shm::os::random::u64(),
            ptr,
            layout,
        });
        registry().insert(memory.id, Arc::downgrade(&memory));
        Ok(Self { memory })
    }
}

pub(super) fn view(id: u64, len: usize) -> Result<Arc<Memory>, RegionError> {
    // Found before it is looked at: what is dropped here may be the last, and takes the lock.
    let memory = registry().get(&id).and_then(Weak::upgrade);
    memory
        .filter(|memory| memory.len() >= len)
        .ok_or(RegionError::Untrusted("no such memory in this process"))
}
