// SPDX-License-Identifier: MPL-2.0

//! Carries pools of frames to other hosts. In the repository, `docs/two-hosts.md` is the manual, and `docs/design/bridge.md`
//! explains the design.
//!
//! The layers, from the bottom up: [`wire`] (the messages), [`window`] (flow control), [`link`] (Zenoh), then the exporter and the
//! importer. The modules are public for tests that imitate a hostile host.

#![warn(missing_docs)]
// Data from another host must not cause a panic.
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
pub mod tai;
pub mod window;
pub mod wire;

mod cli;
mod clock;
mod export;
mod import;
mod list;
mod report;
mod signals;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::Parser;
use rustix::process::{Resource, getrlimit};

/// The key in the sticky state of an imported pool. Its value is the exported pool and its host.
///
/// The exporter refuses a pool with this key, because the frames could return to the host that they came from.
pub const MARK: &str = "xmem-bridge";

/// The number of files that a process of the bridge needs.
const MIN_FILES: u64 = 64;

/// An error whose text is printed for the user.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Locks a mutex, also if a thread panicked while it held the lock: what it guards is always valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that no other process has.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Runs the program. Invalid options end the process with exit code 2.
pub fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    if cli.verbose {
        report::log_to_standard_error();
    }
    let result = enough_files().and_then(|()| match cli.command {
        cli::Command::Export(export) => export::run(&export),
        cli::Command::Import(import) => import::run(&import),
        cli::Command::List(list) => list::run(&list),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::line(error);
            ExitCode::FAILURE
        }
    }
}

/// Zenoh panics if it cannot open a file.
fn enough_files() -> Result<(), Error> {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < MIN_FILES => Err(format!(
            "this process may open {limit} files: raise the limit to {MIN_FILES} or more (`ulimit -n`)"
        )
        .into()),
        _ => Ok(()),
    }
}
