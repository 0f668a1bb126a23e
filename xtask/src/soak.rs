// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask soak`: run four pools with sixteen consumers for long, and see whether anything grows.

use crate::step::{self, Step};
use crate::{Result, cargo, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long
    #[arg(long, default_value_t = 20)]
    minutes: u64,
    /// The same seed gives the same schedule; without one it is drawn, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Write what was seen every 10 seconds into this file, as comma-separated values
    #[arg(long)]
    csv: Option<std::path::PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure()?;
    let step = |name, verb, advice| {
        let mut command = cargo();
        command.args([verb, "--release", "--locked", "--package", "xmem-faults"]);
        Step {
            name,
            command,
            advice,
        }
    };
    let build = step("build", "build", "the message above says why");
    let mut soak = step(
        "soak",
        "run",
        "a figure that has to be 0 is not, or something grows: the tables above say which",
    );
    let seconds = args.minutes.saturating_mul(60).to_string();
    let command = &mut soak.command;
    command.args(["--", "soak", "--seconds", &seconds]);
    if let Some(seed) = args.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(csv) = &args.csv {
        // cargo runs elsewhere.
        command.arg("--csv").arg(std::path::absolute(csv)?);
    }
    step::run_all(vec![build, soak])
}
