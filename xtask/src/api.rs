// SPDX-License-Identifier: MPL-2.0

//! The public names of xmem-core. A program of its own compares them, because most runs do not need its dependencies.

use std::process::Command;

use crate::check::cargo::with;
use crate::step::{Step, run_all};
use crate::{Result, cargo, target_dir};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the list anew
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result {
    let mut step = step();
    if args.write {
        step.command.args(["--", "--write"]);
    }
    run_all(vec![step])
}

pub(crate) fn step() -> Step {
    let program = ["--package", "xtask", "--bin", "api", "--features", "api"];
    let mut command: Command = with(with(cargo(), &["run", "--locked"]), &program);
    command.arg("--target-dir").arg(target_dir().join("api"));
    Step {
        name: "public names of xmem-core",
        command,
        advice: "if the change is meant, run `cargo xtask api --write` and commit the list",
    }
}
