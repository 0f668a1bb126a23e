// SPDX-License-Identifier: MPL-2.0

//! Frames in the memory of CUDA devices.
//!
//! A CUDA region is an ordinary region with a twin on a device. Leases and slot words are the same as for host memory, and only
//! the payload is on the device. A consumer's stream waits for the producer's work with an event, and its lease ends in the
//! order of its stream. So no CPU waits for a device, and no slot is written while a kernel reads it.
//!
//! A driver is needed only at the first use. Without one, that use returns an error. CUDA does not survive fork.
//!
//! ```no_run
//! use xmem_core::cuda::{Device, Stream};
//! use xmem_core::{Consumer, FrameMeta, Producer, SlotSpec};
//!
//! # let (decode, look_at): (fn(u64, Stream), fn(u64, Stream)) = (|_, _| (), |_, _| ());
//! // In one process:
//! let producer = Producer::builder("cam0").build()?;
//! let device = Device::new(0)?;
//! let slot = producer.acquire(SlotSpec::new(1920 * 1080).on(&device))?;
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

mod copy;
mod frame;
mod later;
mod wait;

pub use crate::region::device::mode::Mode;
pub use crate::region::device::slot::{CudaSlot, SlotWork};
pub use frame::{CudaFrame, FrameFailure};
pub use later::drop_later;
pub use xmem_cuda::counts::{Counts, counts};
pub use xmem_cuda::device::{Device, device_count, devices, is_available};
pub use xmem_cuda::error::CudaError;
pub use xmem_cuda::mark::StreamMark;
pub use xmem_cuda::private::PrivateMemory;
pub use xmem_cuda::release_word::ReleaseWord;
pub use xmem_cuda::rows::Rows;
pub use xmem_cuda::stream::Stream;
pub use xmem_shm::abi::device_header::Uuid;

pub(crate) use copy::{Source, between, download, pin};
