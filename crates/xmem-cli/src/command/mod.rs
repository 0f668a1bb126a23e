// SPDX-License-Identifier: MPL-2.0

//! One file per command.

mod buffers;
mod camera;
mod clean;
mod doctor;
mod list;
mod manual;
mod metrics;
pub(crate) mod plugin;
mod record;
mod remote;
mod serve;
mod share;
mod show;
mod snapshot;
mod tap;
mod top;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use crate::Error;
use crate::cli::{Cli, Command};

pub(crate) fn run(cli: &Cli, out: &mut impl Write) -> Result<ExitCode, Error> {
    match &cli.command {
        Command::List { output, remote } => match &remote.host {
            Some(host) => remote::run(host, remote, output.format, out)?,
            None => list::run(output.format, out)?,
        },
        Command::Show { pool, output } => show::run(pool, cli.verbose, output.format, out)?,
        Command::Watch(watch) => watch::run(watch, out)?,
        Command::Snapshot(snapshot) => snapshot::run(snapshot, out)?,
        Command::Tap { pool, raw } => return tap::run(pool, *raw),
        Command::Top(top) => top::run(top, out)?,
        Command::Metrics { listen } => metrics::run(*listen)?,
        Command::Record(record) => return record::run(record),
        Command::Serve { listen } => serve::run(*listen)?,
        Command::Share(share) => share::run(share, cli.verbose)?,
        Command::Doctor { output } => return doctor::run(output.format, out),
        Command::Camera(camera) => camera::run(camera, cli.verbose)?,
        Command::Clean { pools, output } => clean::run(pools, output.format, out)?,
        Command::Plugin { action } => plugin::run(action, out)?,
        Command::Completions { shell } => manual::completions(*shell, out)?,
        Command::Man { directory } => manual::pages(directory)?,
    }
    Ok(ExitCode::SUCCESS)
}
