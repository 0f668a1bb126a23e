// SPDX-License-Identifier: MPL-2.0

//! Stream handles, host functions, and stream memory operations.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUhostFn, CUresult, CUstream, CUstreamWaitValue_flags_enum, cuuint32_t,
};

use crate::capture;
use crate::context::{self, Context};
use crate::entry::{Outcome, in_host_function, put};
use crate::settings::settings;
use crate::space::{self, Access};
use crate::work::{self, LEGACY};

#[derive(Debug, Clone, Copy)]
struct Stream {
    context: u64,
    flags: c_uint,
    priority: c_int,
}

static STREAMS: Mutex<Option<HashMap<u64, Stream>>> = Mutex::new(None);

thread_local! {
    /// This thread's default stream of each context, for the handle CU_STREAM_PER_THREAD (2).
    static PER_THREAD: RefCell<HashMap<u64, u64>> = RefCell::new(HashMap::new());
}

fn with<T>(use_it: impl FnOnce(&mut HashMap<u64, Stream>) -> T) -> T {
    use_it(
        STREAMS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default(),
    )
}

fn create(context: &Context, flags: c_uint, priority: c_int) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5300_0000);
    let id = NEXT.fetch_add(0x100, Ordering::Relaxed);
    with(|streams| {
        streams.insert(
            id,
            Stream {
                context: context.handle,
                flags,
                priority,
            },
        )
    });
    context.work.open(id, flags & 1 == 0);
    id
}

/// The context of a stream, and the stream's id in the context's work.
pub(crate) fn find(stream: CUstream) -> Outcome<(Arc<Context>, u64)> {
    let current = context::current()?;
    match stream as u64 {
        0 | 1 => Ok((current, LEGACY)),
        2 => {
            let known = PER_THREAD.with_borrow(|streams| streams.get(&current.handle).copied());
            // The cached stream may belong to an earlier context with the same handle.
            let id = known
                .filter(|id| with(|streams| streams.contains_key(id)))
                .unwrap_or_else(|| {
                    let id = create(&current, 0, 0);
                    PER_THREAD.with_borrow_mut(|streams| streams.insert(current.handle, id));
                    id
                });
            Ok((current, id))
        }
        id => {
            let found = with(|streams| streams.get(&id).copied())
                .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let context = context::find(found.context)?;
            work::check()?;
            Ok((context, id))
        }
    }
}

/// Whether a stream is ordered with the legacy default stream.
pub(crate) fn is_blocking(id: u64) -> bool {
    with(|streams| streams.get(&id).is_some_and(|stream| stream.flags & 1 == 0))
}

/// Destroys a stream. Queued operations are still executed.
pub(crate) fn destroy(stream: CUstream) -> Outcome {
    let id = stream as u64;
    let stream = with(|streams| streams.remove(&id)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    context::find(stream.context)?.work.close(id);
    Ok(())
}

/// Removes the streams of a destroyed context.
pub(crate) fn forget(context: u64) {
    with(|streams| streams.retain(|_, stream| stream.context != context));
}

/// A host function and its argument, on the way to the thread of a stream.
struct HostFunction {
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: the caller of cuLaunchHostFunc promises that the function can run on any thread.
unsafe impl Send for HostFunction {}

impl HostFunction {
    fn call(self) {
        // "Host functions without a mandated order (such as in independent streams) execute in undefined order and may be
        // serialized" (cuLaunchHostFunc): a host function that waits delays those of all streams.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as the caller of cuLaunchHostFunc promised.
        in_host_function(|| unsafe { (self.function)(self.argument) });
    }
}

/// An aligned word that the device can access, looked up when the operation is executed.
fn word<'a>(
    access: Access,
    address: CUdeviceptr,
    device: u32,
) -> Outcome<(space::Bytes, &'a AtomicU32)> {
    let bytes = space::device_bytes(address, 4, device, access)?;
    // SAFETY: four bytes of a mapping that `bytes` keeps, which are only used as an atomic word. It is aligned, because the address
    // is, and device addresses and driver addresses have the same offset in a page.
    let word = unsafe { &*bytes.start().cast::<AtomicU32>() };
    Ok((bytes, word))
}

fn aligned(address: CUdeviceptr) -> Outcome {
    if address.is_multiple_of(4) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

api! {
    fn cuStreamCreate(phStream: *mut CUstream, Flags: c_uint) {
        if Flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(phStream, create(&*context::current()?, Flags, 0) as CUstream)
    }

    fn cuStreamCreateWithPriority(phStream: *mut CUstream, flags: c_uint, priority: c_int) {
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(phStream, create(&*context::current()?, flags, priority.clamp(-5, 0)) as CUstream)
    }

    fn cuStreamDestroy_v2(hStream: CUstream) {
        destroy(hStream)
    }

    fn cuStreamQuery(hStream: CUstream) {
        let (context, id) = find(hStream)?;
        capture::conflicts(context.handle, id)?;
        if context.work.is_idle(id)? { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamSynchronize(hStream: CUstream) {
        let (context, id) = find(hStream)?;
        capture::conflicts(context.handle, id)?;
        context.work.wait_for_stream(id)
    }

    fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) {
        put(pctx, find(hStream)?.0.handle as CUcontext)
    }

    fn cuStreamGetFlags(hStream: CUstream, flags: *mut c_uint) {
        let (_, id) = find(hStream)?;
        put(flags, with(|streams| streams.get(&id).map_or(0, |stream| stream.flags)))
    }

    fn cuStreamGetPriority(hStream: CUstream, priority: *mut c_int) {
        let (_, id) = find(hStream)?;
        put(priority, with(|streams| streams.get(&id).map_or(0, |stream| stream.priority)))
    }

    fn cuStreamGetId(hStream: CUstream, streamId: *mut c_ulonglong) {
        put(streamId, find(hStream)?.1)
    }

    fn cuLaunchHostFunc(hStream: CUstream, fn_: CUhostFn, userData: *mut c_void) {
        let (context, id) = find(hStream)?;
        let function = fn_.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let call = HostFunction { function, argument: userData };
        context.work.submit(id, move |_| {
            call.call();
            Ok(())
        })?;
        Ok(())
    }

    fn cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        settings().unless("no-stream-mem-ops")?;
        let (context, id) = find(stream)?;
        aligned(addr)?;
        if flags > 1 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let device = context.device;
        // An invalid address is reported now. A later change is detected when the word is written.
        word(Access::Write, addr, device).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        context.work.submit(id, move |_| {
            let (_keep, word) = word(Access::Write, addr, device)?;
            if flags & 1 == 0 {
                fence(Ordering::SeqCst);
            }
            // Pairs with the reader of the word, as the system-wide fence does on a device.
            word.store(value, Ordering::Release);
            Ok(())
        })?;
        Ok(())
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) {
        settings().unless("no-stream-mem-ops")?;
        let (context, id) = find(stream)?;
        aligned(addr)?;
        let device = context.device;
        word(Access::Read, addr, device).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let how = flags & 3;
        context.work.submit(id, move |work| {
            let (_keep, word) = word(Access::Read, addr, device)?;
            work.wait_until(|| {
                let now = word.load(Ordering::Acquire);
                match how {
                    // Cyclic, as documented.
                    GEQ => now.wrapping_sub(value) as i32 >= 0,
                    EQ => now == value,
                    AND => now & value != 0,
                    _ => !(now | value) != 0,
                }
            })
        })?;
        Ok(())
    }
}

const GEQ: u32 = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
const EQ: u32 = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;
const AND: u32 = CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_AND as u32;
