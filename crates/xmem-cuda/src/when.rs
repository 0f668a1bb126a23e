// SPDX-License-Identifier: MPL-2.0

//! Ends leases and runs jobs in the order of a stream, by a host function.
#![allow(unsafe_code)] // calls of the driver

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use xmem_shm::fault::{self, Point};

use crate::device::Device;
use crate::error::CudaError;
use crate::pending::{self, Ends};
use crate::reaper::{self, SUSPICIOUS};
use crate::result;
use crate::stream::Stream;

fn list(what: Box<dyn Ends>, device: &Device) -> u64 {
    pending::list(what, device.place(device.primary_context() as usize))
}

/// Ends what is listed when the stream gets there.
///
/// # Errors
///
/// See [`CudaError`].
pub fn end_listed(number: u64, device: &Device, stream: Stream) -> Result<(), CudaError> {
    let data = number as usize as *mut c_void;
    let launched = device.with_context_of(stream, |context| {
        pending::waits_in(number, context);
        // SAFETY: the stream is alive (`Stream::from_raw`); the function takes any number.
        unsafe { result::launch_host(stream.raw(), Some(pending::ended), data) }
    });
    fault::point(Point::ReleaseEnqueued);
    launched
}

/// Ends `what` when the stream gets there. On failure `what` is dropped, and nothing waits.
///
/// # Errors
///
/// See [`CudaError`].
pub fn end(what: Box<dyn Ends>, device: &Device, stream: Stream) -> Result<(), CudaError> {
    // In a forked child the list may be locked by a thread that is not there.
    device.check_process()?;
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

/// Lists what the device ends by itself. Returns its number for [`pending::end_if_over`] and [`end_listed`].
pub fn list_only(what: Box<dyn Ends>, device: &Device) -> u64 {
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
    /// Runs a job when all is done that was put on this stream so far: on a thread of the library, which may call the driver.
    /// No CPU waits for that, unless the driver refuses to report the end; then this call does. In a context that fails the job
    /// runs when that is noticed.
    pub fn when_done(self, device: &Device, job: impl FnOnce() + Send + 'static) {
        if device.check_process().is_err() {
            // A forked child, in which nothing of this works: the job is the parent's.
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
            // In a context that is in error nothing runs any more.
            Ok(()) | Err(CudaError::ContextInError { .. }) => refused.end(),
            Err(_) => {
                log::error!(
                    "a job behind a CUDA stream does not run, since its stream cannot be waited for: {error}"
                );
                std::mem::forget(refused);
            }
        }
    }
}

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Checks now and then whether the contexts still work in which entries wait: in one that is in error they would wait for ever.
fn watch() {
    if WATCHED.swap(true, Ordering::AcqRel) {
        return;
    }
    reaper::DRIVER.every(SUSPICIOUS, || {
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
