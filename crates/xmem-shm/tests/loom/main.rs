// SPDX-License-Identifier: MPL-2.0

//! Loom explores all interleavings of the slot protocol that the memory model allows.
//!
//! `RUSTFLAGS="--cfg xmem_loom" cargo test -p xmem-shm --release --test loom`
//!
//! The models whose names begin with `wrong_` have defects that are hard to see. They show that the other models would fail with
//! such a defect.
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
use loom::thread::{self, JoinHandle};

/// Explores all interleavings with at most this number of preemptions. `None`: without a limit.
fn check(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

/// A thread with its own references to what it shares with others.
fn spawn<S: 'static, T: 'static>(shared: S, work: impl FnOnce(S) -> T + 'static) -> JoinHandle<T> {
    thread::spawn(move || work(shared))
}
