// SPDX-License-Identifier: MPL-2.0

//! What `xmem.Channel` stands on: messages of one pickle and large blocks, through lossless pools.
//!
//! The process that makes a channel has a pool of the channel's name, and every process that joins it has one of its own,
//! which it tells the first by a request; there is a thread for each pool that messages come from. `xmem/channel` turns
//! objects into messages, and says more.

mod device;
mod end;
pub(crate) mod frames;
mod inbox;
mod incoming;
mod inlet;
pub(crate) mod memory;
mod message;
mod names;
mod open;
mod outgoing;
mod reaper;
mod refs;
mod send;

pub(crate) use device::DeviceBlock;
pub(crate) use end::ChannelEnd;
pub(crate) use incoming::{Block, Incoming};
pub(crate) use refs::RefLease;
