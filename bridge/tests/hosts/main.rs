// SPDX-License-Identifier: MPL-2.0

//! Tests with real bridge processes. Each host is a runtime directory.

mod cable;
mod certificates;
#[cfg(feature = "cuda")]
mod device;
mod far;
mod faults;
mod frames;
mod hostile;
mod many;
mod network;
mod parts;
mod refused;
mod router;
mod support;
mod times;
