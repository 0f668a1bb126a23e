// SPDX-License-Identifier: MPL-2.0

//! The addresses that devices know, and where the bytes are.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUresult;

use crate::device;
use crate::entry::Outcome;
use crate::files::{Mapping, MemoryFile};

/// The kind of an access to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// How memory came to be.
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

/// Where bytes are for the driver.
#[derive(Debug)]
pub(crate) enum Backing {
    File {
        mapping: Mapping,
        file: Arc<MemoryFile>,
    },
    Host(Mapping),
    /// The program's own memory.
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

/// Memory at one range of device addresses.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    pub(crate) length: usize,
    /// The context that it was made in.
    pub(crate) context: u64,
    /// The machine's ordinal; of host memory the one it was made with.
    pub(crate) device: u32,
    pub(crate) backing: Arc<Backing>,
    /// cuMemSetAccess: by the machine's ordinal, whether it may be written.
    pub(crate) access: HashMap<u32, bool>,
    /// The addresses, which have to be kept unless another mapping has them.
    pub(crate) addresses: Option<Mapping>,
    pub(crate) flags: u32,
    pub(crate) id: u64,
}

impl Block {
    /// Where the program finds host memory.
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

/// Look at or change the map of addresses.
pub(crate) fn with<T>(use_it: impl FnOnce(&mut Space) -> T) -> T {
    use_it(&mut SPACE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The block that an address is in, and where it begins.
pub(crate) fn find(space: &mut Space, address: u64) -> Option<(u64, &mut Block)> {
    let (start, block) = space.range_mut(..=address).next_back()?;
    (address - start < block.length as u64).then_some((*start, block))
}

/// Bytes that stay mapped for as long as this lives, whatever the program does.
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
        // In the block, as its users have looked up.
        Self {
            start: block.backing.start().wrapping_add(offset as usize),
            _keep: Arc::clone(&block.backing),
        }
    }
}

/// Bytes at a device address, for code that runs on a device. What it may not reach is an illegal address.
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

/// Bytes of page-locked host memory, by the program's pointer. None: ordinary memory.
pub(crate) fn pinned_bytes(pointer: u64, length: usize, access: Access) -> Option<Bytes> {
    with(|space| {
        let (offset, block) = find_pinned(space, pointer)?;
        (length as u64 <= block.length as u64 - offset && block.allows(block.device, access))
            .then(|| Bytes::of(block, offset))
    })
}

/// The page-locked block that a host pointer is in, and the offset there.
pub(crate) fn find_pinned(space: &mut Space, pointer: u64) -> Option<(u64, &mut Block)> {
    space.values_mut().find_map(|block| {
        let offset = pointer.checked_sub(block.host_pointer()?)?;
        (offset < block.length as u64).then_some((offset, block))
    })
}

/// The context is gone, with its memory.
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
