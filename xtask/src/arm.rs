// SPDX-License-Identifier: MPL-2.0

//! 64-bit ARM, where C types such as `char` differ. Steps that only check code check it for this target: one check then finds the
//! mistakes for this machine, too, because hardly any code is compiled for only one of them.

use std::process::Command;

use crate::toolchain;

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Whether the standard library for this target is there, or rustup installs it.
pub(crate) fn is_available() -> bool {
    let is_installed = || toolchain::has_library(TARGET, |name| name.starts_with("libstd-"));
    if is_installed() {
        return true;
    }
    println!("$ rustup target add {TARGET}");
    let mut rustup = Command::new("rustup");
    let added = rustup.args(["target", "add", TARGET]).status();
    added.is_ok_and(|status| status.success()) && is_installed()
}

/// Selects the target in a command of cargo that does not link, so that the host's GStreamer is sufficient.
pub(crate) fn select(command: &mut Command) {
    command.args(["--target", TARGET]);
    command.env("PKG_CONFIG_ALLOW_CROSS", "1");
}
