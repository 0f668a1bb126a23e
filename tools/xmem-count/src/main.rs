// SPDX-License-Identifier: MPL-2.0

//! Counts the cost of one frame. `docs/measurements/benchmarks.md` describes the figures and the method.
//!
//! The program starts itself under Valgrind for each side of a transport, and reads both traces.

mod ceilings;
mod code;
mod core;
mod direct;
mod figures;
mod functions;
mod mark;
mod plan;
mod side;
mod trace;
mod traced;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about)]
enum Role {
    /// Count and print the figures
    Count(Plan),
    /// Push a frame for each line of standard input (runs under Valgrind)
    #[command(hide = true)]
    Producer(side::Args),
    /// Receive frames from the first line of standard input to its end (runs under Valgrind)
    #[command(hide = true)]
    Consumer(side::Args),
    /// Both, without GStreamer (run under Valgrind)
    #[command(hide = true)]
    Publish(direct::Args),
    #[command(hide = true)]
    Read(direct::Args),
    /// Both in one process, by xmem-core (runs under Valgrind)
    #[command(hide = true)]
    Pass(core::Args),
}

#[derive(Debug, clap::Args)]
struct Plan {
    /// The plugin's library
    plugin: PathBuf,
    /// The library for C
    libxmem: PathBuf,
    /// The file with the ceilings
    ceilings: PathBuf,
    /// Count only the cases whose names contain this text
    #[arg(long, default_value = "")]
    case: String,
    /// Print the functions that a frame passes through, in the order of their first instruction
    #[arg(long)]
    functions: bool,
    /// Fail if a figure is above its ceiling
    #[arg(long)]
    check: bool,
    /// Write the figures of this run as the ceilings
    #[arg(long, conflicts_with_all = ["check", "case"])]
    set: bool,
}

fn main() -> ExitCode {
    let result = match Role::parse() {
        Role::Count(plan) => count(&plan),
        Role::Producer(args) => side::producer(&args),
        Role::Consumer(args) => side::consumer(&args),
        Role::Publish(args) => direct::publish(&args),
        Role::Read(args) => direct::read(&args),
        Role::Pass(args) => core::pass(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xmem-count: {error}");
            ExitCode::FAILURE
        }
    }
}

fn count(plan: &Plan) -> Result<(), Error> {
    let rows = plan::run(
        &plan.plugin.canonicalize()?,
        &plan.libxmem.canonicalize()?,
        &plan.case,
        plan.functions,
    )?;
    figures::print(&rows);
    if plan.check {
        ceilings::check(&plan.ceilings, &rows)?;
    }
    if plan.set {
        ceilings::write(&plan.ceilings, &rows)?;
    }
    Ok(())
}
