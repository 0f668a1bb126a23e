// SPDX-License-Identifier: MPL-2.0

//! That everything compiles for 64-bit ARM, whose C has other types, on whatever machine this is.

use std::process::Command;

use crate::step::Step;
use crate::{cargo, toolchain};

const NAME: &str = "64-bit ARM";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Needs the standard library for that, which rustup gets.
pub(crate) fn check() -> Result<Step, (&'static str, String)> {
    if !toolchain::has_library(TARGET, |name| name.starts_with("libstd-")) {
        let mut rustup = Command::new("rustup");
        println!("$ rustup target add {TARGET}");
        let added = rustup.args(["target", "add", TARGET]).status();
        if !added.is_ok_and(|status| status.success()) {
            return Err((
                NAME,
                format!("this Rust has no standard library for {TARGET}, and rustup gets none"),
            ));
        }
    }
    let mut command = cargo();
    command.args(["check", "--workspace", "--all-targets", "--locked"]);
    command.args(["--target", TARGET]);
    // Nothing is linked, so GStreamer as it is here will do.
    command.env("PKG_CONFIG_ALLOW_CROSS", "1");
    Ok(Step {
        name: NAME,
        command,
        advice: "it compiles here, and does not there: look for C's char and long",
    })
}
