// SPDX-License-Identifier: MPL-2.0

//! Carries pools of frames to other hosts.

#![warn(missing_docs)]
// Nothing here panics on data from another host.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

pub mod keys;
pub mod link;
pub mod window;
pub mod wire;

/// An error, in words for the person at the terminal.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
