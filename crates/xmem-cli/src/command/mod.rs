// SPDX-License-Identifier: MPL-2.0

//! One file per command.

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
        Command::Watch { pool, count } => watch::run(pool, *count, cli.format, out),
    }
}
