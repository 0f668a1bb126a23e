// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask bench`: compare with shmsink/shmsrc.

use crate::step::{self, Step};
use crate::{Result, cargo, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Given on to xmem-bench; `-- --help` tells
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure_for_bench()?;
    let step = |name, verb| {
        let mut command = cargo();
        command.args([verb, "--release", "--locked", "--package", "xmem-bench"]);
        Step {
            name,
            command,
            advice: "the message above says why",
        }
    };
    let mut measure = step("measure", "run");
    measure.command.arg("--").args(&args.rest);
    step::run_all(vec![step("build", "build"), measure])
}
