// SPDX-License-Identifier: MPL-2.0

//! Memory pools for stream-ordered allocation, as far as GStreamer uses them. Freed memory is not kept, so the release threshold is
//! not stored.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAllocationType, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream,
};

use crate::entry::{Outcome, get, put};
use crate::settings::settings;
use crate::space::Kind;
use crate::{device, memory, stream};

/// The ordinal in the machine of each pool's device.
static POOLS: Mutex<Option<HashMap<u64, u32>>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut HashMap<u64, u32>) -> T) -> T {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(pools.get_or_insert_default())
}

fn find(pool: CUmemoryPool) -> Outcome<u32> {
    with(|pools| pools.get(&(pool as u64)).copied()).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

api! {
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, poolProps: *const CUmemPoolProps) {
        static NEXT: AtomicU64 = AtomicU64::new(0x5400_0000);
        settings().unless("no-pools")?;
        let wanted = get(poolProps)?;
        let is_possible = wanted.allocType == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
            && wanted.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE
            && wanted.handleTypes.0 == 0;
        if !is_possible {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = device::on_machine(wanted.location.id)?;
        let handle = NEXT.fetch_add(0x100, Ordering::Relaxed);
        with(|pools| pools.insert(handle, device));
        put(pool, handle as CUmemoryPool)
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        with(|pools| pools.remove(&(pool as u64)))
            .map(drop)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, _attr: CUmemPool_attribute, value: *mut c_void) {
        find(pool)?;
        get(value.cast::<u32>()).map(drop)
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, _attr: CUmemPool_attribute, value: *mut c_void) {
        find(pool)?;
        put(value.cast::<u64>(), 0)
    }

    fn cuMemAllocFromPoolAsync(
        dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, hStream: CUstream,
    ) {
        settings().unless("no-pools")?;
        let (context, _) = stream::find(hStream)?;
        if find(pool)? != context.device {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(dptr, memory::allocate(&context, Kind::Async, bytesize)?)
    }
}
