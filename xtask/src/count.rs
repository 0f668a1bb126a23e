// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask count`: count instructions, cache lines, locks and more for one frame. Nothing is timed.

use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, cargo, packages, root, target_dir};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Arguments for xmem-count: `--check` compares with the limits in ceilings.txt, `--set` writes them, `--case NAME` selects
    /// cases
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[packages::VALGRIND_NEEDS])?;
    // Build each package by itself. Packages that are built together share features, and the plugin would not be the one that is
    // shipped.
    let build = |package| {
        let mut command = cargo();
        command.args(["build", "--release", "--locked", "--package", package]);
        Step::new("build", command, SEE_ABOVE)
    };
    let release = target_dir().join("release");
    let mut count = std::process::Command::new(release.join("xmem-count"));
    count.arg("count").arg(release.join("libgstxmem.so"));
    count.arg(release.join("libxmem.so"));
    count.arg(root().join("tools/xmem-count/ceilings.txt"));
    count.args(&args.rest);
    let builds = ["gstxmem-cdylib", "xmem-capi", "xmem-count"].map(build);
    let count = Step::new("count", count, SEE_ABOVE);
    step::run_all(builds.into_iter().chain([count]).collect())
}
