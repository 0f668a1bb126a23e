// SPDX-License-Identifier: MPL-2.0

//! Experiments on a machine with a GPU: questions that the driver's documentation leaves open, measurements, and a C interface for
//! Python programs that read frames. `gpu/run` uses it. It is not shipped.

pub mod frames;
pub mod numbers;
pub mod questions;
mod system;

/// The processes of the stand-in's tests, with the same calls.
#[path = "../../xmem-cuda-standin/tests/behaviour/remote.rs"]
#[allow(dead_code)]
mod remote;

/// Prints one result.
fn report(part: &str, what: &str, result: impl std::fmt::Display) {
    let line = serde_json::json!({ "part": part, "what": what, "result": result.to_string() });
    println!("{line}");
}

/// Executes driver calls if this process was started as a child for them. Returns whether it was.
pub fn is_remote() -> bool {
    remote::serve()
}
