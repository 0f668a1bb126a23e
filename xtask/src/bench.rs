// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask bench`: compare xmem with other ways to share frames between processes.

use crate::compat::Debian;
use crate::packages::{self, Purpose};
use crate::step::{self, SEE_ABOVE, Step};
use crate::{Result, cargo, root, target_dir};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the benchmark with the newer GStreamer of Debian 13, which has unixfdsink (needs root and 1.2 GB)
    #[arg(long)]
    compat: bool,
    /// Arguments for xmem-bench; `-- --help` lists them
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result {
    packages::ensure(&[packages::BENCH_NEEDS])?;
    let program = target_dir().join("release/xmem-bench");
    let mut build = cargo();
    build.args(["build", "--release", "--locked", "--package", "xmem-bench"]);
    build.args(["--features", "iceoryx2"]);
    let mut measure = if args.compat {
        let debian = Debian::ensure(Purpose::Bench)?;
        let target = target_dir();
        debian.inside_with("ro", &[&root(), &target], &[&program.to_string_lossy()])
    } else {
        std::process::Command::new(program)
    };
    measure.args(&args.rest);
    step::run_all(vec![
        Step::new("build", build, SEE_ABOVE),
        Step::new("measure", measure, SEE_ABOVE),
    ])
}
