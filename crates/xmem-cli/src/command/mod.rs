// SPDX-License-Identifier: MPL-2.0

//! One file per command.

mod clean;
mod list;
mod show;
mod watch;

use std::io::Write;

use crate::Error;
use crate::cli::{Cli, Command};

pub(crate) fn run(cli: &Cli, out: &mut impl Write) -> Result<(), Error> {
    match &cli.command {
        Command::List => list::run(cli.format, out),
        Command::Show { pool } => show::run(pool, cli.format, out),
        Command::Watch {
            pool,
            interval,
            count,
        } => watch::run(pool, *interval, *count, cli.format, out),
        Command::Clean { pools } => clean::run(pools, cli.format, out),
    }
}
