// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask faults`: inject random faults into the processes of a pool, and count the effects on the other processes.

use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, cargo, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of faults
    #[arg(long, default_value_t = 1000)]
    faults: u64,
    /// Seed of the schedule; the same seed gives the same schedule [default: random; the program prints it]
    #[arg(long)]
    seed: Option<u64>,
    /// Fail if a live process waits longer than this for another process
    #[arg(long)]
    limit_ms: Option<u64>,
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
    let command = &mut run.command;
    command.args(["--", "--faults", &args.faults.to_string()]);
    let options = [("--seed", args.seed), ("--limit-ms", args.limit_ms)];
    for (name, value) in options {
        command.args(
            value
                .iter()
                .flat_map(|value| [name.to_owned(), value.to_string()]),
        );
    }
    step::run_all(vec![step("build", "build"), run])
}
