// SPDX-License-Identifier: MPL-2.0

//! `cargo xtask demo`

use crate::Result;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result {
    Ok(())
}
