// SPDX-License-Identifier: MPL-2.0

//! Device functions of test programs outside of xmem: kernels, streams, memory. They also work with a real driver.

#![allow(dead_code)] // each test program uses a part

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::sys;
use xmem_core::cuda::{Device, Stream};
use xmem_cuda_standin::{Machine, PTX, is_held};

/// A device with the test kernels. Its primary context is current in this thread.
pub struct Gpu {
    pub device: Device,
    module: sys::CUmodule,
}

#[track_caller]
pub fn ok(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

macro_rules! arguments {
    ($($value:expr),*) => { &mut [$(std::ptr::from_mut(&mut $value).cast::<c_void>()),*] };
}

/// Words for which streams wait, each used once. They are in page-locked memory, which has one address for the host and all
/// contexts. Host functions are not used, because they "may be serialized" with those of all other streams (cuLaunchHostFunc).
fn words() -> &'static [AtomicU32] {
    static WORDS: OnceLock<&'static [AtomicU32]> = OnceLock::new();
    WORDS.get_or_init(|| {
        const COUNT: usize = 1024;
        const PORTABLE_AND_MAPPED: u32 = 3;
        let mut place = std::ptr::null_mut();
        // SAFETY: a place for the result, a context that is current; never freed, and all that use it are atomic.
        unsafe {
            ok(sys::cuMemHostAlloc(
                &raw mut place,
                COUNT * 4,
                PORTABLE_AND_MAPPED,
            ));
            place.write_bytes(0, COUNT * 4);
            std::slice::from_raw_parts(place.cast(), COUNT)
        }
    })
}

/// Lets a stream of the current context wait for a word, which the caller sets.
fn block(stream: Stream) -> &'static AtomicU32 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let word = &words()[NEXT.fetch_add(1, Ordering::Relaxed)];
    let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: a stream of this process, and a word that stays.
    unsafe {
        ok(sys::cuStreamWaitValue32_v2(
            stream.as_raw() as sys::CUstream,
            std::ptr::from_ref(word) as u64,
            1,
            at_least,
        ))
    };
    word
}

static GOES_ON: AtomicBool = AtomicBool::new(false);
static LATE: Mutex<Vec<&'static AtomicU32>> = Mutex::new(Vec::new());

/// Lets blocked streams continue.
pub fn go_on() {
    GOES_ON.store(true, Ordering::Release);
    let late = std::mem::take(&mut *LATE.lock().unwrap_or_else(PoisonError::into_inner));
    late.iter()
        .for_each(|word| word.store(1, Ordering::Release));
}

/// Creates a context in addition to the device's primary context.
pub fn new_context(ordinal: u32) -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: a place for the result; what was current before is current again.
    unsafe {
        ok(sys::cuCtxCreate_v2(
            &raw mut context,
            0,
            ordinal.cast_signed(),
        ));
        ok(sys::cuCtxPopCurrent_v2(&raw mut context));
    }
    context
}

impl Gpu {
    pub fn new(ordinal: u32) -> Self {
        let device = Device::new(ordinal).unwrap();
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the result.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(
                &raw mut context,
                ordinal.cast_signed(),
            ))
        };
        Self::of(device, context)
    }

    /// A new context of the program, current in this thread.
    pub fn elsewhere(ordinal: u32) -> Self {
        Self::of(Device::new(ordinal).unwrap(), new_context(ordinal))
    }

    fn of(device: Device, context: sys::CUcontext) -> Self {
        let mut module = std::ptr::null_mut();
        let ptx = CString::new(PTX).unwrap();
        // SAFETY: a place for the result, and a program that ends in 0.
        unsafe {
            ok(sys::cuCtxSetCurrent(context));
            ok(sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()));
        }
        // Allocated now, because a stream may be captured later.
        words();
        Self { device, module }
    }

    pub fn stream(&self) -> Stream {
        let mut stream = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a place for the result; the stream is never destroyed.
        unsafe {
            ok(sys::cuStreamCreate(&raw mut stream, flags));
            Stream::from_raw(stream as u64)
        }
    }

    /// A stream that is blocked until [`go_on`].
    pub fn late_stream(&self) -> Stream {
        let stream = self.stream();
        if !GOES_ON.load(Ordering::Acquire) {
            let word = block(stream);
            LATE.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(word);
        }
        stream
    }

    /// A blocked stream of a new context, until [`go_on`].
    pub fn other_context(&self) -> Stream {
        let mut context = new_context(self.device.ordinal());
        // SAFETY: a context that is there; what was current before is current again.
        unsafe {
            ok(sys::cuCtxPushCurrent_v2(context));
            let stream = self.late_stream();
            ok(sys::cuCtxPopCurrent_v2(&raw mut context));
            stream
        }
    }

    fn launch(&self, name: &str, stream: Stream, arguments: &mut [*mut c_void]) {
        let mut function = std::ptr::null_mut();
        let name = CString::new(name).unwrap();
        // The stand-in blocks its streams itself.
        if Machine::is_real() && is_held() {
            let word = block(stream);
            std::thread::spawn(|| {
                while is_held() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                word.store(1, Ordering::Release);
            });
        }
        // SAFETY: a kernel of this module, with arguments as its text has them.
        unsafe {
            ok(sys::cuModuleGetFunction(
                &raw mut function,
                self.module,
                name.as_ptr(),
            ));
            let stream = stream.as_raw() as sys::CUstream;
            let arguments = arguments.as_mut_ptr();
            ok(sys::cuLaunchKernel(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                arguments,
                std::ptr::null_mut(),
            ));
        }
    }

    /// Fills memory with `byte`.
    pub fn fill(&self, stream: Stream, mut ptr: u64, len: usize, byte: u8) {
        let (mut len, mut byte, mut pause) = (len as u64, u32::from(byte), 0u32);
        self.launch("xmem_fill", stream, arguments![ptr, len, byte, pause]);
    }

    /// Adds the number of bytes that differ from `byte` to the word at `result`.
    pub fn check(&self, stream: Stream, mut ptr: u64, len: usize, byte: u8, mut result: u64) {
        let (mut len, mut byte) = (len as u64, u32::from(byte));
        self.launch("xmem_check", stream, arguments![ptr, len, byte, result]);
    }

    /// Ends the lease with this word.
    pub fn end_lease(&self, stream: Stream, mut word: u64) {
        self.launch("xmem_end_lease", stream, arguments![word]);
    }

    /// Fails, and puts the context in error.
    pub fn trap(&self, stream: Stream) {
        self.launch("xmem_trap", stream, &mut []);
    }

    /// A word of device memory with the value 0. Never freed.
    pub fn word(&self) -> u64 {
        let ptr = self.allocate(4);
        // SAFETY: memory of that size, and the default stream, for which streams that wait for no other do not wait.
        unsafe {
            ok(sys::cuMemsetD8_v2(ptr, 0, 4));
            ok(sys::cuStreamSynchronize(std::ptr::null_mut()));
        }
        ptr
    }

    pub fn allocate(&self, len: usize) -> u64 {
        let mut ptr = 0;
        // SAFETY: a place for the result.
        unsafe { ok(sys::cuMemAlloc_v2(&raw mut ptr, len)) };
        ptr
    }

    /// Page-locked host memory. Never freed.
    pub fn allocate_host(&self, len: usize) -> u64 {
        let mut ptr = std::ptr::null_mut();
        // SAFETY: a place for the result.
        unsafe { ok(sys::cuMemAllocHost_v2(&raw mut ptr, len)) };
        ptr as u64
    }

    pub fn free(&self, ptr: u64) {
        // SAFETY: memory of `allocate`.
        unsafe { ok(sys::cuMemFree_v2(ptr)) };
    }

    pub fn read_word(&self, ptr: u64) -> u32 {
        let mut word = 0u32;
        // SAFETY: a place of that size.
        unsafe { ok(sys::cuMemcpyDtoH_v2((&raw mut word).cast(), ptr, 4)) };
        word
    }

    pub fn read(&self, ptr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: a place of that size.
        unsafe { ok(sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), ptr, len)) };
        bytes
    }

    /// Copies from host memory, and does not wait for the stream. So the bytes are copied to page-locked memory first: for other
    /// memory "the driver may synchronize with the stream" (API synchronization behavior).
    pub fn write(&self, stream: Stream, to: u64, bytes: &[u8]) {
        let from = self.allocate_host(bytes.len()) as *mut u8;
        let stream = stream.as_raw() as sys::CUstream;
        // SAFETY: both have this size, and the page-locked memory is never freed.
        unsafe {
            from.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            ok(sys::cuMemcpyHtoDAsync_v2(
                to,
                from.cast_const().cast(),
                bytes.len(),
                stream,
            ));
        };
    }

    /// Copies on the device.
    pub fn copy(&self, stream: Stream, to: u64, from: u64, len: usize) {
        let stream = stream.as_raw() as sys::CUstream;
        // SAFETY: memory of that size at both addresses.
        unsafe { ok(sys::cuMemcpyDtoDAsync_v2(to, from, len, stream)) };
    }

    /// Begins to capture this stream (`own`) or another one, and forbids potentially unsafe calls meanwhile. Returns what is captured.
    pub fn capture(&self, which: &str, own: Stream) -> Stream {
        let stream = if which == "own" { own } else { self.stream() };
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: a stream of this process.
        unsafe {
            ok(sys::cuStreamBeginCapture_v2(
                stream.as_raw() as sys::CUstream,
                mode,
            ))
        };
        stream
    }

    /// Ends a capture. Returns whether it succeeded.
    pub fn end_capture(&self, stream: Stream) -> bool {
        let mut graph = std::ptr::null_mut();
        // SAFETY: a place for the graph.
        let ended =
            unsafe { sys::cuStreamEndCapture(stream.as_raw() as sys::CUstream, &raw mut graph) };
        if ended == sys::CUresult::CUDA_SUCCESS {
            // SAFETY: made just now.
            unsafe { ok(sys::cuGraphDestroy(graph)) };
        }
        ended == sys::CUresult::CUDA_SUCCESS
    }

    /// Waits until the stream is idle.
    pub fn finish(&self, stream: Stream) {
        // SAFETY: a stream of this process.
        unsafe { ok(sys::cuStreamSynchronize(stream.as_raw() as sys::CUstream)) };
    }

    pub fn is_done(&self, stream: Stream) -> bool {
        // SAFETY: a stream of this process.
        match unsafe { sys::cuStreamQuery(stream.as_raw() as sys::CUstream) } {
            sys::CUresult::CUDA_SUCCESS => true,
            sys::CUresult::CUDA_ERROR_NOT_READY => false,
            error => panic!("{error:?}"),
        }
    }
}
