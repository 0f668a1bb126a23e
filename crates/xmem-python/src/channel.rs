// SPDX-License-Identifier: MPL-2.0

//! The base of `xmem.Channel`: messages that consist of a pickle and large blocks, over lossless pools.
//!
//! The pool of the process that makes the channel (the maker) has the channel's name. Each process that joins has its own pool,
//! and sends its number to the maker in a request. For each of these pools, one thread receives its messages.
//! `python/xmem/channel` converts objects to messages.

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
mod refs;
mod send;

pub(crate) use arrays::DeviceBlock;
pub(crate) use end::ChannelEnd;
pub(crate) use incoming::{Block, Incoming};
pub(crate) use refs::RefLease;
