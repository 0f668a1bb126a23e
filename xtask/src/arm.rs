// SPDX-License-Identifier: MPL-2.0

//! Checks that the workspace compiles for 64-bit ARM, where C types such as `char` differ. Runs on any machine.

use std::process::Command;

use crate::step::Step;
use crate::{cargo, toolchain};

const NAME: &str = "64-bit ARM";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Needs the standard library for this target, which rustup installs.
pub(crate) fn check() -> Result<Step, (&'static str, String)> {
    if !toolchain::has_library(TARGET, |name| name.starts_with("libstd-")) {
        let mut rustup = Command::new("rustup");
        println!("$ rustup target add {TARGET}");
        let added = rustup.args(["target", "add", TARGET]).status();
        if !added.is_ok_and(|status| status.success()) {
            return Err((
                NAME,
                format!(
                    "this Rust has no standard library for {TARGET}, and rustup cannot install it"
                ),
            ));
        }
    }
    let mut command = cargo();
    command.args(["check", "--workspace", "--all-targets", "--locked"]);
    command.args(["--target", TARGET]);
    // `cargo check` does not link, so the host's GStreamer is sufficient.
    command.env("PKG_CONFIG_ALLOW_CROSS", "1");
    Ok(Step {
        name: NAME,
        command,
        advice: "the code compiles for this machine but not for 64-bit ARM: check the uses of the C types char and long",
    })
}
