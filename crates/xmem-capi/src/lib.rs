// SPDX-License-Identifier: MPL-2.0

//! libxmem: the functions of `include/xmem.h`, which describes them.
//!
//! A handle is a number, so a wrong or an old one is an error and never an invalid pointer (`entries`). Nothing unwinds into C: each
//! function runs inside of `call`, which also refuses a forked child.
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
// xmem.h states what the caller has to ensure.
#![allow(clippy::missing_safety_doc)]

mod border;
mod buffers;
mod consumer;
mod device;
mod dlpack;
mod dmabuf;
mod entries;
mod error;
mod frame;
mod handles;
mod planes;
mod producer;
mod slot;
