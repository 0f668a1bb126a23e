// SPDX-License-Identifier: MPL-2.0

//! The end of frames and slots whose last handle may go on any thread, also on one that may not call the driver: arrays of
//! other libraries, which are dropped wherever those like. A thread of our own calls it then.

use std::mem::ManuallyDrop;

use xmem_cuda::device::Device;
use xmem_cuda::error::CudaError;
use xmem_cuda::reaper;
use xmem_cuda::stream::Stream;

use super::frame::CudaFrame;
use super::release;
use crate::producer::WriteLease;

/// A per-thread stream is another one on another thread. The default stream waits for those of all threads.
fn of_any_thread(mut streams: Vec<Stream>) -> Vec<Stream> {
    for stream in &mut streams {
        if *stream == Stream::PER_THREAD {
            *stream = Stream::LEGACY_DEFAULT;
        }
    }
    streams
}

impl CudaFrame {
    /// Lets go of the frame when all of these streams get there; without any, at once. On any thread, also in a host function:
    /// a thread of this crate calls the driver, soon. So the streams have to be there a little longer than the frame. In
    /// place of a [per-thread stream](Stream::PER_THREAD), whose thread is not known then, the default stream stands, which
    /// waits for it.
    pub fn release_later(self, streams: Vec<Stream>) {
        if streams.is_empty() {
            return;
        }
        let device = self.device().clone();
        let mut left = of_any_thread(streams);
        when_it_can_be(self, device, move |frame| {
            while let Some(stream) = left.last() {
                release::by_host_function(frame.lease(), frame.device(), *stream)?;
                left.pop();
            }
            Ok(())
        });
    }
}

impl WriteLease {
    /// Gives the slot back unpublished, although these streams may still write it: who gets it next sees that
    /// ([`CudaSlot::wait_on`](super::CudaSlot::wait_on)). On any thread, as [`CudaFrame::release_later`].
    pub fn give_back_later(self, streams: Vec<Stream>) {
        let Some(device) = self.cuda().map(|slot| slot.device().clone()) else {
            return;
        };
        let streams = of_any_thread(streams);
        when_it_can_be(self, device, move |lease| {
            let (Some(slot), Some((last, others))) = (lease.cuda(), streams.split_last()) else {
                return Ok(());
            };
            // An event stands for one stream.
            if !others.is_empty() {
                return Err(CudaError::Unsupported {
                    what: "wait for several streams at once",
                });
            }
            slot.twin.record(slot.slot, *last).map(drop)
        });
    }
}

/// Puts on streams what says when a slot may go, on the reaper's thread, and drops what holds it. Nothing can be put on a stream
/// that is being captured into a graph, and waiting for the device would spoil the capture, so that is tried again until the
/// capture is over.
fn when_it_can_be<T: Send + 'static>(
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
                after_everything(own, &device, &error);
                true
            }
        }
    };
    reaper::later(move || {
        if !attempt() {
            reaper::until(attempt);
        }
    });
}

/// Drops what holds a slot when all is done that this process had given to the device: one of the streams cannot be asked,
/// perhaps since it was destroyed.
fn after_everything<T: Send + 'static>(held: T, device: &Device, why: &CudaError) {
    log::debug!("a slot is let go of when its device is done with everything, since {why}");
    // Without a thread it stays held.
    let (held, device) = (ManuallyDrop::new(held), device.clone());
    let wait = move || match device.synchronize() {
        // In a context that is in error nothing runs any more.
        Ok(()) | Err(CudaError::ContextInError { .. }) => drop(ManuallyDrop::into_inner(held)),
        Err(error) => {
            log::error!("a slot stays held, since its device cannot be waited for: {error}")
        }
    };
    // It may take as long as it likes, and the reaper has others to serve.
    let thread = std::thread::Builder::new().name("xmem-cuda-wait".into());
    if let Err(error) = thread.spawn(wait) {
        log::error!("a slot stays held, since nobody can wait for its device: {error}");
    }
}
