// SPDX-License-Identifier: MPL-2.0

//! Every interleaving of the slot protocol, and of what the memory model allows, explored by loom.
//!
//! `RUSTFLAGS="--cfg xmem_loom" cargo test -p xmem-core --release --test loom`
//!
//! The models whose names begin with `wrong_` are protocols that look right and are not. They show that the others
//! would fail if the code did.
#![cfg(xmem_loom)]

mod hold;
mod pages;
mod places;
mod regions;
mod release;
mod ring;
mod slot;
mod wake;

use loom::model::Builder;

/// All interleavings with at most this many preemptions; `None`: simply all.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}
