// SPDX-License-Identifier: MPL-2.0

//! The driver calls that a child process can execute, by name, with numbers as arguments.

// Every call is a call of a C function with the arguments of a test: SAFETY is the same everywhere. Out pointers are to
// locals that outlive the call; handles and device pointers are numbers that the driver checks; host pointers are those of
// memory that `host` leaked, except in tests that want the process to die.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, *};

type Answer = Result<Vec<u64>, CUresult>;

/// The number of host functions that were called.
static RAN: AtomicU64 = AtomicU64::new(0);
/// The result of a driver call in a host function.
static FROM_HOST_FUNCTION: AtomicU32 = AtomicU32::new(u32::MAX);

fn ok(result: CUresult) -> Answer {
    with(result, &[])
}

fn with(result: CUresult, values: &[u64]) -> Answer {
    match result {
        CUresult::CUDA_SUCCESS => Ok(values.to_vec()),
        error => Err(error),
    }
}

unsafe extern "C" fn count(_: *mut c_void) {
    RAN.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn call_the_driver(_: *mut c_void) {
    let mut version = 0;
    let result = unsafe { cuDriverGetVersion(&mut version) };
    FROM_HOST_FUNCTION.store(result as u32, Ordering::SeqCst);
    RAN.fetch_add(1, Ordering::SeqCst);
}

/// Sets a word to show that it runs, and waits until the word changes.
unsafe extern "C" fn wait(word: *mut c_void) {
    let word = unsafe { &*word.cast::<AtomicU32>() };
    word.store(1, Ordering::Release);
    while word.load(Ordering::Acquire) != 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn location(device: u64) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device as i32,
    }
}

fn properties(device: u64, shareable: u64) -> CUmemAllocationProp {
    let mut properties =
        unsafe { std::mem::MaybeUninit::<CUmemAllocationProp>::zeroed().assume_init() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    if shareable != 0 {
        properties.requestedHandleTypes =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties
}

fn words(bytes: [c_char; 64]) -> Vec<u64> {
    let bytes = bytes.map(|byte| byte.to_ne_bytes()[0]);
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|part| u64::from_le_bytes(*part))
        .collect()
}

fn bytes(words: &[u64]) -> [c_char; 64] {
    let bytes: Vec<_> = words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .map(|byte| c_char::from_ne_bytes([byte]))
        .collect();
    bytes.try_into().expect("64 bytes")
}

/// The first byte, and the number of equal bytes.
fn uniform(bytes: &[u8]) -> Vec<u64> {
    vec![
        bytes[0].into(),
        bytes.iter().filter(|byte| **byte == bytes[0]).count() as u64,
    ]
}

/// The module of the current context. Loaded once, because loading may wait for streams.
fn module() -> Result<CUmodule, CUresult> {
    static LOADED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
    let mut context = null_mut();
    ok(unsafe { cuCtxGetCurrent(&mut context) })?;
    let mut loaded = LOADED.lock().expect("no panic");
    if let Some(module) = loaded.get(&(context as u64)) {
        return Ok(*module as CUmodule);
    }
    let mut module = null_mut();
    let text = CString::new(xmem_cuda_standin::PTX).expect("text");
    ok(unsafe { cuModuleLoadData(&mut module, text.as_ptr().cast()) })?;
    loaded.insert(context as u64, module as u64);
    Ok(module)
}

fn launch(name: &str, stream: u64, arguments: &mut [*mut c_void]) -> Answer {
    let mut function = null_mut();
    let name = CString::new(name).expect("a name");
    unsafe {
        ok(cuModuleGetFunction(&mut function, module()?, name.as_ptr()))?;
        let stream = stream as CUstream;
        let parameters = arguments.as_mut_ptr();
        ok(cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            parameters,
            null_mut(),
        ))
    }
}

unsafe extern "C" fn clear(word: *mut c_void) {
    unsafe { &*word.cast::<AtomicU32>() }.store(0, Ordering::Release);
}

/// The latency of clearing a word. Arguments: the method (0: write by the stream, 1: host function, 2: kernel), the word's address
/// for the host and for the device, the number of repetitions, the stream.
fn latency(a: &[u64]) -> Answer {
    let word = std::ptr::with_exposed_provenance_mut::<AtomicU32>(a[1] as usize);
    let mut times = Vec::new();
    for _ in 0..a[3] {
        unsafe { &*word }.store(1, Ordering::SeqCst);
        let start = Instant::now();
        let stream = a[4] as CUstream;
        match a[0] {
            0 => ok(unsafe { cuStreamWriteValue32_v2(stream, a[2], 0, 0) })?,
            1 => ok(unsafe { cuLaunchHostFunc(stream, Some(clear), word.cast()) })?,
            _ => {
                let mut there = a[2];
                launch("xmem_end_lease", a[4], &mut [(&raw mut there).cast()])?
            }
        };
        while unsafe { &*word }.load(Ordering::Acquire) != 0 {
            if start.elapsed() > Duration::from_secs(5) {
                return Err(CUresult::CUDA_ERROR_TIMEOUT);
            }
            std::hint::spin_loop();
        }
        times.push(start.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    Ok(vec![at(0), at(50), at(99)])
}

fn rectangle(a: &[u64]) -> CUDA_MEMCPY2D {
    let mut copy = unsafe { std::mem::MaybeUninit::<CUDA_MEMCPY2D>::zeroed().assume_init() };
    copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    (copy.srcDevice, copy.srcPitch, copy.dstDevice, copy.dstPitch) =
        (a[0], a[1] as usize, a[2], a[3] as usize);
    (copy.WidthInBytes, copy.Height, copy.dstXInBytes, copy.dstY) =
        (a[4] as usize, a[5] as usize, a[6] as usize, a[7] as usize);
    copy
}

pub(super) fn call(name: &str, a: &[u64]) -> Answer {
    let mut n = 0_u64;
    let mut small = 0_i32;
    let mut size = 0_usize;
    let mut context: CUcontext = null_mut();
    let mut stream: CUstream = null_mut();
    let mut event: CUevent = null_mut();
    let mut host: *mut c_void = null_mut();
    let pointer = |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    unsafe {
        match name {
            "present" => Ok(vec![sys::is_culib_present().into()]),
            "has_wait_value" => Ok(vec![
                sys::culib()
                    .get::<fn()>(b"cuStreamWaitValue32_v2\0")
                    .is_ok()
                    .into(),
            ]),
            "has_write_value" => Ok(vec![
                sys::culib()
                    .get::<fn()>(b"cuStreamWriteValue32_v2\0")
                    .is_ok()
                    .into(),
            ]),
            "init" => ok(cuInit(0)),
            "count" => with(cuDeviceGetCount(&mut small), &[]).map(|_| vec![small as u64]),
            "is_called_a_standin" => {
                let mut name = [0; 100];
                ok(cuDeviceGetName(name.as_mut_ptr(), 100, a[0] as i32))?;
                Ok(vec![
                    (CStr::from_ptr(name.as_ptr()).to_string_lossy()
                        == xmem_cuda_standin::DEVICE_NAME)
                        .into(),
                ])
            }
            "uuid" => {
                let mut uuid = CUuuid { bytes: [0; 16] };
                ok(cuDeviceGetUuid_v2(&mut uuid, a[0] as i32))?;
                let bytes = uuid.bytes.map(|byte| byte.to_ne_bytes()[0]);
                Ok(bytes
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|part| u64::from_le_bytes(*part))
                    .collect())
            }
            "can_write_value" => {
                let attribute =
                    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
                ok(cuDeviceGetAttribute(&mut small, attribute, 0))?;
                Ok(vec![small as u64])
            }
            "free_memory" => {
                ok(cuMemGetInfo_v2(&mut size, &mut 0))?;
                Ok(vec![size as u64])
            }
            "primary" => {
                ok(cuDevicePrimaryCtxRetain(&mut context, a[0] as i32))?;
                with(cuCtxSetCurrent(context), &[context as u64])
            }
            "release_primary" => ok(cuDevicePrimaryCtxRelease_v2(a[0] as i32)),
            "new_context" => {
                let result = cuCtxCreate_v2(&mut context, 0, a[0] as i32);
                with(result, &[context as u64])
            }
            "destroy_context" => ok(cuCtxDestroy_v2(a[0] as CUcontext)),
            "use_context" => ok(cuCtxSetCurrent(a[0] as CUcontext)),
            "current" => {
                let result = cuCtxGetCurrent(&mut context);
                with(result, &[context as u64])
            }
            "synchronize" => ok(cuCtxSynchronize()),
            "alloc" => {
                let result = cuMemAlloc_v2(&mut n, a[0] as usize);
                with(result, &[n])
            }
            "alloc_async" => {
                let result = cuMemAllocAsync(&mut n, a[0] as usize, a[1] as CUstream);
                with(result, &[n])
            }
            "free" => ok(cuMemFree_v2(a[0])),
            "range" => {
                let result = cuMemGetAddressRange_v2(&mut n, &mut size, a[0]);
                with(result, &[n, size as u64])
            }
            "range_by_attributes" => {
                let start = CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
                ok(cuPointerGetAttribute((&raw mut n).cast(), start, a[0]))?;
                let length = CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE;
                let result = cuPointerGetAttribute((&raw mut size).cast(), length, a[0]);
                with(result, &[n, size as u64])
            }
            "memory_type" => {
                let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
                let result = cuPointerGetAttribute((&raw mut small).cast(), attribute, a[0]);
                with(result, &[small as u64])
            }
            "stream_context" => {
                let result = cuStreamGetCtx(a[0] as CUstream, &mut context);
                with(result, &[context as u64])
            }
            "ipc_capable" => {
                let attribute =
                    CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
                let result = cuPointerGetAttribute((&raw mut small).cast(), attribute, a[0]);
                with(result, &[small as u64])
            }
            "ordinal" => {
                let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
                let result = cuPointerGetAttribute((&raw mut small).cast(), attribute, a[0]);
                with(result, &[small as u64])
            }
            "set" => ok(cuMemsetD8Async(
                a[0],
                a[1] as u8,
                a[2] as usize,
                a[3] as CUstream,
            )),
            "set_now" => ok(cuMemsetD8_v2(a[0], a[1] as u8, a[2] as usize)),
            "set32" => ok(cuMemsetD32Async(
                a[0],
                a[1] as u32,
                a[2] as usize,
                a[3] as CUstream,
            )),
            "uniform" => {
                let mut bytes = vec![0_u8; a[1] as usize];
                ok(cuMemcpyDtoH_v2(
                    bytes.as_mut_ptr().cast(),
                    a[0],
                    bytes.len(),
                ))?;
                Ok(uniform(&bytes))
            }
            "uniform_async" => {
                let mut bytes = vec![0_u8; a[1] as usize];
                ok(cuMemcpyDtoHAsync_v2(
                    bytes.as_mut_ptr().cast(),
                    a[0],
                    bytes.len(),
                    a[2] as CUstream,
                ))?;
                Ok(uniform(&bytes))
            }
            "upload" => ok(cuMemcpyHtoD_v2(a[0], pointer(a[1]), a[2] as usize)),
            "upload_async" => ok(cuMemcpyHtoDAsync_v2(
                a[0],
                pointer(a[1]),
                a[2] as usize,
                a[3] as CUstream,
            )),
            "download_async" => ok(cuMemcpyDtoHAsync_v2(
                pointer(a[0]),
                a[1],
                a[2] as usize,
                a[3] as CUstream,
            )),
            "copy" => ok(cuMemcpyDtoDAsync_v2(
                a[0],
                a[1],
                a[2] as usize,
                a[3] as CUstream,
            )),
            "copy_any" => ok(cuMemcpy(a[0], a[1], a[2] as usize)),
            "copy_rectangle" => ok(cuMemcpy2DAsync_v2(&rectangle(a), null_mut())),
            "ipc_handle" => {
                let mut handle = CUipcMemHandle { reserved: [0; 64] };
                ok(cuIpcGetMemHandle(&mut handle, a[0]))?;
                Ok(words(handle.reserved))
            }
            "open" => {
                let result =
                    cuIpcOpenMemHandle_v2(&mut n, CUipcMemHandle { reserved: bytes(a) }, 1);
                with(result, &[n])
            }
            "close" => ok(cuIpcCloseMemHandle(a[0])),
            "stream" => {
                let result = cuStreamCreate(&mut stream, a[0] as u32);
                with(result, &[stream as u64])
            }
            "destroy_stream" => ok(cuStreamDestroy_v2(a[0] as CUstream)),
            "query" => ok(cuStreamQuery(a[0] as CUstream)),
            "sync" => ok(cuStreamSynchronize(a[0] as CUstream)),
            "begin_capture" => {
                let mode = match a[1] {
                    0 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
                    1 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                    _ => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
                };
                ok(cuStreamBeginCapture_v2(a[0] as CUstream, mode))
            }
            "end_capture" => {
                let mut graph = null_mut();
                ok(cuStreamEndCapture(a[0] as CUstream, &mut graph))?;
                ok(cuGraphDestroy(graph))
            }
            "capturing" => {
                let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
                let result = cuStreamIsCapturing(a[0] as CUstream, &mut status);
                with(result, &[status as u64])
            }
            "capture_mode" => {
                let mut mode = match a[0] {
                    0 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
                    1 => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                    _ => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
                };
                let result = cuThreadExchangeStreamCaptureMode(&mut mode);
                with(result, &[mode as u64])
            }
            "host_function" => ok(cuLaunchHostFunc(a[0] as CUstream, Some(count), null_mut())),
            "waiting_host_function" => ok(cuLaunchHostFunc(
                a[0] as CUstream,
                Some(wait),
                pointer(a[1]),
            )),
            "bad_host_function" => ok(cuLaunchHostFunc(
                a[0] as CUstream,
                Some(call_the_driver),
                null_mut(),
            )),
            "ran" => Ok(vec![
                RAN.load(Ordering::SeqCst),
                FROM_HOST_FUNCTION.load(Ordering::SeqCst).into(),
            ]),
            "write_value" => ok(cuStreamWriteValue32_v2(
                a[2] as CUstream,
                a[0],
                a[1] as u32,
                0,
            )),
            "wait_value" => ok(cuStreamWaitValue32_v2(
                a[2] as CUstream,
                a[0],
                a[1] as u32,
                1,
            )),
            "event" => {
                let result = cuEventCreate(&mut event, a[0] as u32);
                with(result, &[event as u64])
            }
            "destroy_event" => ok(cuEventDestroy_v2(a[0] as CUevent)),
            "record" => ok(cuEventRecord(a[0] as CUevent, a[1] as CUstream)),
            "wait_event" => ok(cuStreamWaitEvent(a[1] as CUstream, a[0] as CUevent, 0)),
            "query_event" => ok(cuEventQuery(a[0] as CUevent)),
            "sync_event" => ok(cuEventSynchronize(a[0] as CUevent)),
            "event_handle" => {
                let mut handle = CUipcEventHandle { reserved: [0; 64] };
                ok(cuIpcGetEventHandle(&mut handle, a[0] as CUevent))?;
                Ok(words(handle.reserved))
            }
            "open_event" => {
                let result =
                    cuIpcOpenEventHandle(&mut event, CUipcEventHandle { reserved: bytes(a) });
                with(result, &[event as u64])
            }
            "new_events" => {
                // The maximum number of interprocess events, and the error afterwards.
                let mut count = 0;
                while count < a[0] {
                    let made = cuEventCreate(&mut event, 6);
                    let mut handle = CUipcEventHandle { reserved: [0; 64] };
                    if made != CUresult::CUDA_SUCCESS {
                        return Ok(vec![count, made as u64, 0]);
                    }
                    let exported = cuIpcGetEventHandle(&mut handle, event);
                    if exported != CUresult::CUDA_SUCCESS {
                        return Ok(vec![count, 0, exported as u64]);
                    }
                    count += 1;
                }
                Ok(vec![count, 0, 0])
            }
            // Memory of the process on a separate page.
            "host" => {
                let memory = libc::mmap(
                    null_mut(),
                    a[0] as usize,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(memory, libc::MAP_FAILED);
                Ok(vec![memory as u64])
            }
            // Memory sealed as a pool's region, so that later mappings are read-only. Returns both mappings.
            "sealed" => {
                let file = libc::memfd_create(
                    c"sealed".as_ptr(),
                    libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
                );
                assert_eq!(libc::ftruncate(file, a[0] as i64), 0);
                let map = |access| {
                    libc::mmap(null_mut(), a[0] as usize, access, libc::MAP_SHARED, file, 0)
                };
                let writable = map(libc::PROT_READ | libc::PROT_WRITE);
                let seals = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
                assert_eq!(libc::fcntl(file, libc::F_ADD_SEALS, seals), 0);
                let read_only = map(libc::PROT_READ);
                assert!(writable != libc::MAP_FAILED && read_only != libc::MAP_FAILED);
                Ok(vec![writable as u64, read_only as u64])
            }
            // The time from the call until this thread sees the word, in ns: minimum, median, 99th percentile.
            "latency" => latency(a),
            "protect" => {
                assert_eq!(
                    libc::mprotect(pointer(a[0]), a[1] as usize, libc::PROT_READ),
                    0
                );
                Ok(Vec::new())
            }
            "host_fill" => {
                pointer(a[0])
                    .cast::<u8>()
                    .write_bytes(a[1] as u8, a[2] as usize);
                Ok(Vec::new())
            }
            "host_uniform" => {
                let bytes = std::slice::from_raw_parts(pointer(a[0]).cast::<u8>(), a[1] as usize);
                Ok(uniform(bytes))
            }
            "peek" => Ok(vec![
                (*pointer(a[0]).cast::<AtomicU32>())
                    .load(Ordering::Acquire)
                    .into(),
            ]),
            "poke" => {
                (*pointer(a[0]).cast::<AtomicU32>()).store(a[1] as u32, Ordering::Release);
                Ok(Vec::new())
            }
            "host_alloc" => {
                let result = cuMemHostAlloc(&mut host, a[0] as usize, 0);
                with(result, &[host as u64])
            }
            "host_free" => ok(cuMemFreeHost(pointer(a[0]))),
            "register" => ok(cuMemHostRegister_v2(
                pointer(a[0]),
                a[1] as usize,
                a[2] as u32,
            )),
            "unregister" => ok(cuMemHostUnregister(pointer(a[0]))),
            "device_pointer" => {
                let result = cuMemHostGetDevicePointer_v2(&mut n, pointer(a[0]), 0);
                with(result, &[n])
            }
            "vmm_granularity" => {
                let option = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
                let result = cuMemGetAllocationGranularity(&mut size, &properties(0, 1), option);
                with(result, &[size as u64])
            }
            "vmm_create" => {
                let result = cuMemCreate(&mut n, a[1] as usize, &properties(a[0], a[2]), 0);
                with(result, &[n])
            }
            "vmm_release" => ok(cuMemRelease(a[0])),
            "vmm_reserve" => {
                let result = cuMemAddressReserve(&mut n, a[0] as usize, 0, 0, 0);
                with(result, &[n])
            }
            "vmm_unreserve" => ok(cuMemAddressFree(a[0], a[1] as usize)),
            "vmm_map" => ok(cuMemMap(a[0], a[1] as usize, 0, a[2], 0)),
            "vmm_unmap" => ok(cuMemUnmap(a[0], a[1] as usize)),
            "vmm_access" => {
                let flags = match a[3] {
                    1 => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
                    _ => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                };
                let access = CUmemAccessDesc {
                    location: location(a[2]),
                    flags,
                };
                ok(cuMemSetAccess(a[0], a[1] as usize, &access, 1))
            }
            "vmm_export" => {
                let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                let result = cuMemExportToShareableHandle((&raw mut small).cast(), a[0], kind, 0);
                with(result, &[small as u64])
            }
            "vmm_import" => {
                let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
                let result = cuMemImportFromShareableHandle(&mut n, pointer(a[0]), kind);
                with(result, &[n])
            }
            "fill_kernel" => {
                let (mut to, mut length, mut byte, mut pause) =
                    (a[0], a[1], a[2] as u32, a[3] as u32);
                let arguments = &mut [
                    (&raw mut to).cast(),
                    (&raw mut length).cast(),
                    (&raw mut byte).cast(),
                    (&raw mut pause).cast(),
                ];
                launch("xmem_fill", a[4], arguments)
            }
            "check_kernel" => {
                let (mut from, mut length, mut byte, mut result) = (a[0], a[1], a[2] as u32, a[3]);
                let arguments = &mut [
                    (&raw mut from).cast(),
                    (&raw mut length).cast(),
                    (&raw mut byte).cast(),
                    (&raw mut result).cast(),
                ];
                launch("xmem_check", a[4], arguments)
            }
            "sum_kernel" => {
                let (mut from, mut length, mut result) = (a[0], a[1], a[2]);
                let arguments = &mut [
                    (&raw mut from).cast(),
                    (&raw mut length).cast(),
                    (&raw mut result).cast(),
                ];
                launch("xmem_sum", a[3], arguments)
            }
            "end_lease_kernel" => {
                let mut word = a[0];
                launch("xmem_end_lease", a[1], &mut [(&raw mut word).cast()])
            }
            "trap_kernel" => launch("xmem_trap", a[0], &mut []),
            "unknown_kernel" => launch("xmem_unknown", 0, &mut []),
            "bad_module" => {
                let mut module = null_mut();
                ok(cuModuleLoadData(&mut module, c"nonsense".as_ptr().cast()))
            }
            // The state in a forked child.
            "init_after_fork" => {
                let child = libc::fork();
                if child == 0 {
                    let code = cuCtxGetCurrent(&mut context) as i32;
                    libc::_exit(code);
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                Ok(vec![libc::WEXITSTATUS(status) as u64])
            }
            "exit" => std::process::exit(a[0] as i32),
            _ => panic!("no call {name}"),
        }
    }
}
