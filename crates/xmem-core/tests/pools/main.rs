// SPDX-License-Identifier: MPL-2.0

//! Pools in one process: frames, buffers by number, events and ends. Each module has one subject.

mod attachments;
mod buffer_pool;
mod buffer_pool_edits;
mod buffer_pool_limits;
mod buffer_pool_set_aside;
mod consumer_set;
mod follow;
mod history;
mod late_region;
mod max_rate;
mod model;
mod newest_only;
mod notify;
mod resume;
mod scarce_bytes;
#[path = "../support/mod.rs"]
mod support;
mod survey;
