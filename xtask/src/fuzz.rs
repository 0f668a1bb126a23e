// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask fuzz`: what reads the bytes of other processes, with bytes that a fuzzer guided by coverage makes up.

use std::process::Command;

use crate::step::{self, Step};
use crate::{Result, cargo, root};

/// One per kind of bytes, in `crates/xmem-core/fuzz/fuzz_targets`.
const TARGETS: [&str; 5] = ["messages", "entry", "sticky", "stats", "control"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to try each kind of bytes
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Only this kind
    #[arg(long, value_parser = TARGETS)]
    target: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    let installed = cargo().args(["fuzz", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        return Err("cargo-fuzz is not installed: run `cargo install cargo-fuzz --locked`".into());
    }
    let wanted = |target: &&&str| args.target.as_deref().is_none_or(|only| only == **target);
    let steps = TARGETS.iter().filter(wanted).map(|target| {
        let mut command: Command = cargo();
        command
            .current_dir(root().join("crates/xmem-core"))
            // The fuzzer's flags are not stable yet.
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={}", args.seconds))
            .args(["-max_len=4096", "-print_final_stats=1"]);
        Step {
            name: target,
            command,
            advice: "the bytes that did it are in crates/xmem-core/fuzz/artifacts",
        }
    });
    step::run_all(steps.collect())
}
