// SPDX-License-Identifier: MPL-2.0

//! Devices in this process, identified by their UUID, with their primary contexts.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{c_char, c_int};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::{CUcontext, CUstream, CUuuid};
use xmem_shm::abi::device_header::Uuid;
use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use crate::driver::Driver;
use crate::error::{CAPTURE_IMPLICIT, CONTEXT_IS_DESTROYED, CudaError, INVALID_CONTEXT};
use crate::pending::Place;
use crate::stream::Stream;
use crate::{chars, pending, reaper, result};

/// cuda.h: the device supports virtual memory management.
const VMM_SUPPORTED: c_int = 102;
/// cuda.h: such memory can be exported as a descriptor.
const POSIX_FD_SUPPORTED: c_int = 103;

/// cuda.h: host memory can be registered for reading only.
const READ_ONLY_REGISTER_SUPPORTED: c_int = 113;
/// cuda.h: a capture mode in which this thread's calls are neither forbidden by captures of the program nor disturb them.
const RELAXED: u32 = 2;
/// cuda.h: an event without times.
pub const DISABLE_TIMING: u32 = 2;
/// cuda.h: a stream that does not synchronise with the default stream.
const NON_BLOCKING: u32 = 1;

/// A CUDA device with its primary context, which PyTorch, CuPy and the CUDA runtime also use. Clones are handles to the same
/// device. The context is kept until the process ends.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    ordinal: u32,
    context: CUcontext,
    uuid: Uuid,
    name: String,
    vmm: bool,
    read_only_register: bool,
    /// Idle streams of this crate. The default stream is not used, because it would wait for the program's kernels.
    spare: Mutex<Vec<u64>>,
    /// A kernel failed, so no call in the context succeeds any more.
    broken: AtomicBool,
    process: ProcessId,
}

// SAFETY: any thread may use a context.
unsafe impl Send for Inner {}
// SAFETY: as above. The driver does its own locking.
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

/// The devices that were requested. Never released, so that each context is retained once in a process.
static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// The number of devices that this process sees. Retains no context.
///
/// # Errors
///
/// See [`CudaError`].
pub fn device_count() -> Result<u32, CudaError> {
    let mut count = 0;
    // SAFETY: a pointer to a variable for the result.
    unsafe { result::device_count(&raw mut count) }?;
    Ok(u32::try_from(count).unwrap_or(0))
}

fn raw(ordinal: u32) -> Result<c_int, CudaError> {
    let count = device_count()?;
    let asked = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let asked = asked.ok_or(CudaError::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: a pointer to a variable for the result.
    unsafe { result::device_get(&raw mut device, asked) }?;
    Ok(device)
}

fn uuid_of(device: c_int) -> Result<Uuid, CudaError> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: a pointer to a variable for the result. The first version does not distinguish the parts of a partitioned device.
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
    // SAFETY: a pointer to a variable for the result. If the driver does not know an attribute, its devices do not have it.
    unsafe { result::device_attribute(&raw mut value, attribute, device) }.is_ok() && value != 0
}

/// Whether there is a driver and a device.
pub fn is_available() -> bool {
    device_count().is_ok_and(|count| count > 0)
}

/// The devices that this process sees. Retains their primary contexts.
///
/// # Errors
///
/// See [`CudaError`].
pub fn devices() -> Result<Vec<Device>, CudaError> {
    (0..device_count()?).map(Device::new).collect()
}

impl Device {
    /// The device with this number, as CUDA numbers devices in this process.
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
        // SAFETY: a buffer for the result, with its length.
        unsafe { result::device_name(name.as_mut_ptr(), name.len() as c_int - 1, device) }?;
        let name = chars::bytes(name);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let uuid = uuid_of(device)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: a pointer to a variable for the result.
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

    /// The device with this UUID, with any number in this process.
    ///
    /// # Errors
    ///
    /// [`CudaError::WrongDevice`] if this process does not see it. For others see [`CudaError`].
    pub fn by_uuid(uuid: Uuid) -> Result<Self, CudaError> {
        // No context of another device is retained, because a context needs memory.
        for ordinal in 0..device_count()? {
            if uuid_of(raw(ordinal)?)? == uuid {
                return Self::new(ordinal);
            }
        }
        Err(CudaError::WrongDevice { uuid })
    }

    /// The number of the device, as CUDA numbers devices in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// The identity of the device in all processes.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }

    /// The name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the device can register host memory for reading only.
    pub(crate) fn registers_read_only(&self) -> bool {
        self.0.read_only_register
    }

    /// The handle (`CUcontext`) of the device's primary context, in which xmem does all of its work. It is retained until the
    /// process ends.
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

    /// An idle stream for this crate's own work. Work on it may wait for other streams of this process, even for streams that
    /// never finish. Then it is not used again.
    pub fn spare_stream(&self) -> Result<Spare, CudaError> {
        self.check_process()?;
        let spare = || lock(&self.0.spare);
        let kept = std::mem::take(&mut *spare());
        let mut found = None;
        let mut rest = Vec::new();
        for stream in kept {
            let is_idle = || {
                // SAFETY: created below, and never destroyed.
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
                // SAFETY: a pointer to a variable for the stream, which is never destroyed.
                self.with(|| unsafe { result::stream_create(&raw mut stream, NON_BLOCKING) })?;
                stream as u64
            }
        };
        Ok(Spare {
            stream,
            device: self.clone(),
        })
    }

    /// Waits on the CPU until all present work of this process on the device has ended.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the call has no arguments.
        self.with(|| unsafe { result::context_synchronize() })
    }

    /// Returns [`CudaError::Forked`] in a forked child.
    pub(crate) fn check_process(&self) -> Result<(), CudaError> {
        if self.is_of_this_process() {
            Ok(())
        } else {
            Err(CudaError::Forked)
        }
    }

    /// Whether this is not a forked child, where CUDA does not work.
    pub fn is_of_this_process(&self) -> bool {
        self.0.process.is_current()
    }

    /// Calls the driver with the primary context current, and restores the previous one.
    pub fn with<T>(&self, call: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        self.check_process()?;
        let (result, failed) = within(self.0.context, call);
        if failed {
            if !self.0.broken.swap(true, Ordering::Relaxed) {
                let ordinal = self.ordinal();
                // Callers may hold locks, and the program's logger may call back.
                reaper::elsewhere(move || {
                    log::error!(
                        "CUDA device {ordinal}: a kernel of this process failed, its context cannot be used any more"
                    );
                });
            }
            // At each call, because leases may have been listed since the last one.
            pending::context_failed(self.place(self.0.context.addr()));
        }
        result
    }

    /// Like `with`, for work on a stream, with the context of the stream. The program may have created that context on the
    /// device. The call gets its identity.
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

    /// Whether work in a context can still end. If a context of the program was destroyed, its work has ended.
    pub fn may_end(&self, context: usize) -> bool {
        let check = || Ok(is_current_in_error());
        let in_error = if self.is_primary(context) {
            self.with(check)
        } else {
            within(context as CUcontext, check).0
        };
        match in_error {
            Ok(in_error) => !in_error,
            Err(CudaError::ContextInError { .. }) => false,
            Err(error) => !error.is(INVALID_CONTEXT),
        }
    }

    /// A context of this device, as a key for the list of pending entries.
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
        // SAFETY: the stream is alive (`Stream::from_raw`), and the pointer is to a variable for the result.
        let found = unsafe { result::stream_context(stream.raw(), &raw mut context) };
        // If the driver does not answer, the stream counts as one of the primary context, as almost all are.
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
        // SAFETY: streams of this crate are never destroyed.
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

/// Calls the driver with a context current, and restores the previous one. Also returns whether that context is in error,
/// because the result of the call may be about another one.
fn within<T>(
    context: CUcontext,
    call: impl FnOnce() -> Result<T, CudaError>,
) -> (Result<T, CudaError>, bool) {
    // Otherwise a call would fail while the program captures a stream into a graph, and invalidate the capture.
    let mut mode = RELAXED;
    // SAFETY: a pointer to a variable with the new mode, which receives the previous one.
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
    // SAFETY: the driver checks whether the context exists.
    if let Err(error) = unsafe { result::context_push(context) } {
        let error = of_context(error);
        let failed = matches!(error, CudaError::ContextInError { .. });
        return (Err(error), failed);
    }
    let mut result = call();
    let failed = result.as_ref().is_err_and(may_be_of_context) && is_current_in_error();
    if failed {
        result = result.map_err(of_context);
    }
    let mut before = std::ptr::null_mut();
    // SAFETY: a pointer to a variable for the popped context.
    let popped = unsafe { result::context_pop(&raw mut before) };
    (result.and_then(|result| popped.map(|()| result)), failed)
}

/// Fails if a stream is being captured. Captured work runs only with the graph, and each time that the graph runs.
fn check_not_captured(stream: Stream) -> Result<(), CudaError> {
    let mut status = 0;
    // SAFETY: the stream is alive (`Stream::from_raw`), and the pointer is to a variable for the result.
    match unsafe { result::is_capturing(stream.raw(), &raw mut status) } {
        Ok(()) if status != 0 => Err(CudaError::Captured),
        Err(error) if error.is(CAPTURE_IMPLICIT) => Err(CudaError::Captured),
        // Other errors of the stream are reported when it is used.
        _ => Ok(()),
    }
}

/// Whether an error can be one of a whole context. Some drivers report a destroyed context also for a stream that was destroyed,
/// whose context still works.
fn may_be_of_context(error: &CudaError) -> bool {
    matches!(error, CudaError::ContextInError { .. }) || error.is(CONTEXT_IS_DESTROYED)
}

/// The error of a context that is known to be in error.
fn of_context(error: CudaError) -> CudaError {
    match error {
        CudaError::Driver { code, name, .. } if code == CONTEXT_IS_DESTROYED => {
            CudaError::ContextInError { name }
        }
        error => error,
    }
}

/// Whether the current context is in error.
fn is_current_in_error() -> bool {
    let mut probe = std::ptr::null_mut();
    // SAFETY: a pointer to a variable for the event.
    let made = unsafe { result::event_create(&raw mut probe, DISABLE_TIMING) };
    // Calls that queue no work "may also return error codes from previous, asynchronous launches", but need not.
    let looked = made.clone().and_then(|()| {
        // SAFETY: the event was created above.
        unsafe { result::event_query(probe) }
    });
    if made.is_ok() {
        // SAFETY: the event was created above.
        let _ = unsafe { result::event_destroy(probe) };
    }
    looked.as_ref().is_err_and(may_be_of_context)
}
