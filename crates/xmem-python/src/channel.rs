// SPDX-License-Identifier: MPL-2.0

//! The base of `xmem.Channel`: messages of one pickle and large blocks, through lossless pools.
//!
//! The maker's pool has the channel's name. Each process that joins has a pool of its own, and sends the maker a request with its
//! number. One thread for each of these pools takes its messages. `python/xmem/channel` turns objects into messages.

mod arrays;
mod device;
mod end;
pub(crate) mod frames;
mod inbox;
mod incoming;
mod inlet;
mod item;
mod link;
pub(crate) mod memory;
mod message;
mod names;
mod open;
mod outgoing;
mod outlet;
mod reaper;
mod refs;
mod send;

pub(crate) use arrays::DeviceBlock;
pub(crate) use end::ChannelEnd;
pub(crate) use incoming::{Block, Incoming};
pub(crate) use refs::RefLease;
