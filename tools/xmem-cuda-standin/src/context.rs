// SPDX-License-Identifier: MPL-2.0

//! Contexts: the primary context of each device, other contexts, and a stack of current contexts for each thread.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUresult};

use crate::device;
use crate::entry::{Outcome, put, put_if_wanted};
use crate::work::{self, Work};
use crate::{event, ipc, space, stream};

/// An existing context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The handle for programs.
    pub(crate) handle: u64,
    /// The device's ordinal in the machine.
    pub(crate) device: u32,
    pub(crate) flags: c_uint,
    pub(crate) work: Arc<Work>,
}

#[derive(Debug, Default)]
struct Primary {
    references: usize,
    flags: c_uint,
}

#[derive(Debug, Default)]
struct Contexts {
    existing: HashMap<u64, Arc<Context>>,
    /// By the device's ordinal in the machine.
    primary: BTreeMap<u32, Primary>,
}

static CONTEXTS: Mutex<Option<Contexts>> = Mutex::new(None);

thread_local! {
    static CURRENT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn with<T>(use_it: impl FnOnce(&mut Contexts) -> T) -> T {
    let mut contexts: MutexGuard<'_, Option<Contexts>> =
        CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(contexts.get_or_insert_default())
}

/// The handle of a device's primary context, which is the same whenever the context exists.
fn primary_handle(device: u32) -> u64 {
    0x5100_0000 + u64::from(device) * 0x100
}

fn new_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5200_0000);
    NEXT.fetch_add(0x100, Ordering::Relaxed)
}

fn add(contexts: &mut Contexts, handle: u64, device: u32, flags: c_uint) {
    let context = Context {
        handle,
        device,
        flags,
        work: Work::new(handle),
    };
    contexts.existing.insert(handle, Arc::new(context));
}

/// The context with a handle, also if it is in error.
pub(crate) fn find(handle: u64) -> Outcome<Arc<Context>> {
    with(|contexts| contexts.existing.get(&handle).cloned())
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The thread's current context. If the context is in error, this error is returned to the caller.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    let context = current_as_it_is()?;
    work::check()?;
    Ok(context)
}

/// The thread's current context, also if it is in error.
pub(crate) fn current_as_it_is() -> Outcome<Arc<Context>> {
    let handle = CURRENT
        .with_borrow(|stack| stack.last().copied())
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    find(handle).map_err(|_| CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

/// The contexts on one device, to wait for their work.
pub(crate) fn on_device(device: u32) -> Vec<Arc<Context>> {
    with(|contexts| {
        contexts
            .existing
            .values()
            .filter(|context| context.device == device)
            .cloned()
            .collect()
    })
}

/// Destroys a context and everything in it.
fn destroy(handle: u64) -> Outcome {
    let context = with(|contexts| contexts.existing.remove(&handle))
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    context.work.end();
    stream::forget(handle);
    event::forget(handle);
    ipc::forget(handle);
    space::forget(handle);
    Ok(())
}

fn pointer(handle: u64) -> CUcontext {
    handle as CUcontext
}

api! {
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) {
        let device = device::on_machine(dev)?;
        let handle = primary_handle(device);
        with(|contexts| {
            let primary = contexts.primary.entry(device).or_default();
            primary.references += 1;
            let flags = primary.flags;
            if !contexts.existing.contains_key(&handle) {
                add(contexts, handle, device, flags);
            }
        });
        put(pctx, pointer(handle))
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let device = device::on_machine(dev)?;
        let last = with(|contexts| {
            let primary = contexts.primary.entry(device).or_default();
            if primary.references == 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
            }
            primary.references -= 1;
            Ok(primary.references == 0)
        })?;
        if last { destroy(primary_handle(device)) } else { Ok(()) }
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) {
        let device = device::on_machine(dev)?;
        let handle = primary_handle(device);
        if find(handle).is_ok() {
            destroy(handle)?;
            with(|contexts| contexts.primary.entry(device).or_default().references = 0);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let device = device::on_machine(dev)?;
        let (set, references) = with(|contexts| {
            let primary = contexts.primary.entry(device).or_default();
            (primary.flags, primary.references)
        });
        put_if_wanted(flags, set);
        put_if_wanted(active, c_int::from(references > 0));
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) {
        let device = device::on_machine(dev)?;
        with(|contexts| contexts.primary.entry(device).or_default().flags = flags);
        Ok(())
    }

    fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) {
        let device = device::on_machine(dev)?;
        work::check()?;
        let handle = new_handle();
        with(|contexts| add(contexts, handle, device, flags));
        CURRENT.with_borrow_mut(|stack| stack.push(handle));
        put(pctx, pointer(handle))
    }

    fn cuCtxDestroy_v2(ctx: CUcontext) {
        let handle = ctx as u64;
        if with(|contexts| contexts.primary.keys().any(|device| primary_handle(*device) == handle)) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        destroy(handle)?;
        CURRENT.with_borrow_mut(|stack| stack.pop_if(|top| *top == handle));
        Ok(())
    }

    fn cuCtxPushCurrent_v2(ctx: CUcontext) {
        find(ctx as u64)?;
        CURRENT.with_borrow_mut(|stack| stack.push(ctx as u64));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) {
        let handle = CURRENT.with_borrow_mut(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        put_if_wanted(pctx, pointer(handle));
        Ok(())
    }

    fn cuCtxSetCurrent(ctx: CUcontext) {
        if !ctx.is_null() {
            find(ctx as u64)?;
        }
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            if !ctx.is_null() {
                stack.push(ctx as u64);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(pctx: *mut CUcontext) {
        let handle = CURRENT.with_borrow(|stack| stack.last().copied());
        put(pctx, handle.map_or(null_mut(), pointer))
    }

    fn cuCtxGetDevice(device: *mut CUdevice) {
        put(device, device::in_process(current()?.device).ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?)
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        put(flags, current()?.flags)
    }

    fn cuCtxGetId(ctx: CUcontext, ctxId: *mut std::ffi::c_ulonglong) {
        let handle = if ctx.is_null() { current()?.handle } else { find(ctx as u64)?.handle };
        put(ctxId, handle)
    }

    fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint) {
        if ctx.is_null() { current()? } else { find(ctx as u64)? };
        put(version, 3020)
    }

    fn cuCtxGetStreamPriorityRange(leastPriority: *mut c_int, greatestPriority: *mut c_int) {
        current()?;
        put_if_wanted(leastPriority, 0);
        put_if_wanted(greatestPriority, -5);
        Ok(())
    }

    fn cuCtxSynchronize() {
        current()?.work.wait_for_all()
    }

    fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: c_uint) {
        let (context, peer) = (current()?, find(peerContext as u64)?);
        if Flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if context.device == peer.device || !device::reaches(context.device, peer.device) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peerContext: CUcontext) {
        current()?;
        find(peerContext as u64)?;
        Ok(())
    }
}
