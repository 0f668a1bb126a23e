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
pub const DEVICEMAP: u32 = 2;
/// cuda.h: devices only read it.
pub const READ_ONLY: u32 = 8;

/// Memory of whole pages that stays mapped while this lives.
pub trait Pages: Send + Sync + 'static {
    /// The first byte, and the size in bytes.
    fn pages(&self) -> (*mut u8, usize);
}

impl Pages for Mapping {
    fn pages(&self) -> (*mut u8, usize) {
        let page = rustix::param::page_size();
        (self.ptr(), self.len().next_multiple_of(page))
    }
}

/// Memory that is registered with the driver until this is dropped.
#[derive(Debug)]
pub struct Registered<M: Pages> {
    memory: Arc<M>,
    device: Device,
}

impl<M: Pages> Registered<M> {
    /// Registers memory with the driver, for all contexts. `flags`: [`DEVICEMAP`] and [`READ_ONLY`].
    pub fn new(memory: &Arc<M>, flags: u32, device: &Device) -> Result<Self, CudaError> {
        let (ptr, len) = memory.pages();
        // SAFETY: whole pages of a mapping that is kept until they are unregistered.
        device.with(|| unsafe { result::host_register(ptr.cast(), len, PORTABLE | flags) })?;
        Ok(Self {
            memory: memory.clone(),
            device: device.clone(),
        })
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The address of its first byte on a device. It was registered with [`DEVICEMAP`].
    pub fn address(&self, device: &Device) -> Result<u64, CudaError> {
        let (start, _) = self.memory.pages();
        let mut address = 0;
        // SAFETY: a place for the address, and memory that is registered.
        device.with(|| unsafe { result::host_pointer(&raw mut address, start.cast(), 0) })?;
        Ok(address)
    }
}

impl<M: Pages> Drop for Registered<M> {
    fn drop(&mut self) {
        let (memory, device) = (self.memory.clone(), self.device.clone());
        reaper::later(move || {
            let (ptr, _) = memory.pages();
            // SAFETY: registered by `new`, and unmapped only afterwards.
            let _ = device.with(|| unsafe { result::host_unregister(ptr.cast()) });
        });
    }
}
