// SPDX-License-Identifier: MPL-2.0

//! Named pools of frames in shared memory.

mod error;
mod meta;
mod stats;
mod sticky;

pub use error::*;
pub use meta::*;
pub use stats::*;
pub use sticky::*;
