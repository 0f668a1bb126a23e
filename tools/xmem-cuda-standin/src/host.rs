// SPDX-License-Identifier: MPL-2.0

//! Page-locked host memory. Registered memory has another address on the device than in the program, as is possible on real
//! hardware. The quirk `same-host-pointer` makes the addresses equal.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};

use crate::context;
use crate::entry::{Outcome, put};
use crate::files::{self, Mapping};
use crate::settings::settings;
use crate::space::{self, Backing, Block, Kind};

/// The program must not write the memory either.
pub(crate) const READ_ONLY: u32 = CU_MEMHOSTREGISTER_READ_ONLY;

/// The size of a page of host memory.
pub(crate) const PAGE: u64 = 4096;

/// Whether the whole range is mapped with sufficient access.
fn is_mapped(start: u64, end: u64, write: bool) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut reached = start;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else {
            continue;
        };
        let Some((from, to)) = range.split_once('-') else {
            continue;
        };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        else {
            continue;
        };
        let enough = access.starts_with('r') && (!write || access[1..].starts_with('w'));
        if from <= reached && reached < to && enough {
            reached = to;
        }
    }
    reached >= end
}

fn allocate(size: usize) -> Outcome<u64> {
    let context = context::current()?;
    let length = size
        .checked_next_multiple_of(PAGE as usize)
        .filter(|length| *length > 0);
    let length = length.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mapping = Mapping::anonymous(length).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let start = mapping.address();
    let block = Block {
        kind: Kind::Host,
        length,
        context: context.handle,
        device: context.device,
        backing: Arc::new(Backing::Host(mapping)),
        access: HashMap::new(),
        addresses: None,
        flags: 0,
        id: files::random(),
    };
    space::with(|space| space.insert(start, block));
    Ok(start)
}

fn register(pointer: u64, size: usize, flags: c_uint) -> Outcome {
    let context = context::current()?;
    settings().unless("no-host-register")?;
    if flags & READ_ONLY != 0 {
        settings().unless("no-read-only-register")?;
    }
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let end = pointer
        .checked_add(size as u64)
        .filter(|_| pointer != 0 && size != 0);
    let end = end.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !is_mapped(pointer, end, flags & READ_ONLY == 0) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let addresses = if settings().has("same-host-pointer") {
        None
    } else {
        let length = (end.next_multiple_of(PAGE) - pointer / PAGE * PAGE) as usize;
        Some(Mapping::addresses(length).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?)
    };
    let start = addresses
        .as_ref()
        .map_or(pointer, |addresses| addresses.address() + pointer % PAGE);
    space::with(|space| {
        let overlaps = |block: &Block| {
            block
                .host_pointer()
                .is_some_and(|other| other < end && pointer < other + block.length as u64)
        };
        if space.values().any(overlaps) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let block = Block {
            kind: Kind::Registered,
            length: size,
            context: context.handle,
            device: context.device,
            backing: Arc::new(Backing::Foreign(pointer as usize)),
            access: HashMap::new(),
            addresses,
            flags,
            id: files::random(),
        };
        space.insert(start, block);
        Ok(())
    })
}

/// Removes page-locked memory that begins at this address.
fn take(pointer: u64, kind: Kind) -> Option<Block> {
    space::with(|space| {
        let is_it = |block: &Block| block.kind == kind && block.host_pointer() == Some(pointer);
        let start = space
            .iter()
            .find(|(_, block)| is_it(block))
            .map(|(start, _)| *start)?;
        space.remove(&start)
    })
}

api! {
    fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint) {
        if Flags > 7 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(pp, allocate(bytesize)? as *mut c_void)
    }

    fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) {
        put(pp, allocate(bytesize)? as *mut c_void)
    }

    fn cuMemFreeHost(p: *mut c_void) {
        context::current()?;
        take(p as u64, Kind::Host).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: c_uint) {
        register(p as u64, bytesize, Flags)
    }

    fn cuMemHostUnregister(p: *mut c_void) {
        context::current()?;
        take(p as u64, Kind::Registered).map(drop).ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, Flags: c_uint) {
        context::current()?;
        if Flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let address = space::with(|space| {
            let (offset, block) = space::find_pinned(space, p as u64)?;
            let host = block.host_pointer()?;
            let start = block.addresses.as_ref().map_or(host, |addresses| addresses.address() + host % PAGE);
            Some(start + offset)
        });
        put(pdptr, address.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)
    }

    fn cuMemHostGetFlags(pFlags: *mut c_uint, p: *mut c_void) {
        context::current()?;
        let flags = space::with(|space| space::find_pinned(space, p as u64).map(|(_, block)| block.flags));
        put(pFlags, flags.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)
    }
}
