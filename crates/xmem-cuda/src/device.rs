// SPDX-License-Identifier: MPL-2.0

//! Devices of this process, known by their UUID, each with its primary context.
#![allow(unsafe_code)] // calls of the driver

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUcontext, CUstream, CUuuid};
use xmem_shm::abi::device_header::Uuid;
use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use crate::driver::Driver;
use crate::error::{CAPTURE_IMPLICIT, CudaError, INVALID_CONTEXT};
use crate::pending::Place;
use crate::stream::Stream;
use crate::{chars, pending, reaper, result};

/// cuda.h: the device can do virtual memory management.
const VMM_SUPPORTED: c_int = 102;
/// cuda.h: such memory can be exported as a descriptor.
const POSIX_FD_SUPPORTED: c_int = 103;

/// cuda.h: host memory can be registered for reading only.
const READ_ONLY_REGISTER_SUPPORTED: c_int = 113;
/// cuda.h: a thread that captures of the program do not forbid anything, nor it disturbs them.
const RELAXED: u32 = 2;
/// cuda.h: an event without times.
pub const DISABLE_TIMING: u32 = 2;
/// cuda.h: a stream that does not wait for the default one.
const NON_BLOCKING: u32 = 1;

/// A CUDA device, with its primary context, which PyTorch, CuPy and the CUDA runtime use too. Clones are handles to the
/// same one. The context is kept for as long as the process runs.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    ordinal: u32,
    context: CUcontext,
    uuid: Uuid,
    name: String,
    vmm: bool,
    read_only_register: bool,
    /// Streams of our own that are not in use: the default stream would wait for the program's kernels.
    spare: Mutex<Vec<u64>>,
    /// A kernel failed: nothing works here any more.
    broken: AtomicBool,
    process: ProcessId,
}

// SAFETY: a context may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what has to be locked.
unsafe impl Sync for Inner {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.0.ordinal)
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

/// The devices that were asked for. Never given back: so its context is retained once in a process.
static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// How many devices this process sees. Takes the context of none.
///
/// # Errors
///
/// See [`CudaError`].
pub fn device_count() -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: a place for the result.
    unsafe { result::device_count(&raw mut count) }?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn raw(ordinal: u32) -> Result<c_int, CudaError> {
    let count = device_count()?;
    let asked = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let asked = asked.ok_or(CudaError::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: a place for the result.
    unsafe { result::device_get(&raw mut device, asked) }?;
    Ok(device)
}

fn uuid_of(device: c_int) -> Result<Uuid, CudaError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: a place for the result. The first version does not distinguish the parts of a divided device.
    let asked = match unsafe { result::device_uuid(&raw mut uuid, device) } {
        // SAFETY: as above.
        Err(CudaError::DriverTooOld { .. }) => unsafe {
            result::device_uuid_v1(&raw mut uuid, device)
        },
        asked => asked,
    };
    asked?;
    Ok(Uuid(chars::bytes(uuid.bytes)))
}

fn attribute(device: c_int, attribute: c_int) -> bool {
    let mut value = 0;
    // SAFETY: a place for the result. What a driver does not know, its devices do not have.
    unsafe { result::device_attribute(&raw mut value, attribute, device) }.is_ok() && value != 0
}

/// Whether there is a driver and a device.
pub fn is_available() -> bool {
    device_count().is_ok_and(|count| count > 0)
}

/// The devices that this process sees. Takes their primary contexts.
///
/// # Errors
///
/// See [`CudaError`].
pub fn devices() -> Result<Vec<Device>, CudaError> {
    (0..device_count()?).map(Device::new).collect()
}

impl Device {
    /// The device of this number, as CUDA counts in this process.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoDriver`] and [`CudaError::NoDevice`]. For others see [`CudaError`].
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        Driver::get()?;
        let mut devices = lock(&DEVICES);
        if let Some(device) = devices.iter().find(|device| device.ordinal() == ordinal) {
            return Ok(device.clone());
        }
        let device = raw(ordinal)?;
        let mut name = [0 as c_char; 100];
        // SAFETY: a place for the result, with its length.
        unsafe { result::device_name(name.as_mut_ptr(), name.len() as c_int - 1, device) }?;
        let name = chars::bytes(name);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let uuid = uuid_of(device)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a place for the result.
        unsafe { result::primary_retain(&raw mut context, device) }?;
        let device = Self(Arc::new(Inner {
            ordinal,
            context,
            uuid,
            name: String::from_utf8_lossy(name).into_owned(),
            vmm: attribute(device, VMM_SUPPORTED) && attribute(device, POSIX_FD_SUPPORTED),
            read_only_register: attribute(device, READ_ONLY_REGISTER_SUPPORTED),
            spare: Mutex::default(),
            broken: AtomicBool::new(false),
            process: ProcessId::current(),
        }));
        devices.push(device.clone());
        Ok(device)
    }

    /// The device of this UUID, whatever its number here.
    ///
    /// # Errors
    ///
    /// [`CudaError::WrongDevice`] if this process does not see it. For others see [`CudaError`].
    pub fn by_uuid(uuid: Uuid) -> Result<Self, CudaError> {
        // Other devices are not touched: a context takes memory.
        for ordinal in 0..device_count()? {
            if uuid_of(raw(ordinal)?)? == uuid {
                return Self::new(ordinal);
            }
        }
        Err(CudaError::WrongDevice { uuid })
    }

    /// Its number, as CUDA counts in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Its identity in all processes.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the device takes host memory that it may only read.
    pub(crate) fn registers_read_only(&self) -> bool {
        self.0.read_only_register
    }

    /// The handle (`CUcontext`) of the device's primary context, in which all of xmem's work happens. It is retained for as
    /// long as the process runs.
    pub fn primary_context(&self) -> u64 {
        self.0.context.addr() as u64
    }

    /// The primary context, as the driver's type.
    pub fn context(&self) -> CUcontext {
        self.0.context
    }

    /// Whether the device shares memory by descriptor.
    pub fn has_vmm(&self) -> bool {
        self.0.vmm
    }

    /// A stream that has nothing to do, for this library's own work. What is put on it may wait for other streams of this
    /// process, also for such as never end: then it is not used again.
    pub fn spare_stream(&self) -> Result<Spare, CudaError> {
        self.check_process()?;
        let spare = || lock(&self.0.spare);
        let kept = std::mem::take(&mut *spare());
        let mut found = None;
        let mut rest = Vec::new();
        for stream in kept {
            let is_idle = || {
                // SAFETY: made below, and never destroyed.
                unsafe { result::stream_query(stream as CUstream) }
            };
            match found {
                None if self.with(is_idle).is_ok() => found = Some(stream),
                _ => rest.push(stream),
            }
        }
        spare().append(&mut rest);
        let stream = match found {
            Some(stream) => stream,
            None => {
                let mut stream = std::ptr::null_mut();
                // SAFETY: a place for the stream, which is never destroyed.
                self.with(|| unsafe { result::stream_create(&raw mut stream, NON_BLOCKING) })?;
                stream as u64
            }
        };
        Ok(Spare {
            stream,
            device: self.clone(),
        })
    }

    /// Waits until all is done that this process had given to the device so far. The CPU waits.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: a call without arguments.
        self.with(|| unsafe { result::context_synchronize() })
    }

    /// [`CudaError::Forked`] in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), CudaError> {
        if self.is_of_this_process() {
            Ok(())
        } else {
            Err(CudaError::Forked)
        }
    }

    /// Whether this is not a forked child, where nothing of a device works.
    pub fn is_of_this_process(&self) -> bool {
        self.0.process.is_current()
    }

    /// Calls the driver with the primary context current, and puts back what was current before.
    pub fn with<T>(&self, call: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        self.check_process()?;
        let (result, failed) = within(self.0.context, call);
        if failed {
            if !self.0.broken.swap(true, Ordering::Relaxed) {
                let ordinal = self.ordinal();
                // Callers may have something locked, and the program's logger may call back.
                reaper::elsewhere(move || {
                    log::error!(
                        "CUDA device {ordinal}: a kernel of this process failed, its context cannot be used any more"
                    );
                });
            }
            // Each time: leases may have been listed since.
            pending::context_failed(self.place(self.0.context.addr()));
        }
        result
    }

    /// The same with the context of a stream, which may be one that the program made on the device; for what is put on the
    /// stream. The call gets the identity of that context.
    pub fn with_context_of<T>(
        &self,
        stream: Stream,
        call: impl FnOnce(usize) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        self.with(|| {
            let context = self.context_of(stream);
            let call = || {
                check_not_captured(stream)?;
                call(context)
            };
            if self.is_primary(context) {
                return call();
            }
            let (result, failed) = in_context(context as CUcontext, call);
            if failed {
                pending::context_failed(self.place(context));
            }
            result
        })
    }

    /// Whether work in a context may still end. A context of the program that is gone ended with its work.
    pub fn may_end(&self, context: usize) -> bool {
        let look = || Ok(is_current_in_error());
        let in_error = if self.is_primary(context) {
            self.with(look)
        } else {
            within(context as CUcontext, look).0
        };
        match in_error {
            Ok(in_error) => !in_error,
            Err(CudaError::ContextInError { .. }) => false,
            Err(error) => !error.is(INVALID_CONTEXT),
        }
    }

    /// A context of this device, for the list of what waits.
    pub fn place(&self, context: usize) -> Place {
        Place {
            ordinal: self.ordinal(),
            context,
        }
    }

    /// Whether this is the primary context ([`with_context_of`](Self::with_context_of)).
    pub fn is_primary(&self, context: usize) -> bool {
        context == self.0.context.addr()
    }

    /// The address of a stream's context. The primary one is current.
    fn context_of(&self, stream: Stream) -> usize {
        let own = self.0.context.addr();
        if stream.is_default() {
            return own;
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the stream is alive (`Stream::from_raw`), and there is a place for the result.
        let found = unsafe { result::stream_context(stream.raw(), &raw mut context) };
        // Without an answer of the driver it counts as ours, as almost all are.
        match found {
            Ok(()) if !context.is_null() => context.addr(),
            _ => own,
        }
    }
}

/// A stream that has one user until this is dropped.
#[derive(Debug)]
pub struct Spare {
    stream: u64,
    device: Device,
}

impl Spare {
    /// The stream.
    pub fn stream(&self) -> Stream {
        // SAFETY: streams of this kind are never destroyed.
        unsafe { Stream::from_raw(self.stream) }
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let mut spare = self.device.0.spare.lock();
        let spare = spare.as_mut().unwrap_or_else(|error| error.get_mut());
        spare.push(self.stream);
    }
}

/// Calls the driver with a context current, and puts back what was current before. Whether nothing works in that context any
/// more, besides: the call may have been about another one.
fn within<T>(
    context: CUcontext,
    call: impl FnOnce() -> Result<T, CudaError>,
) -> (Result<T, CudaError>, bool) {
    // Otherwise what is called here would fail while the program captures a stream into a graph, and spoil that.
    let mut mode = RELAXED;
    // SAFETY: a place for the mode that there was.
    let exchanged = unsafe { result::capture_mode(&raw mut mode) };
    let called = in_context(context, call);
    if exchanged.is_ok() {
        // SAFETY: as above.
        let _ = unsafe { result::capture_mode(&raw mut mode) };
    }
    called
}

fn in_context<T>(
    context: CUcontext,
    call: impl FnOnce() -> Result<T, CudaError>,
) -> (Result<T, CudaError>, bool) {
    // SAFETY: the driver checks whether there is such a context.
    if let Err(error) = unsafe { result::context_push(context) } {
        let failed = matches!(error, CudaError::ContextInError { .. });
        return (Err(error), failed);
    }
    let result = call();
    let failed = matches!(&result, Err(CudaError::ContextInError { .. })) && is_current_in_error();
    let mut before = std::ptr::null_mut();
    // SAFETY: a place for the context that was pushed.
    let popped = unsafe { result::context_pop(&raw mut before) };
    (result.and_then(|result| popped.map(|()| result)), failed)
}

/// Work on a stream that is captured does not run until the graph runs, and then each time that it does.
fn check_not_captured(stream: Stream) -> Result<(), CudaError> {
    let mut status = 0;
    // SAFETY: the stream is alive (`Stream::from_raw`), and there is a place for the result.
    match unsafe { result::is_capturing(stream.raw(), &raw mut status) } {
        Ok(()) if status != 0 => Err(CudaError::Captured),
        Err(error) if error.is(CAPTURE_IMPLICIT) => Err(CudaError::Captured),
        // Other errors of the stream show when it is used.
        _ => Ok(()),
    }
}

/// Whether nothing works in the context that is current.
fn is_current_in_error() -> bool {
    let mut probe = std::ptr::null_mut();
    // SAFETY: a place for the event.
    let made = unsafe { result::event_create(&raw mut probe, DISABLE_TIMING) };
    // Calls that put no work on the device "may also return error codes from previous, asynchronous launches", or not.
    let looked = made.clone().and_then(|()| {
        // SAFETY: made just now.
        unsafe { result::event_query(probe) }
    });
    if made.is_ok() {
        // SAFETY: made just now.
        let _ = unsafe { result::event_destroy(probe) };
    }
    matches!(looked, Err(CudaError::ContextInError { .. }))
}
