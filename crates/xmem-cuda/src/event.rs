// SPDX-License-Identifier: MPL-2.0

//! Interprocess events, one for each slot. The producer records it after its work, and consumers' streams wait for it.
#![allow(unsafe_code)] // calls the driver

use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUipcEventHandle};
use xmem_shm::abi::device_header::IpcHandle;
use xmem_shm::os::clock::Deadline;

use crate::device::{DISABLE_TIMING, Device};
use crate::error::{CudaError, NOT_READY};
use crate::reaper::{self, CHECK_INTERVAL};
use crate::stream::Stream;
use crate::{chars, result};

/// cuda.h: the event can be shared with other processes.
const INTERPROCESS: u32 = 4;

/// An event of this process, or of another one.
#[derive(Debug)]
pub struct Event {
    raw: Raw,
    device: Device,
    /// Whether other processes have it too.
    shared: bool,
}

#[derive(Debug, Clone, Copy)]
struct Raw(CUevent);

// SAFETY: any thread may use an event.
unsafe impl Send for Raw {}
// SAFETY: as above. The driver does its own locking.
unsafe impl Sync for Raw {}

impl Event {
    /// Creates an event for all processes, and the handle for them.
    pub fn interprocess(device: &Device) -> Result<(Self, IpcHandle), CudaError> {
        let event = Self::create(device, DISABLE_TIMING | INTERPROCESS)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: an interprocess event, and a pointer to a variable for the handle.
        device.with(|| unsafe { result::ipc_get_event(&raw mut handle, event.raw.0) })?;
        Ok((event, chars::bytes(handle.reserved)))
    }

    /// Creates an event for this process.
    pub fn plain(device: &Device) -> Result<Self, CudaError> {
        Self::create(device, DISABLE_TIMING)
    }

    /// The device on which the event was created.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn create(device: &Device, flags: u32) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer to a variable for the event.
        device.with(|| unsafe { result::event_create(&raw mut raw, flags) })?;
        Ok(Self {
            raw: Raw(raw),
            device: device.clone(),
            shared: flags & INTERPROCESS != 0,
        })
    }

    /// Opens an event of another process.
    pub fn open(device: &Device, handle: &IpcHandle) -> Result<Self, CudaError> {
        let handle = CUipcEventHandle {
            reserved: chars::chars(*handle),
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer to a variable for the event. The driver checks the handle.
        device.with(|| unsafe { result::ipc_open_event(&raw mut raw, handle) })?;
        Ok(Self {
            raw: Raw(raw),
            device: device.clone(),
            shared: true,
        })
    }

    /// Records the present end of the stream's work. Returns the identity of the stream's context.
    pub fn record(&self, stream: Stream) -> Result<usize, CudaError> {
        let mut there = None;
        let recorded = self.device.with_context_of(stream, |context| {
            if self.device.is_primary(context) {
                // SAFETY: the event and the stream (`Stream::from_raw`) are alive.
                unsafe { result::event_record(self.raw.0, stream.raw()) }?;
                return Ok(context);
            }
            // On a stream of another context, only events of that context can be recorded.
            let mut event = std::ptr::null_mut();
            // SAFETY: a pointer to a variable for the event.
            unsafe { result::event_create(&raw mut event, DISABLE_TIMING) }?;
            there = Some(event);
            // SAFETY: the event and the stream are of this context, and the stream is alive.
            unsafe { result::event_record(event, stream.raw()) }?;
            Ok(context)
        });
        let Some(there) = there else { return recorded };
        let recorded = recorded.and_then(|context| self.record_after(there).map(|()| context));
        // SAFETY: created above. A wait that is already queued does not need the event any more.
        let destroy = |_| unsafe { result::event_destroy(there) };
        let _ = self.device.with_context_of(stream, destroy);
        recorded
    }

    /// Makes a stream of this crate wait for an event of another context, and records this event there.
    fn record_after(&self, other: CUevent) -> Result<(), CudaError> {
        let spare = self.device.spare_stream()?;
        let ours = spare.stream().raw();
        self.device.with(|| {
            // SAFETY: both are alive. Streams may wait for events of other contexts.
            unsafe { result::stream_wait(ours, other, 0) }?;
            // SAFETY: both are alive, and of the primary context.
            unsafe { result::event_record(self.raw.0, ours) }
        })
    }

    /// Makes a stream wait for the last recorded work.
    pub fn wait_on(&self, stream: Stream) -> Result<(), CudaError> {
        self.device.with_context_of(stream, |context| {
            if !self.shared || self.device.is_primary(context) {
                // SAFETY: the event and the stream (`Stream::from_raw`) are alive. There are no flags.
                return unsafe { result::stream_wait(stream.raw(), self.raw.0, 0) };
            }
            // If a stream of another context waits for an interprocess event, the process crashes in the driver (seen with 580).
            let after = Self::plain(&self.device)?;
            after.record_after(self.raw.0)?;
            // SAFETY: as above. A wait that is queued does not need the event any more.
            unsafe { result::stream_wait(stream.raw(), after.raw.0, 0) }
        })
    }

    /// Whether the last recorded work has ended.
    pub fn has_happened(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        let check = || unsafe { result::event_query(self.raw.0) };
        match self.device.with(check) {
            Ok(()) => Ok(true),
            Err(error) if error.is(NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The first pause between two checks. It grows up to `CHECK_INTERVAL`.
const FIRST_LOOK: Duration = Duration::from_micros(20);

/// Waits on the CPU until `is_done` returns true. A stream is not used for this: if it waits for a process that is killed, it
/// and all later work on it stop forever.
pub fn until_done(is_done: impl FnMut() -> Result<bool, CudaError>) -> Result<(), CudaError> {
    done_by(Deadline::after(None), is_done).map(drop)
}

/// Like `until_done`, but at most until the deadline. Returns whether it is done.
pub fn done_by(
    deadline: Deadline,
    mut is_done: impl FnMut() -> Result<bool, CudaError>,
) -> Result<bool, CudaError> {
    let mut pause = FIRST_LOOK;
    while !is_done()? {
        if deadline.is_over() {
            return Ok(false);
        }
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(CHECK_INTERVAL);
    }
    Ok(true)
}

impl Drop for Event {
    fn drop(&mut self) {
        let (raw, device) = (self.raw, self.device.clone());
        reaper::later(move || {
            let raw = raw;
            // SAFETY: the last use of the handle. Work that was queued after it does not need it.
            let _ = device.with(|| unsafe { result::event_destroy(raw.0) });
        });
    }
}
