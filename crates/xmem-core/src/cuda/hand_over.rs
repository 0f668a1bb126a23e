// SPDX-License-Identifier: MPL-2.0

//! Leases that a device ends itself, by a store of 0 to the lease's word.
//!
//! The store can happen at any time, and ends the lease that the word has then. So after the word's address was given out, this
//! process takes no other lease of that slot until it has read the 0. Nothing else writes the word, so no store follows the 0.
#![allow(unsafe_code)] // calls the driver

use std::fmt;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::result;
use xmem_cuda::stream::Stream;
use xmem_cuda::{pending, reaper, when};
use xmem_shm::fault::{self, Point};

use super::lease_page::DeviceLeasePage;
use crate::consumer::leases::Leases;
use crate::frame::lease::ReadLease;

/// A lease that the device ends.
#[must_use = "a kernel has to get the word, or the lease is to be ended"]
pub struct HandedOver {
    word: u64,
    number: u64,
}

impl fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedOver")
            .field("word", &self.word)
            .finish_non_exhaustive()
    }
}

impl HandedOver {
    /// The address on the device of the 32-bit word. The kernel stores 0 to it once, when it has finished with the frame.
    pub fn word(&self) -> u64 {
        self.word
    }

    /// Ends the lease now. No kernel was launched that would.
    pub fn end(self) {
        pending::end(self.number);
    }
}

/// Hands a lease over. On an error the lease does not change.
pub(super) fn hand_over(lease: &mut ReadLease, device: &Device) -> Result<HandedOver, CudaError> {
    let unsupported = |what| Err(CudaError::Unsupported { what });
    let Some(leases) = lease.hold().holder::<Leases>() else {
        // The producer's own references have no words that a device could write.
        return unsupported("end a producer's own lease");
    };
    if !lease.parts().is_empty() {
        return unsupported("end the leases of a frame in parts");
    }
    if !leases.is_of_this_process() {
        return Err(CudaError::Forked);
    }
    let word = DeviceLeasePage::of(&leases, device)?.word(lease.info().slot, device)?;
    let handed = leases.hand_over(lease.hold_mut());
    let handed = handed.ok_or(CudaError::Shared)?;
    fault::point(Point::HandedOver);
    let number = when::list_only(Box::new(handed), device);
    // Nothing reports that the word is 0, so the reaper polls it.
    reaper::until(move || pending::end_if_over(number));
    Ok(HandedOver { word, number })
}

/// Makes a stream end a lease that was handed over.
pub(super) fn by_write(handed: HandedOver, device: &Device, stream: Stream) {
    let HandedOver { word, number } = handed;
    let written = device.with_context_of(stream, |context| {
        pending::waits_in(number, context);
        // SAFETY: the stream is alive (`Stream::from_raw`), and the word stays registered until it was read as 0.
        unsafe { result::write_value(stream.raw(), word, 0, 0) }
    });
    fault::point(Point::ReleaseEnqueued);
    if let Err(error) = written {
        log::debug!("a lease is ended by a host function, since {error}");
        if let Err(error) = when::end_listed(number, device, stream) {
            // Only the program that queued the work can wait for it: this process cannot detect its end.
            log::error!(
                "a lease cannot be ended in the order of its stream ({error}): it ends with its connection"
            );
        }
    }
}
