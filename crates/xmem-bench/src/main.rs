// SPDX-License-Identifier: MPL-2.0

//! Compares xmem with other ways to pass frames to other processes. `docs/benchmarks.md` describes the method.
//!
//! The program starts itself once for each side of a transport, so that both are processes of their own.

mod bare;
mod elements;
mod figures;
mod floor;
mod frames;
mod group;
mod memory;
mod orders;
mod pace;
mod process;
mod report;
mod room;
mod rounds;
mod scenario;
mod source;
mod stamp;
mod statistics;
mod stopped;
mod syscalls;
mod table;
mod transport;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::frames::Frames;
use self::transport::Transport;

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

/// The role of the program when it starts itself.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    /// Sends frames
    Producer(Place),
    /// Receives them
    Consumer(Place),
    /// Both in one process, without a transport
    Alone(Place),
    /// Writes the time into the eventfd on its standard input
    Waker { count: u32 },
    /// Reads it out of the eventfd on its standard input
    Sleeper { count: u32 },
}

#[derive(Debug, Clone, clap::Args)]
struct Place {
    transport: Transport,
    frames: Frames,
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
        Some(Role::Producer(place)) if place.transport.is_bare() => bare::producer(&place, cli.fps),
        Some(Role::Consumer(place)) if place.transport.is_bare() => bare::consumer(&place),
        Some(Role::Producer(place)) => elements::producer(&place, cli.fps),
        Some(Role::Consumer(place)) => elements::consumer(&place),
        Some(Role::Alone(place)) => elements::alone(&place, cli.fps),
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
