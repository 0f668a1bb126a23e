// SPDX-License-Identifier: MPL-2.0

//! Tests that a process cannot harm another one: a producer and consumers in processes of their own, a random schedule of
//! faults from a printed seed, and figures at the end. `docs/reliability.md` explains them.
//!
//! The program starts itself once for each role.

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

/// The other commands of the program, and its roles when it starts itself.
#[derive(Debug, Subcommand)]
enum Role {
    /// Run for long without faults, and check whether anything grows
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
