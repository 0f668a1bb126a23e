// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask dist`: the packages of a release, in `target/dist/packages`.

mod build;
mod check;
mod crates;
mod deb;
mod parts;
mod release;
mod source;
mod wheel;

use std::path::PathBuf;

use release::Release;

use crate::{Result, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also make a package of xmem-bridge, whose dependencies take minutes to build
    #[arg(long, value_enum, value_name = "PROGRAM")]
    with: Option<Extra>,
    /// Make only these, beside what is there
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    only: Vec<Kind>,
    /// Package what the last run has built, without building it again
    #[arg(long)]
    reuse: bool,
    /// Make nothing: install what was made in fresh Debians, use it there and remove it
    #[arg(long, conflicts_with_all = ["with", "only", "reuse"])]
    check: bool,
    /// The releases of Debian for --check
    #[arg(long, value_delimiter = ',', default_values = ["bookworm", "trixie"], requires = "check")]
    suite: Vec<String>,
    /// Packages of an earlier release, which --check upgrades; without them, packages with an older version are made
    #[arg(long, requires = "check", value_name = "FOLDER")]
    old: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Extra {
    Bridge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// Packages for Debian, and the list of licences
    Deb,
    /// The wheel, for which the packages for Debian must have been made
    Wheel,
    /// The sources with those of all crates
    Source,
    /// The crates that are published
    Crates,
}

pub(crate) fn run(args: &Args) -> Result {
    let release = Release::of_sources(args.with.is_some())?;
    if args.check {
        source::check(&release)?;
        wheel::check(&release)?;
        for suite in &args.suite {
            check::run(&release, suite, args.old.as_deref())?;
        }
        return Ok(());
    }
    packages::ensure(&[packages::DIST_NEEDS])?;
    if args.only.is_empty() {
        release.empty("packages")?;
    } else {
        std::fs::create_dir_all(release.packages())?;
    }
    let makes = |kind| args.only.is_empty() || args.only.contains(&kind);
    if makes(Kind::Deb) {
        if !args.reuse {
            build::all(&release)?;
        }
        let parts = parts::all(&release)?;
        parts::write(&release, &parts)?;
        deb::build(&release, &build::tree(&release)?, &parts)?;
    }
    if makes(Kind::Wheel) {
        wheel::build(&release)?;
    }
    if makes(Kind::Source) {
        source::build(&release)?;
    }
    if makes(Kind::Crates) {
        crates::build(&release)?;
    }
    release.write_sums()?;
    println!("\nxtask dist: {}", release.packages().display());
    Ok(())
}
