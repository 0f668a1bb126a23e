// SPDX-License-Identifier: MPL-2.0

//! Compares xmem with other ways to share frames between processes. `docs/measurements/benchmarks.md` describes the method.
//!
//! The program starts itself for each side of a transport, so that both sides are separate processes.

mod commands;
mod decoder;
mod elements;
mod figures;
mod frames;
mod group;
mod memory;
mod pace;
mod pipewire;
mod process;
mod report;
mod rounds;
mod run_dir;
mod scenario;
mod source;
mod stamp;
mod start;
mod statistics;
mod stopped;
mod syscalls;
mod table;
mod transport;
mod wakeup;
mod without_gstreamer;

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

/// The role of a child process.
#[derive(Debug, Subcommand)]
#[command(hide = true)]
enum Role {
    /// Sends frames
    Producer(Endpoint),
    /// Receives frames
    Consumer(Endpoint),
    /// Sends and receives in one process, without a transport
    Alone(Endpoint),
    /// Writes the time to the eventfd on its standard input
    Waker { count: u32 },
    /// Reads the time from the eventfd on its standard input
    Sleeper { count: u32 },
}

#[derive(Debug, Clone, clap::Args)]
struct Endpoint {
    transport: Transport,
    frames: Frames,
    /// The socket of the transport
    socket: String,
    /// Write or read a byte of each page
    #[arg(long)]
    touch: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.role {
        None => rounds::run(&cli.plan, cli.fps),
        Some(Role::Producer(endpoint)) if endpoint.transport.is_without_gstreamer() => {
            without_gstreamer::producer(&endpoint, cli.fps)
        }
        Some(Role::Consumer(endpoint)) if endpoint.transport.is_without_gstreamer() => {
            without_gstreamer::consumer(&endpoint)
        }
        Some(Role::Producer(endpoint)) => elements::producer(&endpoint, cli.fps),
        Some(Role::Consumer(endpoint)) => elements::consumer(&endpoint),
        Some(Role::Alone(endpoint)) => elements::alone(&endpoint, cli.fps),
        Some(Role::Waker { count }) => wakeup::waker(count, cli.fps),
        Some(Role::Sleeper { count }) => wakeup::sleeper(count),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
