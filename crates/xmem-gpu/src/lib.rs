// SPDX-License-Identifier: MPL-2.0

//! Experiments on a machine with a GPU: questions that the driver's documentation leaves open, numbers, and
//! a small C interface by which Python programs there read frames. `gpu/run` uses it; nothing of it is shipped.

pub mod frames;
pub mod numbers;
pub mod questions;
mod system;

/// The processes of the stand-in's tests, with the same calls.
#[path = "../../xmem-cuda-standin/tests/behaviour/remote.rs"]
#[allow(dead_code)]
mod remote;

/// One line of the record.
fn report(part: &str, what: &str, result: impl std::fmt::Display) {
    let line = serde_json::json!({ "part": part, "what": what, "result": result.to_string() });
    println!("{line}");
}

/// A child that was started to do driver calls: does them. Whether this process is one.
pub fn is_remote() -> bool {
    remote::serve()
}
