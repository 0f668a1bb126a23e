// SPDX-License-Identifier: MPL-2.0

//! `xmem-gpu`: prints the results of a run, one JSON object per line.

use clap::{Parser, Subcommand};
use xmem_gpu::{numbers, questions};

#[derive(Debug, Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Describe the device and the driver
    Device,
    /// Answer a question that the documentation leaves open: a to g
    Question { letter: char },
    /// Measure the transfer of a 4K NV12 frame, and other methods for comparison
    Numbers {
        /// Number of frames of each measurement
        #[arg(long, default_value_t = 500)]
        frames: u64,
    },
    /// One side of a measurement
    #[command(hide = true)]
    Role { pool: String, words: Vec<String> },
    /// Publish frames until standard input ends: all bytes of frame N are N % 255 + 1
    Produce {
        pool: String,
        /// vmm or legacy
        mode: String,
        /// Size of a frame in bytes
        size: usize,
    },
}

fn main() {
    if xmem_gpu::is_remote() {
        return;
    }
    match Cli::parse().command {
        Command::Device => questions::device(),
        Command::Question { letter } => questions::answer(letter),
        Command::Numbers { frames } => numbers::measure(frames),
        Command::Role { pool, words } => numbers::role(&pool, &words),
        Command::Produce { pool, mode, size } => numbers::produce(&pool, &mode, size),
    }
}
