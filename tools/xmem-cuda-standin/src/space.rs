// SPDX-License-Identifier: MPL-2.0

//! The device addresses in use, and the location of their bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::device;
use crate::entry::Outcome;
use crate::files::{Mapping, MemoryFile};

/// The kind of a memory access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The function that created the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// cuMemAlloc
    Own,
    /// cuMemAllocAsync
    Async,
    /// cuIpcOpenMemHandle
    Imported,
    /// cuMemMap
    Vmm,
    /// cuMemHostAlloc
    Host,
    /// cuMemHostRegister
    Registered,
}

/// The location of the bytes for the driver.
#[derive(Debug)]
pub(crate) enum Backing {
    File {
        mapping: Mapping,
        file: Arc<MemoryFile>,
    },
    Host(Mapping),
    /// Memory of the program.
    Foreign(usize),
}

impl Backing {
    fn start(&self) -> *mut u8 {
        match self {
            Self::File { mapping, .. } | Self::Host(mapping) => mapping.start(),
            Self::Foreign(address) => std::ptr::with_exposed_provenance_mut(*address),
        }
    }
}

/// The memory at a range of device addresses.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    /// The context in which it was created.
    pub(crate) context: u64,
    /// The device's ordinal in the machine; for host memory, the device with which it was created.
    pub(crate) device: u32,
    pub(crate) backing: Arc<Backing>,
    /// The access that cuMemSetAccess granted, by the machine's ordinal: whether the memory is writable.
    pub(crate) access: HashMap<u32, bool>,
    /// The reserved addresses, unless another mapping has them.
    pub(crate) addresses: Option<Mapping>,
    pub(crate) flags: u32,
    pub(crate) id: u64,
}

impl Block {
    /// The address of host memory in the program.
    pub(crate) fn host_pointer(&self) -> Option<u64> {
        matches!(self.kind, Kind::Host | Kind::Registered).then(|| self.backing.start() as u64)
    }

    fn allows(&self, device: u32, access: Access) -> bool {
        let read_only = self.kind == Kind::Registered && self.flags & crate::host::READ_ONLY != 0;
        match self.kind {
            Kind::Host | Kind::Registered => access == Access::Read || !read_only,
            Kind::Vmm => self
                .access
                .get(&device)
                .is_some_and(|write| *write || access == Access::Read),
            Kind::Own | Kind::Async | Kind::Imported => device::reaches(device, self.device),
        }
    }
}

type Space = BTreeMap<u64, Block>;

static SPACE: Mutex<Space> = Mutex::new(BTreeMap::new());

/// Calls a function with the map of addresses.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut Space) -> T) -> T {
    use_it(&mut SPACE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The block that contains an address, and the block's start.
pub(crate) fn find(space: &mut Space, address: u64) -> Option<(u64, &mut Block)> {
    let (start, block) = space.range_mut(..=address).next_back()?;
    (address - start < block.length as u64).then_some((*start, block))
}

/// Bytes that stay mapped while this value exists, even if the program unmaps them.
#[derive(Debug)]
pub(crate) struct Bytes {
    start: *mut u8,
    _keep: Arc<Backing>,
}

impl Bytes {
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    fn of(block: &Block, offset: u64) -> Self {
        // The caller has checked that the offset is inside the block.
        Self {
            start: block.backing.start().wrapping_add(offset as usize),
            _keep: Arc::clone(&block.backing),
        }
    }
}

/// The bytes at a device address, for code that runs on a device. Inaccessible memory is an illegal address.
pub(crate) fn device_bytes(
    address: u64,
    length: usize,
    device: u32,
    access: Access,
) -> Outcome<Bytes> {
    with(|space| {
        let (start, block) = find(space, address)?;
        let offset = address - start;
        (length as u64 <= block.length as u64 - offset && block.allows(device, access))
            .then(|| Bytes::of(block, offset))
    })
    .ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
}

/// The bytes of page-locked host memory, by the program's pointer. `None` for pageable memory.
pub(crate) fn pinned_bytes(pointer: u64, length: usize, access: Access) -> Option<Bytes> {
    with(|space| {
        let (offset, block) = find_pinned(space, pointer)?;
        (length as u64 <= block.length as u64 - offset && block.allows(block.device, access))
            .then(|| Bytes::of(block, offset))
    })
}

/// The page-locked block that contains a host pointer, and the offset in it.
pub(crate) fn find_pinned(space: &mut Space, pointer: u64) -> Option<(u64, &mut Block)> {
    space.values_mut().find_map(|block| {
        let offset = pointer.checked_sub(block.host_pointer()?)?;
        (offset < block.length as u64).then_some((offset, block))
    })
}

/// Removes the memory of a destroyed context.
pub(crate) fn forget(context: u64) {
    let gone = with(|space| {
        let starts = space
            .iter()
            .filter(|(_, block)| block.context == context)
            .map(|(start, _)| *start);
        starts
            .collect::<Vec<_>>()
            .into_iter()
            .filter_map(|start| space.remove(&start))
            .collect::<Vec<_>>()
    });
    gone.iter().for_each(crate::memory::release);
}
