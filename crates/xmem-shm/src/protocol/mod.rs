// SPDX-License-Identifier: MPL-2.0

//! The slot protocol, as algorithms over references to atomics.
//!
//! No algorithm depends on the place of the words, so loom tests the code that ships.

pub mod lease;
pub mod regions;
pub mod ring;
pub mod wake;
