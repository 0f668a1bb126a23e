// SPDX-License-Identifier: MPL-2.0

//! The layout of the shared memory and the format of the messages. `VERSION` in [`layout`] is the version of both.

pub mod budget;
mod codec;
pub mod device_header;
pub mod dtype;
pub mod entry;
pub mod extension;
pub mod frame_layout;
pub mod layout;
pub mod limits;
pub mod meta;
pub mod named;
pub mod parts;
pub mod place;
pub mod text;
pub mod video;
pub mod wire;
