// SPDX-License-Identifier: MPL-2.0

//! Device memory: of this process, for sharing, and of other processes, mapped.
#![allow(unsafe_code)] // calls the driver

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use cudarc::driver::sys::{
    CUipcMemHandle, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use xmem_shm::abi::device_header::IpcHandle;
use xmem_shm::bounds::is_range_inside;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::{ALREADY_MAPPED, CudaError};
use crate::{chars, reaper, result};

/// The unit to which legacy allocations are rounded up, so that shared memory contains nothing else.
const LEGACY_GRAIN: usize = 2 << 20;
const POSIX_FD: CUmemAllocationHandleType = CUmemAllocationHandleType(1);
/// cuda.h: enables access from peer devices too.
const LAZY_PEER_ACCESS: u32 = 1;

/// How long a second attempt waits for memory that is being freed.
pub const FREEING_TIME: Duration = Duration::from_secs(2);

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device.ordinal().cast_signed(),
    }
}

fn allocation(device: &Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX_FD,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn granularity(device: &Device) -> Result<usize, CudaError> {
    let mut granularity = 0;
    let wanted = allocation(device);
    let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: a pointer to a variable for the result, and an initialised request.
    unsafe { result::vmm_granularity(&raw mut granularity, &raw const wanted, option) }?;
    Ok(granularity.max(1))
}

/// A memory handle, which is needed only to map or export the memory.
struct Handle(u64);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the last use of the handle. Mappings and descriptors keep the memory.
        let _ = unsafe { result::vmm_release(self.0) };
    }
}

/// A range of addresses with mapped memory.
#[derive(Debug)]
pub struct VmmMapping {
    ptr: u64,
    len: usize,
    device: Device,
    is_mapped: bool,
    /// The memory belongs to this process.
    is_own: bool,
}

impl VmmMapping {
    /// Maps memory. The context of the device is current.
    fn new(
        handle: &Handle,
        len: usize,
        device: &Device,
        access: CUmemAccess_flags,
    ) -> Result<Self, CudaError> {
        let mut ptr = 0;
        // SAFETY: a pointer to a variable for the address, which the driver chooses.
        unsafe { result::vmm_reserve(&raw mut ptr, len, 0, 0, 0) }?;
        let mut mapping = Self {
            ptr,
            len,
            device: device.clone(),
            is_mapped: false,
            is_own: false,
        };
        // SAFETY: addresses that were just reserved, and memory of this length.
        unsafe { result::vmm_map(ptr, len, 0, handle.0, 0) }?;
        mapping.is_mapped = true;
        let access = CUmemAccessDesc {
            location: location(device),
            flags: access,
        };
        // SAFETY: one access description for mapped addresses.
        unsafe { result::vmm_access(ptr, len, &raw const access, 1) }?;
        Ok(mapping)
    }
}

impl Drop for VmmMapping {
    fn drop(&mut self) {
        let Self {
            ptr,
            len,
            is_mapped,
            is_own,
            ..
        } = *self;
        let device = self.device.clone();
        reaper::free(move || {
            let _ = device.with(|| {
                if is_mapped {
                    // SAFETY: mapped by `new` with this length, and no longer used.
                    unsafe { result::vmm_unmap(ptr, len) }?;
                }
                // SAFETY: reserved by `new` with this length.
                unsafe { result::vmm_free(ptr, len) }
            });
            if is_own {
                count(&COUNTERS.freed);
            }
            fault::point(Point::TwinClosed);
        });
    }
}

/// Memory that this process allocated for sharing.
#[derive(Debug)]
pub enum OwnMemory {
    /// It lives until its last mapping and its last descriptor are closed.
    Vmm {
        /// The memory's descriptor, which is sent to other processes.
        fd: OwnedFd,
        /// The mapping in this process.
        mapping: VmmMapping,
    },
    /// Other code of this process allocated it, and frees it.
    Borrowed {
        /// Its first byte on the device.
        ptr: u64,
        /// Its size in bytes.
        len: usize,
    },
    /// It lives until this process frees it.
    Legacy {
        /// The memory.
        memory: LegacyAllocation,
        /// The handle of the memory, which is sent to other processes.
        handle: IpcHandle,
    },
}

/// Memory from `cuMemAlloc`, freed when this is dropped.
#[derive(Debug)]
pub struct LegacyAllocation {
    ptr: u64,
    len: usize,
    device: Device,
}

impl LegacyAllocation {
    /// Allocates `len` bytes on a device.
    pub fn new(device: &Device, len: usize) -> Result<Self, CudaError> {
        let mut ptr = 0;
        // SAFETY: a pointer to a variable for the address.
        device.with(|| unsafe { result::mem_alloc(&raw mut ptr, len) }.map_err(with_size(len)))?;
        Ok(Self {
            ptr,
            len,
            device: device.clone(),
        })
    }

    /// The first byte, on the device.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// The device of the memory.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for LegacyAllocation {
    fn drop(&mut self) {
        let (ptr, device) = (self.ptr, self.device.clone());
        reaper::free(move || {
            // SAFETY: allocated by `new`, and no longer used.
            let _ = device.with(|| unsafe { result::mem_free(ptr) });
            count(&COUNTERS.freed);
            fault::point(Point::TwinClosed);
        });
    }
}

fn with_size(size: usize) -> impl FnOnce(CudaError) -> CudaError {
    move |error| match error {
        CudaError::OutOfMemory { .. } => CudaError::OutOfMemory { size },
        error => error,
    }
}

#[allow(clippy::len_without_is_empty)] // no allocation is empty
impl OwnMemory {
    /// Allocates at least `len` bytes whose descriptor can be sent.
    pub fn vmm(device: &Device, len: usize) -> Result<Self, CudaError> {
        if !device.has_vmm() {
            return Err(CudaError::Unsupported {
                what: "share memory by descriptor",
            });
        }
        device.with(|| {
            let len = len.checked_next_multiple_of(granularity(device)?);
            let len = len.ok_or(CudaError::OutOfMemory { size: usize::MAX })?;
            let mut handle = 0;
            let wanted = allocation(device);
            // SAFETY: a pointer to a variable for the handle, and an initialised request.
            unsafe { result::vmm_create(&raw mut handle, len, &raw const wanted, 0) }
                .map_err(with_size(len))?;
            let handle = Handle(handle);
            let mut fd: RawFd = -1;
            let to: *mut RawFd = &raw mut fd;
            // SAFETY: for this kind of handle the driver writes an int.
            unsafe { result::vmm_export(to.cast::<c_void>(), handle.0, POSIX_FD, 0) }?;
            // SAFETY: a new descriptor that only this code has.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // The driver may not have set CLOEXEC.
            let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
            let access = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let mut mapping = VmmMapping::new(&handle, len, device, access)?;
            mapping.is_own = true;
            Ok(Self::Vmm { fd, mapping })
        })
    }

    /// Allocates at least `len` bytes with a handle.
    pub fn legacy(device: &Device, len: usize) -> Result<Self, CudaError> {
        let len = len.checked_next_multiple_of(LEGACY_GRAIN);
        let len = len.ok_or(CudaError::OutOfMemory { size: usize::MAX })?;
        let memory = LegacyAllocation::new(device, len)?;
        Ok(Self::Legacy {
            handle: device.with(|| legacy_handle(memory.ptr))?,
            memory,
        })
    }

    /// The first byte, on the device.
    pub fn ptr(&self) -> u64 {
        match self {
            Self::Vmm { mapping, .. } => mapping.ptr,
            Self::Legacy { memory, .. } => memory.ptr,
            Self::Borrowed { ptr, .. } => *ptr,
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Vmm { mapping, .. } => mapping.len,
            Self::Legacy { memory, .. } => memory.len,
            Self::Borrowed { len, .. } => *len,
        }
    }

    /// The descriptor that is sent, for [`Vmm`](Self::Vmm).
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Vmm { fd, .. } => Some(fd.as_fd()),
            Self::Legacy { .. } | Self::Borrowed { .. } => None,
        }
    }
}

/// The position of memory of this process in its allocation, for the handle of the allocation.
#[derive(Debug)]
pub struct Borrowed {
    /// The handle of the allocation.
    pub handle: IpcHandle,
    /// The first byte of the memory, relative to the memory of the handle.
    pub offset: u64,
}

/// cuda.h: attributes of an address: host or device memory, the number of the device, and whether it has a legacy handle.
const MEMORY_TYPE: u32 = 2;
const DEVICE_ORDINAL: u32 = 9;
const IS_LEGACY_CAPABLE: u32 = 10;
/// cuda.h: attributes of an address: the range that contains it.
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
/// The value of `MEMORY_TYPE` for registered host memory.
const OF_HOST: u64 = 1;

/// `bits`: the bits that the driver writes.
fn attribute(ptr: u64, attribute: u32, bits: u64) -> Result<u64, CudaError> {
    let mut value = 0u64;
    // SAFETY: a variable that is large enough for each of these attributes. The driver checks the address.
    unsafe { result::pointer_attribute((&raw mut value).cast(), attribute, ptr) }?;
    Ok(value & bits)
}

const INT: u64 = 0xffff_ffff;

/// Checks that memory is on a device. The device's context is current.
pub fn check_device(device: &Device, ptr: u64) -> Result<(), CudaError> {
    let none = || CudaError::NotImportable {
        why: "it is not device memory".into(),
    };
    let of_driver = |error| match error {
        CudaError::Driver { .. } => none(),
        error => error,
    };
    if attribute(ptr, MEMORY_TYPE, INT).map_err(of_driver)? == OF_HOST {
        return Err(none());
    }
    let actual = attribute(ptr, DEVICE_ORDINAL, INT).map_err(of_driver)?;
    if actual != u64::from(device.ordinal()) {
        let (actual, asked) = (actual as u32, device.ordinal());
        return Err(CudaError::OtherDevice { actual, asked });
    }
    Ok(())
}

/// Finds the handle of memory that other code of this process allocated.
pub fn borrow(device: &Device, ptr: u64, len: usize) -> Result<Borrowed, CudaError> {
    device.with(|| {
        check_device(device, ptr)?;
        // A driver that does not know the attribute fails later, when the handle is created.
        if attribute(ptr, IS_LEGACY_CAPABLE, 0xff).is_ok_and(|capable| capable == 0) {
            return Err(CudaError::NotImportable {
                why: "memory of pools, of virtual memory management and managed memory have no legacy handle: copy the frame \
                      into a slot"
                    .into(),
            });
        }
        let (mut base, mut size) = (0, 0);
        // SAFETY: pointers to variables for the results. The driver checks the address.
        unsafe { result::address_range(&raw mut base, &raw mut size, ptr) }?;
        let offset = ptr - base;
        if !is_range_inside(offset, len as u64, size as u64) {
            return Err(CudaError::NotImportable { why: "it is smaller than the size that was given".into() });
        }
        Ok(Borrowed { handle: legacy_handle(base)?, offset })
    })
}

/// The handle of the allocation that begins at this address. The device's context is current.
pub fn legacy_handle(ptr: u64) -> Result<IpcHandle, CudaError> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: a pointer to a variable for the handle. The driver checks the address.
    unsafe { result::ipc_get_mem(&raw mut handle, ptr) }?;
    Ok(chars::bytes(handle.reserved))
}

/// Memory of another process.
#[derive(Debug)]
pub enum ForeignMemory {
    /// Received as a descriptor.
    Vmm(VmmMapping),
    /// Received as a legacy handle.
    Legacy(Arc<LegacyOpen>),
}

impl ForeignMemory {
    /// Maps the memory of a descriptor. The driver fails if it does not have this length.
    pub fn import_vmm(device: &Device, fd: BorrowedFd<'_>, len: usize) -> Result<Self, CudaError> {
        if !device.has_vmm() {
            return Err(CudaError::Unsupported {
                what: "share memory by descriptor",
            });
        }
        device.with(|| {
            let mut handle = 0;
            // The driver expects the descriptor's number in place of a pointer.
            let number = fd.as_raw_fd() as usize as *mut c_void;
            // SAFETY: a pointer to a variable for the handle, and an open descriptor, which the driver checks.
            unsafe { result::vmm_import(&raw mut handle, number, POSIX_FD) }?;
            let handle = Handle(handle);
            let map = |access| VmmMapping::new(&handle, len, device, access);
            // Consumers must not write frames, but not every driver can enforce that.
            let mapping = map(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ).or_else(
                |error| match error {
                    CudaError::Driver { .. } => {
                        map(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                    }
                    error => Err(error),
                },
            )?;
            Ok(Self::Vmm(mapping))
        })
    }

    /// Opens a handle, or returns the open one.
    pub fn open_legacy(device: &Device, handle: &IpcHandle) -> Result<Self, CudaError> {
        LegacyOpen::get(device, handle).map(Self::Legacy)
    }

    /// The first byte, on the device.
    pub fn ptr(&self) -> u64 {
        match self {
            Self::Vmm(mapping) => mapping.ptr,
            Self::Legacy(open) => open.ptr,
        }
    }

    /// Whether the memory contains these bytes. The sender of a handle may have stated any size.
    pub fn has(&self, offset: u64, len: u64) -> Result<bool, CudaError> {
        let (start, end) = match self {
            Self::Vmm(mapping) => (mapping.ptr, mapping.ptr + mapping.len as u64),
            Self::Legacy(open) => open.device.with(|| {
                let (mut base, mut size) = (0, 0);
                // SAFETY: pointers to variables for the results, and an address of open memory.
                let found =
                    unsafe { result::address_range(&raw mut base, &raw mut size, open.ptr) };
                match found {
                    Ok(()) => Ok((base, base + size as u64)),
                    // The function is documented only for cuMemAlloc's memory, not for opened handles.
                    Err(CudaError::Driver { .. }) => {
                        let start = attribute(open.ptr, RANGE_START, u64::MAX)?;
                        Ok((start, start + attribute(open.ptr, RANGE_SIZE, u64::MAX)?))
                    }
                    Err(error) => Err(error),
                }
            })?,
        };
        let from = self.ptr().checked_add(offset);
        let to = from.and_then(|from| from.checked_add(len));
        Ok(from.is_some_and(|from| from >= start) && to.is_some_and(|to| to <= end))
    }
}

/// An open handle. Each handle is opened once in a process: opening it twice is an error with some drivers, and takes 10 ms
/// with all.
#[derive(Debug)]
pub struct LegacyOpen {
    ptr: u64,
    device: Device,
}

/// By device and handle.
type LegacyCache = HashMap<(u32, IpcHandle), Weak<LegacyOpen>>;
static LEGACY: LazyLock<Mutex<LegacyCache>> = LazyLock::new(Mutex::default);

impl LegacyOpen {
    fn get(device: &Device, handle: &IpcHandle) -> Result<Arc<Self>, CudaError> {
        // Host functions never take this lock.
        let mut cache = lock(&LEGACY);
        let key = (device.ordinal(), *handle);
        if let Some(open) = cache.get(&key).and_then(Weak::upgrade) {
            return Ok(open);
        }
        let open = || {
            let mut ptr = 0;
            let handle = CUipcMemHandle {
                reserved: chars::chars(*handle),
            };
            // SAFETY: a pointer to a variable for the address. The driver checks the handle.
            device
                .with(|| unsafe { result::ipc_open_mem(&raw mut ptr, handle, LAZY_PEER_ACCESS) })
                .map(|()| ptr)
        };
        let ptr = open().or_else(|error| {
            if error.is(ALREADY_MAPPED) {
                // Its last user was dropped, and it is about to be closed.
                reaper::flush(FREEING_TIME);
                return open();
            }
            Err(error)
        })?;
        let opened = Arc::new(Self {
            ptr,
            device: device.clone(),
        });
        cache.retain(|_, open| open.strong_count() > 0);
        cache.insert(key, Arc::downgrade(&opened));
        Ok(opened)
    }
}

impl Drop for LegacyOpen {
    fn drop(&mut self) {
        let (ptr, device) = (self.ptr, self.device.clone());
        reaper::free(move || {
            // SAFETY: opened by `get`, and no longer used.
            let _ = device.with(|| unsafe { result::ipc_close_mem(ptr) });
            fault::point(Point::TwinClosed);
        });
    }
}
