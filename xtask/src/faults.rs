// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask faults`: inject random faults into the processes of a pool, and count the effects on the other processes.

use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, cargo, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Arguments for xmem-faults: `--faults 5000`, `--seed 7`, `--limit-ms 100`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[])?;
    let step = |name, verb| {
        let mut command = cargo();
        command.args([verb, "--release", "--locked", "--package", "xmem-faults"]);
        command.args(["--features", "fault-points"]);
        Step::new(name, command, SEE_ABOVE)
    };
    let mut run = step("faults", "run");
    run.command.arg("--").args(&args.rest);
    step::run_all(vec![step("build", "build"), run])
}
