// SPDX-License-Identifier: MPL-2.0

//! Bridges in processes of their own between pools in two runtime directories.

mod cable;
mod certificates;
#[cfg(feature = "cuda")]
mod device;
mod faults;
mod frames;
mod hostile;
mod many;
mod network;
mod refused;
mod router;
mod support;
