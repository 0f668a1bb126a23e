// SPDX-License-Identifier: MPL-2.0

//! The project's own commands. Each installs the system packages that it needs, where it can.

mod apt;
mod arm;
mod bench;
mod compat;
mod count;
mod demo;
mod faults;
mod fuzz;
mod gpu_bundle;
mod package;
mod packages;
mod python;
mod sanitize;
mod soak;
mod step;
mod test;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An error, in words for the person at the terminal.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check everything that has to hold before a change lands
    Test(test::Args),
    /// Show the whole thing at work: decode once, share with three processes, survive kills
    Demo(demo::Args),
    /// Compare xmem with what else hands frames to other processes, side by side in one run
    Bench(bench::Args),
    /// Count what one frame costs: instructions, cache lines, locks, allocations, system calls
    Count(count::Args),
    /// Kill, stop, starve and fork the processes of a pool, and count what that does to the others
    Faults(faults::Args),
    /// Run four pools with sixteen consumers for long, and see whether anything grows
    Soak(soak::Args),
    /// Feed what reads other processes' bytes with whatever a fuzzer finds
    Fuzz(fuzz::Args),
    /// Run tests once more with AddressSanitizer and with Valgrind
    Sanitize(sanitize::Args),
    /// Build the Python module into an environment of its own, and test it there
    Python(python::Args),
    /// Install the plugin with cargo-c and with Meson, each somewhere else, and look whether it works there
    Package,
    /// Pack what gpu/run runs on a machine that has a GPU, and no Rust
    GpuBundle,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Count(args) => count::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Sanitize(args) => sanitize::run(&args),
        Command::Python(args) => python::run(&args),
        Command::Package => package::run(),
        Command::GpuBundle => gpu_bundle::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The table of the tests is what stands last.
        Err(error) if error.is::<test::Failed>() => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\nxtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map(Path::to_owned).unwrap_or(here)
}

/// The cargo that runs us.
fn cargo() -> std::process::Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.current_dir(root());
    command
}

/// Where cargo puts what it builds.
fn target_dir() -> PathBuf {
    // Joining an absolute path replaces the root, which is what cargo does too.
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}
