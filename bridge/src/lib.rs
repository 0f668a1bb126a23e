// SPDX-License-Identifier: MPL-2.0

//! Carries pools of frames to other hosts: `docs/two-hosts.md` in the repository is for users, `docs/design/bridge.md` has the
//! rules and their reasons.
//!
//! From the bottom up: [`wire`] (the messages), [`window`] (how much may be under way), [`link`] (Zenoh), then the two sides.
//! Tests use these as a hostile host would.

#![warn(missing_docs)]
// Nothing here panics on data from another host.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

pub mod keys;
pub mod link;
pub mod window;
pub mod wire;

mod cli;
mod clock;
mod export;
mod import;
mod list;
mod report;
mod signals;

use std::process::ExitCode;

use clap::Parser;

/// In the sticky state of an imported pool: the pool and host that it comes from. Such a pool is not exported again, since it
/// might end where it began.
pub const MARK: &str = "xmem-bridge";

/// An error, in words for the person at the terminal.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The program. Wrong usage ends here, with exit code 2.
pub fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    if cli.verbose {
        report::log_to_standard_error();
    }
    let result = match cli.command {
        cli::Command::Export(export) => export::run(&export),
        cli::Command::Import(import) => import::run(&import),
        cli::Command::List(list) => list::run(&list),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::line(error);
            ExitCode::FAILURE
        }
    }
}
