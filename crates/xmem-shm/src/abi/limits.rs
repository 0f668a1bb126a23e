// SPDX-License-Identifier: MPL-2.0

//! Limits of the values that two processes share. A number above its limit is refused, whichever process wrote it.

use std::time::Duration;

/// The most slots that a pool may have. It bounds the memory a consumer maps for a producer that it does not trust.
pub const MAX_SLOTS: u32 = 1 << 16;
/// The most parts that a frame may have: as many memories as a GstBuffer has.
pub const MAX_PARTS: usize = 16;
/// The longest encoded state, and the most that can be attached to a frame, in bytes.
pub const MAX_NAMED_SIZE: usize = 16 << 20;
/// The most entries of a state, and of the attachments of a frame.
pub const MAX_NAMED_ENTRIES: usize = 1024;
/// The most bytes of data in a request of a consumer.
pub const MAX_REQUEST: usize = 448;
/// The most planes of a video frame.
pub const MAX_PLANES: usize = 4;
/// The most dimensions of a tensor.
pub const MAX_DIMS: usize = 8;
/// The most layouts that a pool's table has.
pub const MAX_LAYOUTS: usize = 64;
/// How many bytes of a frame's description are for the user's own use.
pub const RESERVED_LEN: usize = 64;
/// How long a consumer waits for an answer of its producer, and for a device that ends a lease.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
