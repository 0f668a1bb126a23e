// SPDX-License-Identifier: MPL-2.0

//! A position in the order of a stream.

use std::time::Duration;

use xmem_shm::os::clock::Deadline;

use crate::counts::{COUNTERS, count};
use crate::device::Device;
use crate::error::CudaError;
use crate::event::{Event, done_by};
use crate::stream::Stream;

/// The work that is queued on a stream at one time. Waiting for it does not wait for later work.
#[derive(Debug)]
pub struct StreamMark {
    event: Event,
    /// The context of the stream ([`Device::with_context_of`]).
    context: usize,
}

impl Stream {
    /// The present end of the stream.
    ///
    /// # Errors
    ///
    /// [`CudaError::Captured`]. For others see [`CudaError`].
    pub fn mark(self, device: &Device) -> Result<StreamMark, CudaError> {
        let event = Event::plain(device)?;
        let context = event.record(self)?;
        Ok(StreamMark { event, context })
    }

    /// Makes this stream wait until another one of the device has reached its present end. No CPU waits.
    ///
    /// # Errors
    ///
    /// As [`mark`](Self::mark), for either of them.
    pub fn wait_for(self, device: &Device, other: Self) -> Result<(), CudaError> {
        other.mark(device)?.event.wait_on(self)
    }
}

impl StreamMark {
    /// Waits on the CPU until the marked work has ended, at most `time`. Returns whether it has. With
    /// [`wait_for`](Stream::wait_for) no CPU waits.
    ///
    /// # Errors
    ///
    /// [`CudaError::Unfinished`] if it never will be, because the stream's context is in error or was destroyed. For others see
    /// [`CudaError`].
    pub fn synchronize_for(&self, time: Duration) -> Result<bool, CudaError> {
        count(&COUNTERS.host_syncs);
        done_by(Deadline::after(Some(time)), || self.is_done())
    }

    fn is_done(&self) -> Result<bool, CudaError> {
        let done = self.event.has_happened()?;
        let device = self.event.device();
        // The call above reports an error in the primary context.
        if !done && !device.is_primary(self.context) && !device.may_end(self.context) {
            return Err(CudaError::Unfinished);
        }
        Ok(done)
    }
}
