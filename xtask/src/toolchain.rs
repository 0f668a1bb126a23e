// SPDX-License-Identifier: MPL-2.0

//! Properties of the installed Rust toolchain.

use std::process::Command;

use crate::step::output;

/// Whether the toolchain has a matching library file for a target.
pub(crate) fn has_library(target: &str, is_it: impl Fn(&str) -> bool) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", target]);
    let files = output(&mut command).and_then(|dir| Ok(std::fs::read_dir(dir.trim_end())?));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| is_it(&file.file_name().to_string_lossy()))
}
