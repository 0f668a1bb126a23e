// SPDX-License-Identifier: MPL-2.0

//! The slot protocol, as algorithms over references to atomics.
//!
//! No algorithm depends on where the words lie, so the code that ships is also the code that loom explores.

pub mod lease;
pub mod regions;
pub mod ring;
pub mod slot;
pub mod wake;
