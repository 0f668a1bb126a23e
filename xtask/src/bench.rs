// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask bench`

use crate::{Result, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result {
    packages::ensure_for_bench()
}
