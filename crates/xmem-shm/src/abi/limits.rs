// SPDX-License-Identifier: MPL-2.0

//! Limits of values that processes share. A larger value from another process is refused.

use std::time::Duration;

/// The maximum number of slots of a pool. It bounds the memory that a consumer maps for a producer that it does not trust.
pub const MAX_SLOTS: u32 = 1 << 16;
/// The maximum number of consumers of a pool.
pub const MAX_CONSUMERS: u32 = 4096;
/// The maximum number of parts of a frame: the maximum number of memories of a GstBuffer.
pub const MAX_PARTS: usize = 16;
/// The maximum size of an encoded state, and of the attachments of a frame, in bytes.
pub const MAX_NAMED_SIZE: usize = 16 << 20;
/// The maximum number of entries of a state, and of the attachments of a frame.
pub const MAX_NAMED_ENTRIES: usize = 1024;
/// The maximum size of the data in a request of a consumer, in bytes.
pub const MAX_REQUEST: usize = 448;
/// The maximum number of planes of a video frame.
pub const MAX_PLANES: usize = 4;
/// The maximum number of dimensions of a tensor.
pub const MAX_DIMS: usize = 8;
/// The maximum number of layouts in a pool's table.
pub const MAX_LAYOUTS: usize = 64;
/// The size of the bytes of a frame's description that the user defines.
pub const RESERVED_LEN: usize = 64;
/// The longest wait of a consumer for an answer of its producer, and for a device that ends a lease.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
