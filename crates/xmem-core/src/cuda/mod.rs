// SPDX-License-Identifier: MPL-2.0

//! Frames in the memory of CUDA devices.
//!
//! A CUDA region is an ordinary region with a twin on a device: who holds a frame, and which slot is free, is known in the
//! same words as for host memory; only the payload lies on the device. A consumer's stream waits for the producer's work
//! by an event, and its lease ends in the order of its stream, so no CPU waits for a device, and no slot is written while
//! a kernel reads it.
//!
//! Nothing here needs a driver until it is used; without one it says so. CUDA does not survive fork.
//!
//! ```no_run
//! use xmem_core::cuda::{Device, Stream};
//! use xmem_core::{Consumer, FrameMeta, Producer};
//!
//! # let (decode, look_at): (fn(u64, Stream), fn(u64, Stream)) = (|_, _| (), |_, _| ());
//! // In one process:
//! let producer = Producer::builder("cam0").build()?;
//! let device = Device::new(0)?;
//! let slot = producer.acquire_cuda(1920 * 1080, &device)?;
//! let stream = Stream::PER_THREAD;
//! decode(slot.cuda().unwrap().ptr(), stream);
//! slot.publish_on(stream, FrameMeta::new(1920 * 1080))?;
//!
//! // In another one:
//! let mut consumer = Consumer::builder("cam0").connect()?;
//! let frame = consumer.receive(None)?.into_cuda()?;
//! frame.wait_on(stream)?;
//! look_at(frame.ptr(), stream);
//! frame.release_on(stream).map_err(|failure| failure.release_after(stream))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chars;
mod copy;
mod counts;
mod device;
mod driver;
mod error;
mod event;
mod frame;
mod hand_over;
mod host;
mod import;
mod later;
mod mark;
mod memory;
mod private;
mod reaper;
mod release;
mod result;
mod rows;
mod slot;
mod stream;
mod twin;
mod wait;

use std::time::Duration;

pub use counts::{Counts, counts};
pub use device::{Device, Uuid, device_count, devices, is_available};
pub use error::CudaError;
pub use frame::{CudaFrame, FrameFailure};
pub use hand_over::HandedOver;
pub use mark::StreamMark;
pub use private::PrivateMemory;
pub use rows::Rows;
pub use slot::{CudaSlot, SlotWork};
pub use stream::Stream;

pub(crate) use copy::{Pinned, Source, between, download, upload};
pub(crate) use hand_over::DevicePage;
pub(crate) use import::Imports;
pub(crate) use release::is_host_function;
pub(crate) use twin::{Twin, TwinPlan};

/// How often is looked whether a device is done with something: it tells nobody.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// How long something may take before it is looked whether its context still works.
pub(crate) const SUSPICIOUS: Duration = Duration::from_secs(1);

/// Has something done soon, not here: where the program's code may run for long.
pub(crate) fn elsewhere(job: impl FnOnce() + Send + 'static) {
    reaper::LEASES.later(job);
}

/// Has a device looked at now and then, until there is nothing to be looked at.
pub(crate) fn watch(pause: Duration, is_over: impl FnMut() -> bool + Send + 'static) {
    reaper::DRIVER.every(pause, is_over);
}

/// Has something looked at until it is so, without calls of the driver.
pub(crate) fn until(is_so: impl FnMut() -> bool + Send + 'static) {
    reaper::LEASES.every(LOOK, is_so);
}

/// How the memory of a pool's CUDA slots is shared.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By descriptor if the device can, else by legacy handle.
    #[default]
    Auto,
    /// By descriptor (virtual memory management): it lives for as long as anybody uses it, also when the producer was
    /// killed.
    Vmm,
    /// By legacy handle: it ends with the producer.
    Legacy,
}
