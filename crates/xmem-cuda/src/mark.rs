// SPDX-License-Identifier: MPL-2.0

//! A place in the order of a stream.

use std::time::Duration;

use xmem_shm::os::clock::Deadline;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::event::{Event, done_by};
use crate::stream::Stream;

/// The work that was put on a stream so far. A wait for it does not wait for later work.
#[derive(Debug)]
pub struct StreamMark {
    event: Event,
    /// The stream's ([`Device::with_context_of`]).
    context: usize,
}

impl Stream {
    /// Where the stream is now.
    ///
    /// # Errors
    ///
    /// [`CudaError::Captured`]. For others see [`CudaError`].
    pub fn mark(self, device: &Device) -> Result<StreamMark, CudaError> {
        let event = Event::plain(device)?;
        let context = event.record(self)?;
        Ok(StreamMark { event, context })
    }

    /// Has this stream wait until another one of the device has got where it is now. No CPU waits.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark), for either of them.
    pub fn wait_for(self, device: &Device, other: Self) -> Result<(), CudaError> {
        other.mark(device)?.event.wait_on(self)
    }
}

impl StreamMark {
    /// Waits until all is done that was put on the stream before, but not for longer than `time`. Returns whether it is. The
    /// CPU waits; [`wait_for`](Stream::wait_for) does without.
    ///
    /// # Errors
    ///
    /// [`CudaError::Unfinished`]: it never will be, as the stream is of a context that is in error, or over. For
    /// others see [`CudaError`].
    pub fn synchronize_for(&self, time: Duration) -> Result<bool, CudaError> {
        count(&COUNTERS.host_syncs);
        done_by(Deadline::after(Some(time)), || self.is_done())
    }

    fn is_done(&self) -> Result<bool, CudaError> {
        let done = self.event.has_happened()?;
        let device = self.event.device();
        // An error in the primary context shows in the call above.
        if !done && !device.is_primary(self.context) && !device.may_end(self.context) {
            return Err(CudaError::Unfinished);
        }
        Ok(done)
    }
}
