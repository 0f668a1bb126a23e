// SPDX-License-Identifier: MPL-2.0

//! Virtual memory management: memory, addresses and access are separate. The shareable handle is a descriptor of the memory's file.
//! Memory exists as long as any process has a descriptor, handle or mapping of it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult,
};

use crate::entry::{Outcome, get, put};
use crate::files::{self, Mapping, MemoryFile};
use crate::settings::settings;
use crate::space::{self, Backing, Block, Kind};
use crate::{context, device, memory};

/// Sizes and addresses are multiples of this value.
const GRANULARITY: usize = 2 << 20;

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A reference to memory, which exists as long as it is in the table.
#[derive(Debug, Clone)]
struct Handle {
    file: Arc<MemoryFile>,
    references: usize,
    exportable: bool,
}

/// Reserved addresses without memory.
#[derive(Debug)]
struct Reservation {
    size: usize,
    _addresses: Mapping,
}

#[derive(Debug, Default)]
struct Vmm {
    handles: HashMap<u64, Handle>,
    reservations: BTreeMap<u64, Reservation>,
}

static VMM: Mutex<Option<Vmm>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut Vmm) -> T) -> T {
    use_it(
        VMM.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default(),
    )
}

fn add(file: Arc<MemoryFile>, exportable: bool) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5400_0000);
    let id = NEXT.fetch_add(0x10, Ordering::Relaxed);
    with(|vmm| {
        vmm.handles.insert(
            id,
            Handle {
                file,
                references: 1,
                exportable,
            },
        )
    });
    id
}

fn handle(id: u64) -> Outcome<Handle> {
    with(|vmm| vmm.handles.get(&id).cloned()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Checks that a size is a multiple of the granularity and not 0.
fn granular(size: usize) -> Outcome {
    if size > 0 && size.is_multiple_of(GRANULARITY) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

fn device_of(location: CUmemLocation) -> Outcome<u32> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID);
    }
    device::on_machine(location.id)
}

fn check(properties: &CUmemAllocationProp) -> Outcome<u32> {
    settings().unless("no-vmm")?;
    if properties.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID);
    }
    device_of(properties.location)
}

/// The VMM blocks that exactly cover a range. A range that cuts a block is an error.
fn blocks(space: &mut BTreeMap<u64, Block>, start: u64, size: usize) -> Outcome<Vec<u64>> {
    let end = start.checked_add(size as u64).ok_or(INVALID)?;
    let mut reached = start;
    let mut found = Vec::new();
    while reached < end {
        let block = space
            .get(&reached)
            .filter(|block| block.kind == Kind::Vmm)
            .ok_or(INVALID)?;
        found.push(reached);
        reached += block.length as u64;
    }
    if reached == end {
        Ok(found)
    } else {
        Err(INVALID)
    }
}

fn map(start: u64, size: usize, handle: &Handle) -> Outcome {
    let end = start.checked_add(size as u64).ok_or(INVALID)?;
    let reserved = with(|vmm| {
        let below = vmm.reservations.range(..=start).next_back();
        below.is_some_and(|(from, reservation)| end <= from + reservation.size as u64)
    });
    if !reserved || size as u64 > handle.file.label.size {
        return Err(INVALID);
    }
    let mapping = handle
        .file
        .map()
        .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    space::with(|space| {
        let overlap = space
            .range(..end)
            .next_back()
            .is_some_and(|(at, block)| at + block.length as u64 > start);
        if overlap {
            return Err(INVALID);
        }
        let block = Block {
            kind: Kind::Vmm,
            length: size,
            // VMM memory belongs to no context.
            context: 0,
            device: handle.file.label.device,
            backing: Arc::new(Backing::File {
                mapping,
                file: Arc::clone(&handle.file),
            }),
            access: HashMap::new(),
            addresses: None,
            flags: 0,
            id: files::random(),
        };
        space.insert(start, block);
        Ok(())
    })
}

/// Creates a descriptor for other processes. It belongs to the caller.
fn export(handle: &Handle, kind: CUmemAllocationHandleType) -> Outcome<c_int> {
    if kind != DESCRIPTOR || !handle.exportable {
        return Err(INVALID);
    }
    settings().unless("no-posix-fd")?;
    Ok(handle
        .file
        .export()
        .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?
        .into_raw_fd())
}

/// Imports a descriptor that another process exported. It still belongs to the caller.
fn import(descriptor: *mut c_void, kind: CUmemAllocationHandleType) -> Outcome<u64> {
    settings().unless("no-vmm")?;
    settings().unless("no-posix-fd")?;
    let descriptor = i32::try_from(descriptor as u64)
        .ok()
        .filter(|number| *number >= 0)
        .ok_or(INVALID)?;
    if kind != DESCRIPTOR {
        return Err(INVALID);
    }
    // SAFETY: the descriptor is not -1, and the caller keeps it open during the call. A closed descriptor cannot be duplicated,
    // which is an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let file = File::from(borrowed.try_clone_to_owned().map_err(|_| INVALID)?);
    let file = MemoryFile::from_file(file).map_err(|_| INVALID)?;
    // The device must be visible in this process.
    if !file.label.vmm || device::in_process(file.label.device).is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    Ok(add(Arc::new(file), true))
}

fn unmap(start: u64, size: usize) -> Outcome {
    granular(size)?;
    // The call waits for this process's work on the device.
    let device = space::with(|space| space.get(&start).map(|block| block.device)).ok_or(INVALID)?;
    for context in context::on_device(device) {
        let _ = context.work.wait_for_all();
    }
    space::with(|space| {
        for block in blocks(space, start, size)? {
            space.remove(&block);
        }
        Ok(())
    })
}

api! {
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize, prop: *const CUmemAllocationProp, _option: CUmemAllocationGranularity_flags,
    ) {
        check(&get(prop)?)?;
        put(granularity, GRANULARITY)
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong,
    ) {
        let properties = get(prop)?;
        let device = check(&properties)?;
        granular(size)?;
        if flags != 0 {
            return Err(INVALID);
        }
        let exportable = properties.requestedHandleTypes == DESCRIPTOR;
        if exportable {
            settings().unless("no-posix-fd")?;
        }
        put(handle, add(memory::new_file(device, size, true)?, exportable))
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        with(|vmm| {
            let found = vmm.handles.get_mut(&handle).ok_or(INVALID)?;
            found.references -= 1;
            if found.references == 0 {
                vmm.handles.remove(&handle);
            }
            Ok(())
        })
    }

    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) {
        let file = space::with(|space| {
            let (_, block) = space::find(space, addr as u64).filter(|(_, block)| block.kind == Kind::Vmm)?;
            match &*block.backing {
                Backing::File { file, .. } => Some(Arc::clone(file)),
                _ => None,
            }
        })
        .ok_or(INVALID)?;
        let known = with(|vmm| {
            let (id, known) = vmm.handles.iter_mut().find(|(_, known)| Arc::ptr_eq(&known.file, &file))?;
            known.references += 1;
            Some(*id)
        });
        // The handle was released, but the memory is still mapped.
        put(handle, known.unwrap_or_else(|| add(file, true)))
    }

    fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) {
        let found = self::handle(handle)?;
        // SAFETY: numbers, enums whose fields are set below, and a pointer that may be null.
        let mut properties = unsafe { std::mem::MaybeUninit::<CUmemAllocationProp>::zeroed().assume_init() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device::in_process(found.file.label.device).unwrap_or(-1),
        };
        if found.exportable {
            properties.requestedHandleTypes = DESCRIPTOR;
        }
        put(prop, properties)
    }

    fn cuMemAddressReserve(
        ptr: *mut CUdeviceptr, size: usize, alignment: usize, _addr: CUdeviceptr, flags: c_ulonglong,
    ) {
        settings().unless("no-vmm")?;
        granular(size)?;
        if flags != 0 || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(INVALID);
        }
        let alignment = alignment.max(GRANULARITY);
        let room = size.checked_add(alignment).ok_or(INVALID)?;
        let addresses = Mapping::addresses(room).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = addresses.address().next_multiple_of(alignment as u64);
        with(|vmm| vmm.reservations.insert(start, Reservation { size, _addresses: addresses }));
        put(ptr, start)
    }

    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) {
        let mapped = space::with(|space| space.range(ptr..ptr.saturating_add(size as u64)).next().is_some());
        with(|vmm| {
            if mapped || vmm.reservations.get(&ptr).is_none_or(|reservation| reservation.size != size) {
                return Err(INVALID);
            }
            vmm.reservations.remove(&ptr);
            Ok(())
        })
    }

    fn cuMemMap(
        ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong,
    ) {
        granular(size)?;
        if offset != 0 || flags != 0 {
            return Err(INVALID);
        }
        map(ptr, size, &self::handle(handle)?)
    }

    fn cuMemUnmap(ptr: CUdeviceptr, size: usize) {
        unmap(ptr, size)
    }

    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) {
        granular(size)?;
        let mut wanted = Vec::new();
        for index in 0..count {
            let one = get(desc.wrapping_add(index))?;
            let device = device_of(one.location)?;
            if one.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ {
                settings().unless("no-vmm-read-only")?;
            }
            wanted.push((device, one.flags));
        }
        space::with(|space| {
            for start in blocks(space, ptr, size)? {
                let block = space.get_mut(&start).ok_or(INVALID)?;
                for (device, flags) in &wanted {
                    if !device::reaches(*device, block.device) {
                        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
                    }
                    match flags {
                        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => block.access.insert(*device, false),
                        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => block.access.insert(*device, true),
                        _ => block.access.remove(device),
                    };
                }
            }
            Ok(())
        })
    }

    fn cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr) {
        let device = device_of(get(location)?)?;
        let access = space::with(|space| {
            let (_, block) = space::find(space, ptr).filter(|(_, block)| block.kind == Kind::Vmm)?;
            Some(block.access.get(&device).copied())
        });
        put(flags, match access.ok_or(INVALID)? {
            None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Some(false) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Some(true) => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        } as c_ulonglong)
    }

    fn cuMemExportToShareableHandle(
        shareableHandle: *mut c_void, handle: CUmemGenericAllocationHandle, handleType: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        if flags != 0 || shareableHandle.is_null() {
            return Err(INVALID);
        }
        put(shareableHandle.cast::<c_int>(), export(&self::handle(handle)?, handleType)?)
    }

    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, osHandle: *mut c_void, shHandleType: CUmemAllocationHandleType,
    ) {
        put(handle, import(osHandle, shHandleType)?)
    }
}
