// SPDX-License-Identifier: MPL-2.0

//! Named pools of frames in shared memory: one [`Producer`], many [`Consumer`]s, no copy.
//!
//! A producer acquires a slot, writes a frame into it and publishes it; every consumer of the pool, in whatever process,
//! reads the frame where it lies. The slot is used again when the last reference to it is gone, also when that is
//! because a process was killed. A live producer never waits for a consumer.
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
//! assert!(frame.iter().all(|byte| *byte == 128));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! From the bottom up, each knowing only those below it: `os` (system calls), `region` (memory that holds slots),
//! `protocol` (the algorithms, over references to atomics), `layout` (where each word lies) and `wire` (the messages),
//! `producer` and `consumer`, `buffer_pool`. Beside them `cuda`, with the feature of that name.

#![warn(missing_docs)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "xmem is for 64-bit machines only: others read 64-bit words from memory that they may not write in ways that Rust does not define"
);

#[cfg(feature = "fault-points")]
#[doc(hidden)]
#[allow(missing_docs)] // for tests only
pub mod fault;
#[cfg(not(feature = "fault-points"))]
mod fault;
mod sync;

#[cfg(xmem_loom)]
#[allow(missing_docs)]
pub mod protocol;
#[cfg(not(xmem_loom))]
#[allow(unreachable_pub)] // public for loom
mod protocol;

#[cfg(not(xmem_loom))]
mod api {
    pub use crate::budget::BudgetLimit;
    pub use crate::buffer_pool::{AccessMode, BufferGuard, BufferPool, BufferPoolOptions};
    pub use crate::cancel::Canceller;
    pub use crate::consumer::{Consumer, ConsumerBuilder, ConsumerHandle, query};
    pub use crate::delivery::{Delivery, StartFrom};
    pub use crate::error::*;
    pub use crate::lease::{ReadLease, SLOT};
    pub use crate::meta::{DType, FrameMeta, MAX_DIMS, MAX_PLANES, Storage, Text, VideoLayout};
    pub use crate::named::{Attachments, MAX_NAMED_ENTRIES, MAX_NAMED_SIZE, Named, Sticky};
    pub use crate::os::clock::monotonic_ns;
    pub use crate::os::fork::ProcessId;
    pub use crate::parts::{MAX_PARTS, Part};
    pub use crate::printable::printable;
    pub use crate::producer::{
        ConsumerEvent, Departure, ImportedMemory, Parts, PieceLease, Producer, ProducerBuilder,
        PublishFailure, WriteLease, remove_stale,
    };
    pub use crate::region::{Backing, Capabilities, remove_stale_segments};
    pub use crate::rendezvous::{
        PoolEntry, other_runtime_dirs_with, pools, pools_in_words, read_lone_locks, read_pools,
        runtime_dir, socket_path,
    };
    pub use crate::stats::{ConsumerStats, PoolStats, ReceiveStats};
    pub use crate::survey::query_all;
    pub use crate::video::{PlaneSize, VideoFormat};
    pub use crate::watch::{PoolWatch, Watched};
    pub use crate::wire::MAX_REQUEST;
}
#[cfg(not(xmem_loom))]
pub use api::*;

#[cfg(not(xmem_loom))]
mod bounds;
#[cfg(not(xmem_loom))]
mod budget;
#[cfg(not(xmem_loom))]
mod buffer_pool;
#[cfg(not(xmem_loom))]
mod cancel;
#[cfg(not(xmem_loom))]
mod consumer;
#[cfg(all(feature = "cuda", not(xmem_loom)))]
pub mod cuda;
#[cfg(not(xmem_loom))]
mod delivery;
#[cfg(not(xmem_loom))]
mod entry;
#[cfg(not(xmem_loom))]
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(xmem_loom))]
mod layout;
#[cfg(not(xmem_loom))]
mod lease;
#[cfg(not(xmem_loom))]
mod lock;
#[cfg(not(xmem_loom))]
mod meta;
#[cfg(not(xmem_loom))]
mod named;
#[cfg(not(xmem_loom))]
mod os;
#[cfg(not(xmem_loom))]
mod parts;
#[cfg(not(xmem_loom))]
mod printable;
#[cfg(not(xmem_loom))]
mod producer;
#[cfg(not(xmem_loom))]
mod random;
#[cfg(not(xmem_loom))]
mod region;
#[cfg(not(xmem_loom))]
mod rendezvous;
#[cfg(not(xmem_loom))]
mod sealed;
#[cfg(not(xmem_loom))]
mod stats;
#[cfg(not(xmem_loom))]
mod survey;
#[cfg(not(xmem_loom))]
mod video;
#[cfg(not(xmem_loom))]
mod watch;
#[cfg(not(xmem_loom))]
mod wire;
