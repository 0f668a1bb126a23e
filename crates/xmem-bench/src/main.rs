// SPDX-License-Identifier: MPL-2.0

//! Compares xmemsink/xmemsrc with shmsink/shmsrc. `docs/benchmarks.md` says what is measured and how.
//!
//! The program starts itself once for each side of a transport, so that both are processes of their own.

mod figures;
mod floor;
mod report;
mod rounds;
mod scenario;
mod side;
mod source;
mod syscalls;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::scenario::{Scenario, Transport};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(flatten)]
    plan: rounds::Plan,
    /// Frames per second
    #[arg(long, global = true, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    fps: u32,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What the program is when it starts itself.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    /// source ! sink
    Producer(Place),
    /// src ! appsink
    Consumer(Place),
    /// source ! appsink, in one process
    Alone(Place),
    /// Writes the time into the eventfd on its standard input
    Waker { count: u32 },
    /// Reads it out of the eventfd on its standard input
    Sleeper { count: u32 },
}

#[derive(Debug, Clone, clap::Args)]
struct Place {
    transport: Transport,
    scenario: Scenario,
    /// The socket where both sides meet
    socket: String,
    /// Write or read a byte of each page
    #[arg(long)]
    touch: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.role {
        None => rounds::run(&cli.plan, cli.fps),
        Some(Role::Producer(place)) => side::producer(&place, cli.fps),
        Some(Role::Consumer(place)) => side::consumer(&place),
        Some(Role::Alone(place)) => side::alone(&place, cli.fps),
        Some(Role::Waker { count }) => floor::waker(count, cli.fps),
        Some(Role::Sleeper { count }) => floor::sleeper(count),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
