// SPDX-License-Identifier: MPL-2.0

//! Tests that one process cannot harm another. The program starts a producer and consumers as separate processes, injects random
//! faults from a printed seed, and prints figures. `docs/design/testing.md` explains them.
//!
//! The program starts itself for each role.

#[cfg(not(any(feature = "fault-points", debug_assertions)))]
compile_error!("a release build needs the feature `fault-points`: `cargo xtask faults` enables it");

mod consumer;
mod frame;
mod namespace;
mod own;
mod producer;
mod rig;
mod soak;
mod tally;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(flatten)]
    plan: rig::Plan,
    #[command(subcommand)]
    role: Option<Role>,
}

/// The other command of the program, and the roles of its child processes.
#[derive(Debug, Subcommand)]
enum Role {
    /// Run for a long time without faults, and check that memory, descriptors and mappings do not grow
    Soak(soak::Plan),
    #[command(hide = true)]
    Producer(producer::Args),
    #[command(hide = true)]
    Consumer(consumer::Args),
    #[command(hide = true)]
    SoakConsumer(soak::consumer::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.role {
        None => rig::run(&cli.plan),
        Some(Role::Soak(plan)) => soak::run(plan),
        Some(Role::Producer(args)) => producer::run(args).map(|()| true),
        Some(Role::Consumer(args)) => consumer::run(args).map(|()| true),
        Some(Role::SoakConsumer(args)) => soak::consumer::run(args).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xmem-faults: {error}");
            ExitCode::FAILURE
        }
    }
}
