// SPDX-License-Identifier: MPL-2.0

//! Stream capture. Operations on a captured stream are counted and not executed, and graphs cannot be launched. The stand-in checks
//! what disturbs a capture (cuda.h on cuThreadExchangeStreamCaptureMode): a potentially unsafe call fails in a thread in which the
//! capture's mode forbids it, and invalidates the capture.

use std::cell::Cell;
use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::{
    CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::entry::{Outcome, get, put};
use crate::stream;
use crate::work::LEGACY;

const GLOBAL: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as c_uint;
const THREAD_LOCAL: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_uint;
const RELAXED: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;

/// The calls that are potentially unsafe during a capture: they may wait for work or change mappings.
const UNSAFE: &str = "\
    cuCtxSynchronize cuEventQuery cuEventSynchronize cuIpcCloseMemHandle cuIpcOpenEventHandle \
    cuIpcOpenMemHandle_v2 cuMemAddressFree cuMemAddressReserve cuMemAlloc_v2 cuMemAllocHost_v2 \
    cuMemCreate cuMemFree_v2 cuMemFreeHost cuMemHostAlloc cuMemHostRegister_v2 cuMemHostUnregister \
    cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap cuMemcpyDtoH_v2 cuMemcpyHtoD_v2 cuStreamQuery \
    cuStreamSynchronize";

struct Capture {
    context: u64,
    stream: u64,
    mode: c_uint,
    thread: ThreadId,
    operations: u64,
    spoiled: bool,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<c_uint> = const { Cell::new(GLOBAL) };
}

fn lock() -> MutexGuard<'static, Vec<Capture>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks whether this thread may make a call now. If not, the captures that forbid it are invalidated.
pub(crate) fn check(name: &str) -> Outcome {
    if MODE.get() == RELAXED || !UNSAFE.split_whitespace().any(|it| it == name) {
        return Ok(());
    }
    let own = std::thread::current().id();
    let mut allowed = Ok(());
    for capture in lock().iter_mut() {
        let forbids = if capture.thread == own {
            capture.mode != RELAXED
        } else {
            capture.mode == GLOBAL && MODE.get() == GLOBAL
        };
        if forbids {
            capture.spoiled = true;
            allowed = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    allowed
}

/// Whether an operation on a stream is captured. An error if the stream accepts no operations.
pub(crate) fn takes(context: u64, stream: u64) -> Outcome<bool> {
    let mut captures = lock();
    let capture = captures
        .iter_mut()
        .find(|capture| capture.context == context && capture.stream == stream);
    match capture {
        None => Ok(false),
        Some(capture) if capture.spoiled => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        Some(capture) => {
            capture.operations += 1;
            Ok(true)
        }
    }
}

/// Fails for a call that is forbidden on a captured stream in all modes.
pub(crate) fn conflicts(context: u64, stream: u64) -> Outcome {
    let mut captures = lock();
    let capture = captures
        .iter_mut()
        .find(|capture| capture.context == context && capture.stream == stream);
    capture.map_or(Ok(()), |capture| {
        capture.spoiled = true;
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    })
}

api! {
    fn cuStreamBeginCapture_v2(hStream: CUstream, mode: CUstreamCaptureMode) {
        let (context, stream) = stream::find(hStream)?;
        if stream == LEGACY {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut captures = lock();
        if captures.iter().any(|capture| capture.context == context.handle && capture.stream == stream) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        captures.push(Capture {
            context: context.handle,
            stream,
            mode: mode as c_uint,
            thread: std::thread::current().id(),
            operations: 0,
            spoiled: false,
        });
        Ok(())
    }

    fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) {
        let (context, stream) = stream::find(hStream)?;
        let mut captures = lock();
        let place = captures
            .iter()
            .position(|capture| capture.context == context.handle && capture.stream == stream)
            .ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if captures[place].mode != RELAXED && captures[place].thread != std::thread::current().id() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = captures.swap_remove(place);
        if capture.spoiled {
            put(phGraph, std::ptr::null_mut())?;
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        // A graph only has the number of its operations.
        put(phGraph, (0x5600_0000 + capture.operations) as CUgraph)
    }

    fn cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) {
        let (context, stream) = stream::find(hStream)?;
        let captures = lock();
        let blocks = |capture: &&Capture| {
            capture.context == context.handle && stream::is_blocking(capture.stream)
        };
        if stream == LEGACY && captures.iter().any(|capture| blocks(&capture)) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let capture = captures
            .iter()
            .find(|capture| capture.context == context.handle && capture.stream == stream);
        put(captureStatus, match capture {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.spoiled => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        })
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        let wanted = get(mode.cast::<c_uint>())?;
        if ![GLOBAL, THREAD_LOCAL, RELAXED].contains(&wanted) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        put(mode.cast::<c_uint>(), MODE.replace(wanted))
    }

    fn cuGraphDestroy(hGraph: CUgraph) {
        if hGraph.is_null() { Err(CUresult::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }
}
