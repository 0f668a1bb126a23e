// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask soak`: run four pools with sixteen consumers for a long time, and check that memory, descriptors and mappings do
//! not grow.

use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, cargo, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Duration
    #[arg(long, default_value_t = 20)]
    minutes: u64,
    /// Seed of the schedule; the same seed gives the same schedule [default: random; the program prints it]
    #[arg(long)]
    seed: Option<u64>,
    /// Write a sample every 10 seconds to this file, as comma-separated values
    #[arg(long)]
    csv: Option<std::path::PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[])?;
    let step = |name, verb, advice| {
        let mut command = cargo();
        command.args([verb, "--release", "--locked", "--package", "xmem-faults"]);
        Step::new(name, command, advice)
    };
    let build = step("build", "build", SEE_ABOVE);
    let mut soak = step(
        "soak",
        "run",
        "see the tables above: a count that must be 0 is not, or a resource grows",
    );
    let seconds = args.minutes.saturating_mul(60).to_string();
    let command = &mut soak.command;
    command.args(["--", "soak", "--seconds", &seconds]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(csv) = &args.csv {
        // cargo runs in the repository's root.
        command.arg("--csv").arg(std::path::absolute(csv)?);
    }
    step::run_all(vec![build, soak])
}
