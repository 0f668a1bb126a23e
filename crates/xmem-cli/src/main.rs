// SPDX-License-Identifier: MPL-2.0

//! The command `xmem`: lists, inspects and creates the frame pools of this host.

mod caps;
mod child;
mod cli;
mod command;
mod format;
mod http;
mod launch;
mod play;
mod pools;
mod supervisor;
mod tool;
mod verbose;

use std::io;
use std::process::ExitCode;

use clap::Parser;

/// The error text is printed on the terminal.
type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    if let Some(result) = child::become_tool() {
        return result.unwrap_or_else(|error| {
            format::to_stderr(error);
            ExitCode::FAILURE
        });
    }
    // pthread_sigmask fails only for an invalid argument.
    let _ = supervisor::unblock();
    // On wrong usage this exits with code 2.
    let cli = cli::Cli::parse();
    if cli.verbose {
        verbose::init();
    }
    match command::run(&cli, &mut io::stdout()) {
        Ok(code) => code,
        // The reader closed standard output, as in `xmem list | head -1`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            format::to_stderr(error);
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
