// SPDX-License-Identifier: MPL-2.0

//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// For a list without pools: the producer may use another directory.
const WHERE: &str =
    "The runtime directory is $XMEM_RUNTIME_DIR, else $XDG_RUNTIME_DIR/xmem, else /tmp/xmem-<uid>.";

/// Shorter ones are a busy loop for both sides.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(86_400));

#[derive(Debug, Parser)]
#[command(name = "xmem", version, about, after_help = WHERE, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Print more of a pool, and log messages on standard error
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
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

#[derive(Debug, Args)]
pub(crate) struct Output {
    /// How to print
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) format: Format,
}

#[derive(Debug, Args)]
pub(crate) struct Share {
    /// `test`, a camera such as /dev/video0, an address such as rtsp://host/path, a file, or a pipeline of GStreamer
    /// with ` ! ` in it
    pub(crate) source: OsString,
    /// The pool's name, or the path of its socket
    #[arg(long)]
    pub(crate) pool: OsString,
    /// The video format of the frames, such as NV12, I420, RGB or RGBA. `any`: frames as they come from the source
    #[arg(long, value_name = "FORMAT", default_value = "NV12")]
    pub(crate) format: String,
    /// Play a file again and again
    #[arg(long = "loop")]
    pub(crate) repeat: bool,
    /// Open the source with the first consumer, and close it a few seconds after the last one has left
    #[arg(long)]
    pub(crate) on_demand: bool,
    /// Restart a source that gives no frame for this time
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = interval)]
    pub(crate) timeout: Duration,
    /// Set a property of xmemsink, such as socket-mode=0660; may be repeated
    #[arg(long, value_name = "PROPERTY=VALUE", value_parser = property)]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the pools of the runtime directory
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show a pool and its consumers
    Show {
        /// The pool's name, or the path of its socket
        pool: OsString,
        #[command(flatten)]
        output: Output,
    },
    /// Show a pool again and again; waits while it has no producer. As JSON, one line each time
    Watch {
        /// The pool's name, or the path of its socket
        pool: OsString,
        /// From one time to the next, such as 0.5; from 0.01 to 86400
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
        interval: Duration,
        /// Stop when it was shown this many times
        #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Show all pools on the full screen. Keys: q, arrows, enter (one pool), s (sort), space (freeze)
    Top {
        /// From one time to the next, such as 0.5; from 0.01 to 86400
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
        interval: Duration,
        /// Print the pools once, and end
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Write a picture of a pool to a file
    Snapshot {
        /// The pool's name, or the path of its socket
        pool: OsString,
        /// Its kind is that of its name: .png, .jpg, .npy (RGB, for NumPy) or .raw (the frame as it is in the pool)
        file: PathBuf,
        /// Take the newest frame that there is, not the next one
        #[arg(long)]
        newest: bool,
        /// How long to wait for a frame
        #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = interval)]
        timeout: Duration,
    },
    /// Write the frames of a pool to standard output as Y4M, such as for `ffplay -`; frames are skipped while the reader is slow
    Tap {
        /// The pool's name, or the path of its socket
        pool: OsString,
        /// The bytes of each frame as they are in the pool, without anything between them
        #[arg(long)]
        raw: bool,
    },
    /// Write the frames of a pool to a Matroska file, without loss, until SIGINT; `xmem replay` plays it
    Record {
        /// The pool's name, or the path of its socket
        pool: OsString,
        /// A new file whose name ends in .mkv
        file: PathBuf,
        /// Encode frames as H.264, which takes less room and loses details
        #[arg(long)]
        h264: bool,
    },
    /// Decode a camera, a stream or a file into a pool; starts it again when it fails or ends, until SIGINT or SIGTERM
    #[command(visible_alias = "replay")]
    Share(Share),
    /// Show all pools in a browser: pictures, figures and consumers, live
    Serve {
        /// Address and port. Other hosts can see the pictures if the address is not of this host alone
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Serve the figures of all pools over HTTP, for Prometheus
    Metrics {
        /// Address and port. Other hosts can read the figures if the address is not of this host alone
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
        listen: SocketAddr,
    },
    /// Check what pools need on this host. Exit code 0: all is well, 1: there are warnings, 2: something does not work
    Doctor {
        #[command(flatten)]
        output: Output,
    },
    /// Remove what killed producers left; nothing of a pool that has a producer, or of another user
    Clean {
        /// Names of pools, or paths of their sockets. None: all of the runtime directory, and this user's segments in
        /// /dev/shm that no producer has, of whatever pool
        pools: Vec<OsString>,
        #[command(flatten)]
        output: Output,
    },
    /// Print the completions for a shell
    Completions { shell: Shell },
    /// Write the manual pages to a directory
    Man { directory: PathBuf },
}

fn property(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() && !text.contains('!') => Ok(text.to_owned()),
        _ => Err("write it as PROPERTY=VALUE".to_owned()),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "no number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|interval| (INTERVALS.0..=INTERVALS.1).contains(interval))
        .ok_or_else(|| format!("not from {:?} to {:?}", INTERVALS.0, INTERVALS.1))
}
