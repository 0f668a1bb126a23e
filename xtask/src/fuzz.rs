// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask fuzz`: run coverage-guided fuzzing of the code that parses data from other processes.

use std::process::Command;

use crate::step::{self, Step, succeeds};
use crate::{Result, cargo, root};

/// The fuzz targets in `crates/xmem-core/fuzz/fuzz_targets`, one for each kind of data.
const TARGETS: [&str; 5] = ["messages", "entry", "sticky", "stats", "control"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time for each target
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Run only this target
    #[arg(long, value_parser = TARGETS)]
    target: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    if !succeeds(cargo().args(["fuzz", "--version"])) {
        return Err("cargo-fuzz is not installed: run `cargo install cargo-fuzz --locked`".into());
    }
    let wanted = |target: &&&str| args.target.as_deref().is_none_or(|only| only == **target);
    let steps = TARGETS.iter().filter(wanted).map(|target| {
        let mut command: Command = cargo();
        command
            .current_dir(root().join("crates/xmem-core"))
            // The compiler flags for fuzzing are unstable.
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={}", args.seconds))
            .args(["-max_len=4096", "-print_final_stats=1"]);
        Step {
            name: target,
            command,
            advice: "the input that caused the failure is in crates/xmem-core/fuzz/artifacts",
        }
    });
    step::run_all(steps.collect())
}
