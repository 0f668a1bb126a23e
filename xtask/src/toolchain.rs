// SPDX-License-Identifier: MPL-2.0

//! Properties of the installed Rust toolchain.

use std::path::PathBuf;
use std::process::Command;

/// Whether the toolchain has a matching library file for a target.
pub(crate) fn has_library(target: &str, is_it: impl Fn(&str) -> bool) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output();
    let dir = output.ok().and_then(|output| {
        let dir = String::from_utf8(output.stdout).ok()?;
        Some(PathBuf::from(dir.trim_end()))
    });
    let files = dir.and_then(|dir| std::fs::read_dir(dir).ok());
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| is_it(&file.file_name().to_string_lossy()))
}
