// SPDX-License-Identifier: MPL-2.0

//! What the elements do with pools, caps and buffers. Each module has one subject.

mod buffers;
mod cameras;
mod consumers;
#[path = "../support/descriptors.rs"]
mod descriptors;
mod dma_buffers;
mod errors;
mod formats;
mod frame_info;
mod frame_parts;
mod layouts;
mod negotiation;
mod other_software;
mod pictures;
mod plain_readers;
mod pool;
mod pool_buffers;
mod properties;
mod read_only;
mod received_buffers;
#[path = "../support/mod.rs"]
mod support;
mod video_formats;
mod zero_copy;
