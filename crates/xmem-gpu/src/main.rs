// SPDX-License-Identifier: MPL-2.0

//! `xmem-gpu`: prints the record of a run, a JSON object each line.

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
    /// The device and the driver
    Device,
    /// Questions that the documentation leaves open: a to g
    Question { letter: char },
    /// Hand-over of a 4K NV12 frame, and what it is compared with
    Numbers {
        /// Frames of each measurement
        #[arg(long, default_value_t = 500)]
        frames: u64,
    },
    /// One side of a measurement
    #[command(hide = true)]
    Role { pool: String, words: Vec<String> },
    /// Publish frames in a pool until standard input ends: all bytes of frame N are N % 255 + 1
    Produce {
        pool: String,
        /// vmm or legacy
        mode: String,
        /// Bytes of a frame
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
