// SPDX-License-Identifier: MPL-2.0

//! Ends a lease in the order of a stream.

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::pending::Ends;
use xmem_cuda::stream::Stream;
use xmem_cuda::{reaper, when};
use xmem_shm::fault::{self, Point};

use crate::frame::lease::ReadLease;

impl Ends for ReadLease {
    fn end(self: Box<Self>) {
        if self.is_local() {
            // Release hooks run with the producer's own lease, and are code of the program.
            reaper::elsewhere(move || drop(self));
        } else {
            drop(self);
        }
        fault::point(Point::ReleaseRan);
    }
}

/// Ends a lease when the stream reaches this point and the caller's handle is dropped. On an error only that handle is left.
pub(super) fn by_host_function(
    lease: &ReadLease,
    device: &Device,
    stream: Stream,
) -> Result<(), CudaError> {
    when::end(Box::new(lease.clone()), device, stream)
}
