// SPDX-License-Identifier: MPL-2.0

//! Events. Their state consists of two numbers: the number of records, and the latest record that the device has reached. The state
//! of an interprocess event is in a file. A wait is for the latest record at the time of the call.
//!
//! If the exporter is killed before the device reaches a record, the record is never reached. If the exporter destroys the event,
//! importers get an error (documented as undefined).

use std::collections::HashMap;
use std::ffi::c_uint;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUipcEventHandle, CUresult, CUstream};

use crate::context::{self, Context};
use crate::entry::{Outcome, put};
use crate::files::{self, Mapping};
use crate::ipc::Token;
use crate::settings::settings;
use crate::{stream, work};

const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

const KIND: [u8; 8] = *b"xmemsimE";
const PAGE: usize = 4096;

/// The state that processes share. All zeros is an event that was never recorded.
#[repr(C)]
struct State {
    recorded: AtomicU64,
    completed: AtomicU64,
    destroyed: AtomicU64,
    /// The time of the latest record that was reached, in ns.
    time: AtomicU64,
}

/// An event that this process created or opened.
#[derive(Debug)]
struct Event {
    context: u64,
    /// The device's ordinal in the machine.
    device: u32,
    flags: c_uint,
    /// The name of the file of an interprocess event.
    id: u64,
    imported: bool,
    state: Mapping,
}

static EVENTS: Mutex<Option<HashMap<u64, Arc<Event>>>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut HashMap<u64, Arc<Event>>) -> T) -> T {
    use_it(
        EVENTS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default(),
    )
}

impl Event {
    fn state(&self) -> &State {
        // SAFETY: the mapping is a page, which is aligned and larger than the state; all of it is atomic.
        unsafe { &*self.state.start().cast::<State>() }
    }

    fn is_done(&self, record: u64) -> bool {
        // Pairs with `reached`, so that a waiter sees all earlier writes.
        self.state().completed.load(Ordering::Acquire) >= record
    }

    fn reached(&self, record: u64) {
        static START: OnceLock<Instant> = OnceLock::new();
        let time = START.get_or_init(Instant::now).elapsed().as_nanos() as u64;
        self.state().time.store(time, Ordering::Relaxed);
        self.state().completed.fetch_max(record, Ordering::AcqRel);
    }

    /// The latest record. A wait that begins now waits for it.
    fn latest(&self) -> Outcome<u64> {
        if self.imported && self.state().destroyed.load(Ordering::Acquire) != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(self.state().recorded.load(Ordering::Acquire))
    }

    fn path(id: u64) -> PathBuf {
        settings().dir.join("events").join(format!("{id:016x}"))
    }
}

fn add(event: Event) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5500_0000);
    let handle = NEXT.fetch_add(0x10, Ordering::Relaxed);
    with(|events| events.insert(handle, Arc::new(event)));
    handle
}

fn find(event: CUevent) -> Outcome<Arc<Event>> {
    with(|events| events.get(&(event as u64)).cloned()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// As [`find`], with an error if the event's context is in error.
fn find_working(event: CUevent) -> Outcome<(Arc<Event>, Arc<Context>)> {
    context::current()?;
    let event = find(event)?;
    let context = context::find(event.context)?;
    work::check()?;
    Ok((event, context))
}

/// Removes the events of a destroyed context.
pub(crate) fn forget(context: u64) {
    with(|events| {
        events.retain(|_, event| {
            if event.context == context {
                retire(event);
            }
            event.context != context
        });
    });
}

/// Marks an exported event as destroyed, so that importers get an error.
fn retire(event: &Event) {
    if event.flags & INTERPROCESS != 0 && !event.imported {
        event.state().destroyed.store(1, Ordering::Release);
        let _ = std::fs::remove_file(Event::path(event.id));
    }
}

fn create(context: &Context, flags: c_uint) -> Outcome<u64> {
    if flags & !(BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let id = files::random();
    let failed = |_| CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let state = if flags & INTERPROCESS == 0 {
        Mapping::anonymous(PAGE).map_err(failed)?
    } else {
        if flags & DISABLE_TIMING == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        settings().unless("no-ipc-events")?;
        if settings().has("out-of-ipc-events") {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(Event::path(id))
            .map_err(failed)?;
        file.set_len(PAGE as u64).map_err(failed)?;
        Mapping::shared(&file, PAGE).map_err(failed)?
    };
    Ok(add(Event {
        context: context.handle,
        device: context.device,
        flags,
        id,
        imported: false,
        state,
    }))
}

fn open(token: Token, context: &Context) -> Outcome<u64> {
    let gone = |_| CUresult::CUDA_ERROR_INVALID_HANDLE;
    token.check_exporter()?;
    if settings().has("out-of-ipc-events") {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let file = File::options()
        .read(true)
        .write(true)
        .open(Event::path(token.id))
        .map_err(gone)?;
    let state = Mapping::shared(&file, PAGE).map_err(gone)?;
    let flags = INTERPROCESS | DISABLE_TIMING;
    let (context, device) = (context.handle, context.device);
    Ok(add(Event {
        context,
        device,
        flags,
        id: token.id,
        imported: true,
        state,
    }))
}

fn record(event: CUevent, stream: CUstream) -> Outcome {
    let (context, id) = stream::find(stream)?;
    let event = find(event)?;
    event.latest()?;
    if event.context != context.handle {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let number = event.state().recorded.fetch_add(1, Ordering::AcqRel) + 1;
    context.work.submit(id, move |_| {
        event.reached(number);
        Ok(())
    })?;
    Ok(())
}

api! {
    fn cuEventCreate(phEvent: *mut CUevent, Flags: c_uint) {
        put(phEvent, create(&*context::current()?, Flags)? as CUevent)
    }

    fn cuEventDestroy_v2(hEvent: CUevent) {
        let event = with(|events| events.remove(&(hEvent as u64))).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        retire(&event);
        Ok(())
    }

    fn cuEventRecord(hEvent: CUevent, hStream: CUstream) {
        record(hEvent, hStream)
    }

    fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        record(hEvent, hStream)
    }

    fn cuEventQuery(hEvent: CUevent) {
        let (event, _) = find_working(hEvent)?;
        let latest = event.latest()?;
        if event.is_done(latest) { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    }

    fn cuEventSynchronize(hEvent: CUevent) {
        let (event, context) = find_working(hEvent)?;
        let latest = event.latest()?;
        context.work.wait_until(|| event.is_done(latest))
    }

    fn cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) {
        let ((start, _), (end, _)) = (find_working(hStart)?, find_working(hEnd)?);
        if (start.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let (from, to) = (start.latest()?, end.latest()?);
        if from == 0 || to == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        if !start.is_done(from) || !end.is_done(to) {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        let time = |event: &Event| event.state().time.load(Ordering::Relaxed) as f32;
        put(pMilliseconds, (time(&end) - time(&start)) / 1e6)
    }

    fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: c_uint) {
        let (context, id) = stream::find(hStream)?;
        if Flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let event = find(hEvent)?;
        if event.flags & INTERPROCESS != 0 && event.context != context.handle {
            // The driver crashes (seen with 580).
            eprintln!("cuStreamWaitEvent: a stream of another context waits for an interprocess event");
            std::process::abort();
        }
        let latest = event.latest()?;
        context.work.submit(id, move |work| work.wait_until(|| event.is_done(latest)))?;
        Ok(())
    }

    fn cuIpcGetEventHandle(pHandle: *mut CUipcEventHandle, event: CUevent) {
        context::current()?;
        let event = find(event)?;
        if event.flags & INTERPROCESS == 0 || event.imported {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        let token = Token { kind: KIND, exporter: settings().process, id: event.id, device: event.device };
        put(pHandle, CUipcEventHandle { reserved: token.encode() })
    }

    fn cuIpcOpenEventHandle(phEvent: *mut CUevent, handle: CUipcEventHandle) {
        settings().unless("no-ipc-events")?;
        let context = context::current()?;
        put(phEvent, open(Token::decode(handle.reserved, KIND)?, &context)? as CUevent)
    }
}
