// SPDX-License-Identifier: MPL-2.0

//! The driver's functions with a `Result`: a missing function is an error, and so is a result other than 0.
#![allow(unsafe_code)] // calls foreign functions

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuuid,
};

use libloading::Library;

use crate::driver::Driver;
use crate::error::CudaError;

/// A host function that runs in the order of a stream.
pub type HostFn = Option<unsafe extern "C" fn(*mut c_void)>;

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($arg:ident: $type:ty),*) $what:literal;)*) => {
        /// The functions that the driver has.
        #[derive(Debug)]
        pub struct Table {
            /// `cuInit`
            pub init: Option<unsafe extern "C" fn(c_uint) -> u32>,
            /// `cuGetErrorName`
            pub error_name: Option<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>,
            $(#[doc = $symbol] pub $name: Option<unsafe extern "C" fn($($type),*) -> u32>,)*
        }

        impl Table {
            /// Looks up each function in the library.
            pub fn load(library: &Library) -> Self {
                /// A function, if the driver has it.
                fn find<F: Copy>(library: &Library, symbol: &str) -> Option<F> {
                    // SAFETY: `F` is the function's type of cuda.h, with a number in place of CUresult.
                    unsafe { library.get::<F>(symbol.as_bytes()) }.ok().map(|found| *found)
                }
                Self {
                    init: find(library, "cuInit"),
                    error_name: find(library, "cuGetErrorName"),
                    $($name: find(library, $symbol),)*
                }
            }
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Those of the driver's function: pointers are valid, handles are alive, the right context is current.
            pub unsafe fn $name($($arg: $type),*) -> Result<(), CudaError> {
                let table = &Driver::get()?.table;
                let call = table.$name.ok_or(CudaError::DriverTooOld { symbol: $symbol })?;
                // SAFETY: promised by the caller.
                table.check($what, unsafe { call($($arg),*) })
            }
        )*
    };
}

calls! {
    device_count = "cuDeviceGetCount"(count: *mut c_int) "count devices";
    device_get = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int) "find a device";
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, device: CUdevice) "ask for a device's UUID";
    device_uuid_v1 = "cuDeviceGetUuid"(uuid: *mut CUuuid, device: CUdevice) "ask for a device's UUID";
    device_name = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: CUdevice) "ask for a device's name";
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: CUdevice)
        "ask what a device can do";
    primary_retain = "cuDevicePrimaryCtxRetain"(context: *mut CUcontext, device: CUdevice) "use a device's primary context";
    capture_mode = "cuThreadExchangeStreamCaptureMode"(mode: *mut c_uint) "let a thread work while streams are captured";
    context_push = "cuCtxPushCurrent_v2"(context: CUcontext) "make a context current";
    context_pop = "cuCtxPopCurrent_v2"(context: *mut CUcontext) "put a context back";
    context_synchronize = "cuCtxSynchronize"() "wait for all work on a device";
    mem_alloc = "cuMemAlloc_v2"(ptr: *mut CUdeviceptr, len: usize) "allocate device memory";
    mem_free = "cuMemFree_v2"(ptr: CUdeviceptr) "free device memory";
    address_range = "cuMemGetAddressRange_v2"(base: *mut CUdeviceptr, len: *mut usize, ptr: CUdeviceptr)
        "find an allocation";
    pointer_attribute = "cuPointerGetAttribute"(to: *mut c_void, attribute: c_uint, ptr: CUdeviceptr)
        "ask about device memory";
    ipc_get_mem = "cuIpcGetMemHandle"(handle: *mut CUipcMemHandle, ptr: CUdeviceptr) "make a handle of device memory";
    ipc_open_mem = "cuIpcOpenMemHandle_v2"(ptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint)
        "open a handle of device memory";
    ipc_close_mem = "cuIpcCloseMemHandle"(ptr: CUdeviceptr) "close device memory";
    ipc_get_event = "cuIpcGetEventHandle"(handle: *mut CUipcEventHandle, event: CUevent) "make a handle of an event";
    ipc_open_event = "cuIpcOpenEventHandle"(event: *mut CUevent, handle: CUipcEventHandle) "open a handle of an event";
    event_create = "cuEventCreate"(event: *mut CUevent, flags: c_uint) "make an event";
    event_record = "cuEventRecord"(event: CUevent, stream: CUstream) "record an event";
    event_query = "cuEventQuery"(event: CUevent) "look at an event";
    event_destroy = "cuEventDestroy_v2"(event: CUevent) "destroy an event";
    stream_wait = "cuStreamWaitEvent"(stream: CUstream, event: CUevent, flags: c_uint) "have a stream wait";
    stream_query = "cuStreamQuery"(stream: CUstream) "look at a stream";
    stream_synchronize = "cuStreamSynchronize"(stream: CUstream) "wait for a stream";
    stream_create = "cuStreamCreate"(stream: *mut CUstream, flags: c_uint) "make a stream";
    stream_context = "cuStreamGetCtx"(stream: CUstream, context: *mut CUcontext) "find a stream's context";
    is_capturing = "cuStreamIsCapturing"(stream: CUstream, status: *mut c_uint) "ask whether a stream is captured";
    launch_host = "cuLaunchHostFunc"(stream: CUstream, function: HostFn, data: *mut c_void)
        "put a host function on a stream";
    host_register = "cuMemHostRegister_v2"(ptr: *mut c_void, len: usize, flags: c_uint) "register host memory";
    host_unregister = "cuMemHostUnregister"(ptr: *mut c_void) "unregister host memory";
    host_pointer = "cuMemHostGetDevicePointer_v2"(to: *mut CUdeviceptr, ptr: *mut c_void, flags: c_uint)
        "find host memory's address on a device";
    copy_to_device_async = "cuMemcpyHtoDAsync_v2"(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream)
        "copy to a device";
    copy_to_host_async = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream)
        "copy from a device";
    copy_peer_async = "cuMemcpyPeerAsync"(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, len: usize, stream: CUstream
    ) "copy between devices";
    copy_async = "cuMemcpyAsync"(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) "copy";
    copy_rows_async = "cuMemcpy2DAsync_v2"(copy: *const CUDA_MEMCPY2D, stream: CUstream) "copy rows";
    vmm_granularity = "cuMemGetAllocationGranularity"(
        granularity: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags
    ) "ask how device memory is divided";
    vmm_create = "cuMemCreate"(
        handle: *mut CUmemGenericAllocationHandle, len: usize, prop: *const CUmemAllocationProp, flags: u64
    ) "allocate device memory";
    vmm_release = "cuMemRelease"(handle: CUmemGenericAllocationHandle) "release device memory";
    vmm_export = "cuMemExportToShareableHandle"(
        to: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64
    ) "export device memory";
    vmm_import = "cuMemImportFromShareableHandle"(
        handle: *mut CUmemGenericAllocationHandle, from: *mut c_void, kind: CUmemAllocationHandleType
    ) "import device memory";
    vmm_reserve = "cuMemAddressReserve"(ptr: *mut CUdeviceptr, len: usize, align: usize, at: CUdeviceptr, flags: u64)
        "reserve device addresses";
    vmm_free = "cuMemAddressFree"(ptr: CUdeviceptr, len: usize) "free device addresses";
    vmm_map = "cuMemMap"(ptr: CUdeviceptr, len: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64)
        "map device memory";
    vmm_unmap = "cuMemUnmap"(ptr: CUdeviceptr, len: usize) "unmap device memory";
    vmm_access = "cuMemSetAccess"(ptr: CUdeviceptr, len: usize, access: *const CUmemAccessDesc, count: usize)
        "make device memory accessible";
}
