// SPDX-License-Identifier: MPL-2.0

//! Ends leases and runs jobs in the order of a stream, by a host function.
#![allow(unsafe_code)] // calls the driver

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use xmem_shm::fault::{self, Point};

use crate::device::Device;
use crate::error::CudaError;
use crate::pending::{self, Ends};
use crate::reaper::{self, ERROR_CHECK_INTERVAL};
use crate::result;
use crate::stream::Stream;

fn list(what: Box<dyn Ends>, device: &Device) -> u64 {
    pending::list(what, device.place(device.primary_context() as usize))
}

/// Ends a listed entry when the stream reaches this point.
fn end_listed(number: u64, device: &Device, stream: Stream) -> Result<(), CudaError> {
    let data = number as usize as *mut c_void;
    let launched = device.with_context_of(stream, |context| {
        pending::waits_in(number, context);
        // SAFETY: the stream is alive (`Stream::from_raw`), and the function accepts any number.
        unsafe { result::launch_host(stream.raw(), Some(pending::ended), data) }
    });
    fault::point(Point::ReleaseEnqueued);
    launched
}

/// Ends `what` when the stream reaches this point: at once if it is idle, which saves an interrupt of the device and the wake of the
/// driver's thread. On an error `what` is dropped, and nothing is queued.
///
/// # Errors
///
/// See [`CudaError`].
pub fn end(what: Box<dyn Ends>, device: &Device, stream: Stream) -> Result<(), CudaError> {
    // In a forked child, the list may be locked by a thread that exists only in the parent.
    device.check_process()?;
    if stream.is_idle(device)? {
        what.end();
        return Ok(());
    }
    let number = list(what, device);
    match end_listed(number, device, stream) {
        Ok(()) => {
            watch();
            Ok(())
        }
        Err(error) => match pending::take(number) {
            Some(_) => Err(error),
            // It was ended with its context.
            None => Ok(()),
        },
    }
}

/// Lists an entry that the device ends itself. Returns its number for [`pending::end_if_over`].
pub(crate) fn list_only(what: Box<dyn Ends>, device: &Device) -> u64 {
    let number = list(what, device);
    watch();
    number
}

/// A job of the program.
struct Job(Box<dyn FnOnce() + Send>);

impl Ends for Job {
    fn end(self: Box<Self>) {
        reaper::later(self.0);
    }
}

impl Stream {
    /// Runs a job when all present work on this stream has ended, on a thread of this crate that may call the driver. No CPU
    /// waits for that, except if the driver cannot report the end; then this call waits. If the context fails, the job runs
    /// when that is detected.
    pub fn when_done(self, device: &Device, job: impl FnOnce() + Send + 'static) {
        if device.check_process().is_err() {
            // A forked child, where CUDA does not work. The job belongs to the parent.
            return std::mem::forget(job);
        }
        let number = list(Box::new(Job(Box::new(job))), device);
        let Err(error) = end_listed(number, device, self) else {
            return watch();
        };
        let Some(refused) = pending::take(number) else {
            // It ran with its context.
            return;
        };
        match self.synchronize(device) {
            // In a context that is in error no work runs any more.
            Ok(()) | Err(CudaError::ContextInError { .. }) => refused.end(),
            // A wait for the device would invalidate the capture.
            Err(CudaError::Captured) => {
                log::error!(
                    "a job behind a CUDA stream does not run, since its stream cannot be waited for: {error}"
                );
                std::mem::forget(refused);
            }
            Err(_) => after_all_work(device, &error, || refused.end()),
        }
    }
}

/// Runs a job when all present work in the device's primary context has ended. Used if a stream cannot be queried, perhaps because
/// it was destroyed.
pub fn after_all_work(device: &Device, why: &CudaError, job: impl FnOnce() + Send + 'static) {
    log::debug!(
        "a slot or memory is released when its device has finished all work, because of this: {why}"
    );
    // If no thread can be started, the closure is dropped, and must not drop what the job holds.
    let (job, device) = (ManuallyDrop::new(job), device.clone());
    let wait = move || match device.synchronize() {
        // In a context that is in error no work runs any more.
        Ok(()) | Err(CudaError::ContextInError { .. }) => ManuallyDrop::into_inner(job)(),
        Err(error) => {
            log::error!(
                "a slot or memory stays held, since its device cannot be waited for: {error}"
            );
        }
    };
    // This may take long, so it does not run on the reaper's thread.
    let thread = std::thread::Builder::new().name("xmem-cuda-wait".into());
    if let Err(error) = thread.spawn(wait) {
        log::error!(
            "a slot or memory stays held, because no thread can wait for its device: {error}"
        );
    }
}

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Regularly checks the contexts of pending entries, because entries in a context that is in error would wait forever.
fn watch() {
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    reaper::DRIVER.every(ERROR_CHECK_INTERVAL, || {
        let places = pending::places_or_else(|| WATCHED.store(false, Ordering::Release));
        for place in &places {
            let failed = |device: Device| !device.may_end(place.context);
            if Device::new(place.ordinal).is_ok_and(failed) {
                pending::context_failed(*place);
            }
        }
        places.is_empty()
    });
}
