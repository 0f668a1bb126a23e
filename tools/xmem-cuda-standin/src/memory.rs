// SPDX-License-Identifier: MPL-2.0

//! Device memory of a context, and attributes of pointers.
//!
//! New memory has a pattern, and freed memory another one, so that reads at the wrong time are detected, also in another process
//! that still has the memory mapped.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUmemorytype, CUpointer_attribute, CUresult, CUstream,
};

use crate::context::{self, Context};
use crate::entry::{Outcome, get, put, put_if_wanted};
use crate::files::{self, Label, Mapping, MemoryFile};
use crate::settings::settings;
use crate::space::{self, Backing, Block, Kind};
use crate::{device, stream};

/// The content of new memory.
const FRESH: u8 = 0xa5;
/// The content of freed memory.
pub(crate) const FREED: u8 = 0xdb;
/// The limit of the pattern: writing more would take too long.
const PATTERN: usize = 64 << 20;

/// Allocates memory for a device, if enough is free.
pub(crate) fn new_file(device: u32, size: usize, vmm: bool) -> Outcome<Arc<MemoryFile>> {
    let settings = settings();
    let wanted = files::used_memory(&settings.dir, device).checked_add(size as u64);
    if wanted.is_none_or(|wanted| wanted > settings.memory) {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let name = format!("{:016x}", files::random());
    let label = Label {
        size: size as u64,
        device,
        vmm,
    };
    let file = MemoryFile::create(&settings.dir, &name, label)
        .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let mapping = file.map().map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    // SAFETY: a new mapping of at least this length. No other process knows the file.
    unsafe { mapping.start().write_bytes(FRESH, size.min(PATTERN)) };
    Ok(Arc::new(file))
}

/// Assigns device addresses to memory.
pub(crate) fn place(context: &Context, kind: Kind, file: Arc<MemoryFile>) -> Outcome<u64> {
    let length = file.label.size as usize;
    let failed = |_| CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let (mapping, addresses) = (
        file.map().map_err(failed)?,
        Mapping::addresses(length).map_err(failed)?,
    );
    let address = addresses.address();
    let device = file.label.device;
    let block = Block {
        kind,
        length,
        context: context.handle,
        device,
        backing: Arc::new(Backing::File { mapping, file }),
        access: HashMap::new(),
        addresses: Some(addresses),
        flags: 0,
        id: files::random(),
    };
    space::with(|space| space.insert(address, block));
    Ok(address)
}

pub(crate) fn allocate(context: &Context, kind: Kind, size: usize) -> Outcome<u64> {
    // cuMemAlloc aligns addresses to at least 256 bytes; pages are larger.
    let size = size.checked_next_multiple_of(4096).filter(|size| *size > 0);
    let size = size.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    place(context, kind, new_file(context.device, size, false)?)
}

/// Overwrites memory that is not in the map of addresses any more.
pub(crate) fn release(block: &Block) {
    if matches!(block.kind, Kind::Own | Kind::Async)
        && let Backing::File { mapping, file } = &*block.backing
    {
        // The effect on processes that still have the memory mapped is documented as undefined. Here they read the pattern.
        // SAFETY: the mapping has this length. Other processes may read it, as they may while a device writes.
        unsafe {
            mapping
                .start()
                .write_bytes(FREED, mapping.length().min(PATTERN))
        };
        file.mark_freed();
    }
}

/// Removes a block of one of these kinds that begins at this address.
fn take(address: u64, kinds: &[Kind]) -> Outcome<Block> {
    space::with(|space| {
        if space
            .get(&address)
            .is_some_and(|block| kinds.contains(&block.kind))
        {
            space.remove(&address)
        } else {
            None
        }
    })
    .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn attribute(data: *mut c_void, attribute: CUpointer_attribute, address: u64) -> Outcome {
    use CUpointer_attribute as Attribute;
    space::with(|space| {
        // The address of page-locked host memory is also valid.
        let found = match space::find(space, address) {
            Some((start, block)) => Some((address - start, start, &*block)),
            None => space::find_pinned(space, address)
                .map(|(offset, block)| (offset, address - offset, &*block)),
        };
        let (offset, start, block) = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let host = block.host_pointer();
        match attribute {
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT => put(data.cast(), block.context as CUcontext),
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                put(
                    data.cast::<c_uint>(),
                    host.map_or(device, |_| CUmemorytype::CU_MEMORYTYPE_HOST) as c_uint,
                )
            }
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
                let start = block.addresses.as_ref().map_or(start, |addresses| {
                    addresses.address() + host.unwrap_or(0) % crate::host::PAGE
                });
                put(data.cast(), start + offset)
            }
            Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER => put(
                data.cast(),
                host.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)? + offset,
            ),
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(
                data.cast::<c_int>(),
                device::in_process(block.device).unwrap_or(-1),
            ),
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED => put(data.cast::<c_uint>(), 0),
            Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                let capable = block.kind == Kind::Own && !settings().has("no-legacy-ipc");
                put(data.cast::<c_uint>(), c_uint::from(capable))
            }
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(data.cast(), start),
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(data.cast(), block.length),
            Attribute::CU_POINTER_ATTRIBUTE_MAPPED => put(data.cast::<c_uint>(), 1),
            Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
                put(data.cast::<u64>(), u64::from(block.kind == Kind::Vmm))
            }
            Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID => put(data.cast(), block.id),
            _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    })
}

api! {
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) {
        put(dptr, allocate(&*context::current()?, Kind::Own, bytesize)?)
    }

    fn cuMemAllocPitch_v2(
        dptr: *mut CUdeviceptr, pPitch: *mut usize, WidthInBytes: usize, Height: usize, ElementSizeBytes: c_uint,
    ) {
        if !matches!(ElementSizeBytes, 4 | 8 | 16) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let pitch = WidthInBytes.checked_next_multiple_of(512).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let size = pitch.checked_mul(Height).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        put(dptr, allocate(&*context::current()?, Kind::Own, size)?)?;
        put(pPitch, pitch)
    }

    fn cuMemFree_v2(dptr: CUdeviceptr) {
        let context = context::current()?;
        if dptr == 0 {
            return Ok(());
        }
        let device = space::with(|space| space.get(&dptr).map(|block| block.device)).unwrap_or(context.device);
        // The call waits for this process's work on the device, as it may.
        if !settings().has("free-does-not-wait") {
            for context in context::on_device(device) {
                let _ = context.work.wait_for_all();
            }
        }
        release(&take(dptr, &[Kind::Own, Kind::Async])?);
        Ok(())
    }

    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, hStream: CUstream) {
        settings().unless("no-pools")?;
        let (context, _) = stream::find(hStream)?;
        put(dptr, allocate(&context, Kind::Async, bytesize)?)
    }

    fn cuMemFreeAsync(dptr: CUdeviceptr, hStream: CUstream) {
        let (context, id) = stream::find(hStream)?;
        if !space::with(|space| space.get(&dptr).is_some_and(|block| matches!(block.kind, Kind::Own | Kind::Async))) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        context.work.submit(id, move |_| {
            release(&take(dptr, &[Kind::Own, Kind::Async])?);
            Ok(())
        })?;
        Ok(())
    }

    fn cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) {
        context::current()?;
        let opened_too = !settings().has("no-imported-range");
        let found = space::with(|space| {
            let (start, block) = space::find(space, dptr)?;
            (opened_too || block.kind != Kind::Imported).then_some((start, block.length))
        });
        let (start, length) = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        put_if_wanted(pbase, start);
        put_if_wanted(psize, length);
        Ok(())
    }

    fn cuPointerGetAttribute(data: *mut c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) {
        context::current()?;
        self::attribute(data, attribute, ptr)
    }

    fn cuPointerGetAttributes(
        numAttributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr,
    ) {
        context::current()?;
        for index in 0..numAttributes as usize {
            let (which, to) = (get(attributes.wrapping_add(index))?, get(data.wrapping_add(index))?);
            // Attributes that do not apply are set to 0, as documented.
            if self::attribute(to, which, ptr).is_err() {
                put_if_wanted(to.cast::<c_uint>(), 0);
            }
        }
        Ok(())
    }
}
