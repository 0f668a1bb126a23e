// SPDX-License-Identifier: MPL-2.0

//! Releases frames and slots from any thread, including threads that must not call the driver, because other libraries drop
//! arrays on any thread. A thread of this crate calls the driver instead.

use std::sync::Arc;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::pending::Ends;
use xmem_cuda::reaper::{self, CHECK_INTERVAL};
use xmem_cuda::stream::Stream;
use xmem_cuda::when;
use xmem_shm::fault::{self, Point};

use super::frame::CudaFrame;
use crate::frame::lease::ReadLease;
use crate::producer::WriteLease;

/// A per-thread stream is a different stream on each thread. The default stream waits for those of all threads.
fn of_any_thread(mut streams: Vec<Stream>) -> Vec<Stream> {
    for stream in &mut streams {
        if *stream == Stream::PER_THREAD {
            *stream = Stream::LEGACY_DEFAULT;
        }
    }
    streams
}

impl CudaFrame {
    /// Releases the frame when all of these streams have reached their current end; without streams, at once. Can be called on
    /// any thread, also in a host function. A thread of this crate calls the driver soon afterwards, so the streams must exist
    /// slightly longer than the frame. A [per-thread stream](Stream::PER_THREAD) is replaced by the default stream, which waits
    /// for it.
    pub fn release_later(self, streams: Vec<Stream>) {
        if streams.is_empty() {
            return;
        }
        let device = self.device().clone();
        let mut left = of_any_thread(streams);
        retry_while_captured(self, device, move |frame| {
            while let Some(stream) = left.last() {
                frame.end_on(*stream)?;
                left.pop();
            }
            Ok(())
        });
    }
}

/// Drops a value when all of these streams have reached their current end; without streams, soon. Can be called on any thread,
/// like [`CudaFrame::release_later`]. The value must not call the driver when it is dropped.
pub fn drop_later<T: Send + Sync + 'static>(value: T, device: &Device, streams: Vec<Stream>) {
    let (device, mut left) = (device.clone(), of_any_thread(streams));
    retry_while_captured(Arc::new(value), device.clone(), move |value| {
        while let Some(stream) = left.last() {
            when::end(Box::new(Kept(value.clone())), &device, *stream)?;
            left.pop();
        }
        Ok(())
    });
}

/// A value that is kept for a stream.
struct Kept<T>(#[expect(dead_code, reason = "kept, not read")] Arc<T>);

impl<T: Send + Sync + 'static> Ends for Kept<T> {
    fn end(self: Box<Self>) {
        // Not in a host function, which would delay the stream.
        reaper::elsewhere(move || drop(self));
    }
}

impl WriteLease {
    /// Gives the slot back without publishing it, although these streams may still write it. The next writer can wait for that
    /// ([`CudaSlot::wait_on`](super::CudaSlot::wait_on)). Can be called on any thread, like [`CudaFrame::release_later`].
    pub fn give_back_later(self, streams: Vec<Stream>) {
        let Some(device) = self.cuda().map(|slot| slot.device().clone()) else {
            return;
        };
        let streams = of_any_thread(streams);
        retry_while_captured(self, device, move |lease| {
            let (Some(slot), Some((last, others))) = (lease.cuda(), streams.split_last()) else {
                return Ok(());
            };
            // One event covers only one stream.
            if !others.is_empty() {
                return Err(CudaError::Unsupported {
                    what: "wait for several streams at once",
                });
            }
            slot.twin.record(slot.slot, *last).map(drop)
        });
    }
}

/// On the reaper's thread, queues the release of a slot or of memory on streams, and drops the holder. Retried while a stream is being
/// captured into a graph: nothing can be queued on it, and waiting for the device would invalidate the capture.
fn retry_while_captured<T: Send + 'static>(
    held: T,
    device: Device,
    mut attempt: impl FnMut(&T) -> Result<(), CudaError> + Send + 'static,
) {
    let mut held = Some(held);
    let mut attempt = move || {
        let Some(own) = held.take() else { return true };
        match attempt(&own) {
            Ok(()) => true,
            Err(CudaError::Captured) => {
                held = Some(own);
                false
            }
            Err(error) => {
                when::after_all_work(&device, &error, move || drop(own));
                true
            }
        }
    };
    reaper::later(move || {
        if !attempt() {
            reaper::watch(CHECK_INTERVAL, attempt);
        }
    });
}

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
