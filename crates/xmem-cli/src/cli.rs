// SPDX-License-Identifier: MPL-2.0

//! What can be typed.

use clap::{Parser, Subcommand, ValueEnum};

/// Who sees no pools may be looking in another place than the producer.
const WHERE: &str =
    "The runtime directory is $XMEM_RUNTIME_DIR, else $XDG_RUNTIME_DIR/xmem, else /tmp/xmem-<uid>.";

#[derive(Debug, Parser)]
#[command(name = "xmem", version, about, after_help = WHERE, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// How to print
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub(crate) format: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the pools of the runtime directory
    List,
    /// Show a pool and its consumers
    Show {
        /// The pool's name, or the path of its socket
        pool: String,
    },
    /// Show a pool again every second; as JSON, one line each time
    Watch {
        /// The pool's name, or the path of its socket
        pool: String,
        /// Stop after this many times
        #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
}
