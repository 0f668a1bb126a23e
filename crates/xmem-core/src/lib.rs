// SPDX-License-Identifier: MPL-2.0

//! Named pools of frames in shared memory: one [`Producer`], many [`Consumer`]s, no copy.
//!
//! A producer acquires a slot, writes a frame into it and publishes it. Each consumer of the pool, in any process, reads the
//! frame in the slot. The slot is free again when its last reference is released, or when the process of that reference ends.
//! A live producer never waits for a consumer.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let pool = dir.path().join("cam0.sock");
//! # let pool = pool.to_str().unwrap();
//! use xmem_core::{Consumer, FrameMeta, Producer};
//!
//! // In one process:
//! let producer = Producer::builder(pool).build()?;
//! // In another one, or several:
//! let mut consumer = Consumer::builder(pool).connect()?;
//!
//! let mut slot = producer.acquire(640 * 480)?;
//! slot.as_mut_slice().fill(128);
//! slot.publish(FrameMeta::new(640 * 480))?;
//!
//! let frame = consumer.receive(None)?;
//! assert!(frame.bytes()?.iter().all(|byte| *byte == 128));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! Below this crate, `xmem-shm` has the parts that processes share: the slot protocol, the layout of the memory, the messages, the
//! system calls. In this crate, from the bottom up: `region` (memory that holds slots), `frame` (the right to read), `producer`
//! and `consumer`, [`follow`] (one producer after another), `cuda` (with the feature of that name), `buffer_pool`.
//! `docs/design/README.md` in the repository begins the description of the design.

#![cfg(not(xmem_loom))] // loom tests only xmem-shm
#![warn(missing_docs)]
// Data from another process must not cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]
// Without the feature `cuda`, functions that only the module `cuda` calls are unused.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

#[cfg(any(feature = "fault-points", debug_assertions))]
#[doc(hidden)]
pub use xmem_shm::fault;
#[doc(hidden)]
pub use xmem_shm::os::clock::can_be_meant;

pub use crate::buffer_pool::{
    AccessError, AccessMode, BufferGuard, BufferPool, BufferPoolOptions, GetError, OpenError,
    RefCountError, WriteAccessError,
};
pub use crate::cancel::{Canceller, Wait};
pub use crate::consumer::{Consumer, ConsumerBuilder, ConsumerHandle, ConsumerSet, ReadyFd};
pub use crate::delivery::Delivery;
pub use crate::error::*;
pub use crate::frame::dmabuf::DmabufPlane;
pub use crate::frame::forwarded::FrameParts;
pub use crate::frame::lease::ReadLease;
pub use crate::frame::parts::Part;
pub use crate::producer::{
    Departure, ImportedMemory, OwnSlot, PartLease, Parts, PoolEvent, Producer, ProducerBuilder,
    PublishFailure, Reader, SlotSpec, Unread, WriteLease,
};
pub use crate::region::{Backing, Dmabuf};
pub use crate::stats::{ConsumerStats, PoolStats, ReceiveStats};
pub use xmem_shm::abi::budget::BudgetLimit;
pub use xmem_shm::abi::dtype::DType;
pub use xmem_shm::abi::entry::{FrameInfo, Storage};
pub use xmem_shm::abi::frame_layout::FrameLayout;
pub use xmem_shm::abi::limits::{
    MAX_DIMS, MAX_NAMED_ENTRIES, MAX_NAMED_SIZE, MAX_PARTS, MAX_PLANES, MAX_REQUEST,
};
pub use xmem_shm::abi::meta::{FrameFlags, FrameMeta};
pub use xmem_shm::abi::named::{Attachments, Named, Sticky};
pub use xmem_shm::abi::text::Text;
pub use xmem_shm::abi::video::VideoLayout;
pub use xmem_shm::abi::video::{LayoutError, PlaneSize, VideoFormat};
pub use xmem_shm::abi::wire::StartFrom;
pub use xmem_shm::os::clock::monotonic_ns;
pub use xmem_shm::os::fork::ProcessId;

mod buffer_pool;
mod cancel;
mod consumer;
#[cfg(feature = "cuda")]
pub mod cuda;
mod delivery;
pub mod discovery;
mod error;
pub mod follow;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
pub mod key_frame;
mod producer;
mod region;
mod rendezvous;
mod stats;
mod watch;

/// Any thread may have and use any handle.
const _: () = {
    const fn is_for_any_thread<T: Send + Sync>() {}
    is_for_any_thread::<(
        Producer,
        WriteLease,
        OwnSlot,
        PartLease,
        Parts,
        ImportedMemory,
    )>();
    is_for_any_thread::<(Consumer, ConsumerHandle, ReadLease, Part)>();
    is_for_any_thread::<(follow::Follower, follow::FollowerHandle)>();
    is_for_any_thread::<(BufferPool, BufferGuard, Canceller, discovery::PoolWatch)>();
    #[cfg(feature = "cuda")]
    is_for_any_thread::<cuda::CudaFrame>();
};
