// SPDX-License-Identifier: MPL-2.0

//! Host memory that devices access directly.
#![allow(unsafe_code)] // calls the driver

use std::sync::Arc;

use xmem_shm::os::mapping::Mapping;

use crate::device::Device;
use crate::error::CudaError;
use crate::{reaper, result};

/// cuda.h: registered for all contexts.
const PORTABLE: u32 = 1;
/// cuda.h: with an address on the device.
pub(crate) const DEVICEMAP: u32 = 2;
/// cuda.h: devices only read it.
pub(crate) const READ_ONLY: u32 = 8;

/// The first byte of whole pages, and their size in bytes.
fn pages(memory: &Mapping) -> (*mut u8, usize) {
    let page = rustix::param::page_size();
    (memory.ptr(), memory.len().next_multiple_of(page))
}

/// Memory that is registered with the driver until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    memory: Arc<Mapping>,
    device: Device,
}

impl Registered {
    /// Registers memory with the driver, for all contexts. `flags`: [`DEVICEMAP`] and [`READ_ONLY`].
    pub(crate) fn new(
        memory: &Arc<Mapping>,
        flags: u32,
        device: &Device,
    ) -> Result<Self, CudaError> {
        let (ptr, len) = pages(memory);
        // SAFETY: whole pages of a mapping that is kept until they are unregistered.
        device.with(|| unsafe { result::host_register(ptr.cast(), len, PORTABLE | flags) })?;
        Ok(Self {
            memory: memory.clone(),
            device: device.clone(),
        })
    }

    /// The memory.
    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// The address of its first byte on a device. It was registered with [`DEVICEMAP`].
    pub(crate) fn address(&self, device: &Device) -> Result<u64, CudaError> {
        let (start, _) = pages(&self.memory);
        let mut address = 0;
        // SAFETY: a place for the address, and memory that is registered.
        device.with(|| unsafe { result::host_pointer(&raw mut address, start.cast(), 0) })?;
        Ok(address)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let (memory, device) = (self.memory.clone(), self.device.clone());
        reaper::free(move || {
            let (ptr, _) = pages(&memory);
            // SAFETY: registered by `new`, and unmapped only afterwards.
            let _ = device.with(|| unsafe { result::host_unregister(ptr.cast()) });
        });
    }
}
