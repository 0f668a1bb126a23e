// SPDX-License-Identifier: MPL-2.0

//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Printed below the help, because a producer may use another runtime directory.
const WHERE: &str =
    "The runtime directory is $XMEM_RUNTIME_DIR, else $XDG_RUNTIME_DIR/xmem, else /tmp/xmem-<uid>.";

/// The range of `--interval`. A shorter interval would be a busy loop.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(86_400));

#[derive(Debug, Parser)]
#[command(name = "xmem", version, about, after_help = WHERE, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Print more details, and log messages on standard error
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table
    #[default]
    Table,
    /// One line of JSON
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct Output {
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Another host. The options are those of xmem-bridge.
#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// List the pools that this host exports, by the program xmem-bridge
    #[arg(long = "remote", value_name = "HOST[:PORT]")]
    pub(crate) host: Option<String>,
    /// With --remote: the certificate of this host
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) certificate: Option<PathBuf>,
    /// With --remote: the private key of the certificate
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) key: Option<PathBuf>,
    /// With --remote: the PEM file of the authority that signed the certificate of the exporter or router
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) server_ca: Option<PathBuf>,
    /// With --remote: connect over TCP, without protection
    #[arg(long, requires = "host")]
    pub(crate) trusted_network: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Share {
    /// `test`, a camera such as /dev/video0, an address such as rtsp://host/path, a file, or a GStreamer pipeline that contains ` !
    /// `
    pub(crate) source: OsString,
    /// The pool's name, or its socket's path
    #[arg(long)]
    pub(crate) pool: OsString,
    /// Video format of the frames, such as NV12, I420, RGB or RGBA. With `any`, frames are not converted
    #[arg(long, value_name = "FORMAT", default_value = "NV12")]
    pub(crate) format: String,
    /// Also publish smaller frames in a second pool, such as cam0-small=640x360, or cam0-small=640x360@5 for 5 frames a second.
    /// Can be repeated
    #[arg(long, value_name = "POOL=WIDTHxHEIGHT[@RATE]", value_parser = also)]
    pub(crate) also: Vec<Also>,
    /// How many milliseconds to wait for late packets of an rtsp address. A higher value needs more memory, because consumers
    /// show frames later
    #[arg(long, value_name = "MILLISECONDS")]
    pub(crate) latency: Option<u32>,
    /// Play a film repeatedly. A picture stays in any case
    #[arg(long = "loop")]
    pub(crate) repeat: bool,
    /// Open the source when the first consumer joins, and close it a few seconds after the last one has left
    #[arg(long)]
    pub(crate) on_demand: bool,
    /// End when there has been no consumer for this time, or when the source fails. Meant for programs that start this command.
    /// Messages go to a .log file beside the pool's socket, and a second such command for the same pool ends at once
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["on_demand", "repeat"], value_parser = interval)]
    pub(crate) idle: Option<Duration>,
    /// Restart a source that delivers no frame for this time
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = interval)]
    pub(crate) timeout: Duration,
    /// Set a property of xmemsink, such as socket-mode=0660. Can be repeated
    #[arg(long, value_name = "PROPERTY=VALUE", value_parser = property)]
    pub(crate) set: Vec<String>,
}

/// A pool with the frames of another one, scaled.
#[derive(Debug, Clone)]
pub(crate) struct Also {
    pub(crate) pool: String,
    pub(crate) size: (u32, u32),
    /// Frames per second. `None`: all.
    pub(crate) rate: Option<u32>,
}

impl Share {
    /// Whether frames are only published while there are consumers.
    pub(crate) fn waits_for_consumers(&self) -> bool {
        let mut values = self
            .set
            .iter()
            .filter_map(|it| it.strip_prefix("wait-for-connection="));
        // As GStreamer reads a boolean.
        let is_true = |value: &str| ["true", "t", "yes", "1"].contains(&&*value.to_lowercase());
        values.next_back().is_some_and(is_true)
    }
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The pool's name, or its socket's path
    pub(crate) pool: OsString,
    /// Interval between updates, from 0.01 to 86400, such as 0.5
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Stop after this number of updates
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Interval between updates, from 0.01 to 86400, such as 0.5
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print the pools once and exit
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// The pool's name, or its socket's path
    pub(crate) pool: OsString,
    /// The extension sets the format: .png, .jpg, .npy (RGB, for NumPy) or .raw (the frame in the pool's format)
    pub(crate) file: PathBuf,
    /// Take the newest published frame instead of the next one
    #[arg(long)]
    pub(crate) newest: bool,
    /// Time to wait for a frame
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = interval)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    /// The pool's name, or its socket's path
    pub(crate) pool: OsString,
    /// The file to create, with a name that ends in .mkv. In the name, %t stands for the time in UTC, with --before that of the
    /// clip
    pub(crate) file: PathBuf,
    /// Encode frames as H.264: smaller, but lossy. --before always encodes raw frames like this
    #[arg(long)]
    pub(crate) h264: bool,
    /// Keep the newest frames in memory, and write a clip at each SIGUSR1. The clip begins with a key frame, at least this long
    /// before the signal
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub(crate) before: Option<Duration>,
    /// With --before: end a clip this long after the last signal. Without %t in the name, end after the first clip
    #[arg(long, value_name = "SECONDS", default_value = "10", requires = "before", value_parser = interval)]
    pub(crate) after: Duration,
    /// With --before: each line on standard input does what SIGUSR1 does
    #[arg(long, requires = "before")]
    pub(crate) trigger: bool,
    /// With --before: the most memory for the newest frames, such as 500M (K, M, G and T are powers of 1024)
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "before", value_parser = size)]
    pub(crate) memory: u64,
    /// With --before: remove the oldest clips when all clips with such names take more than this size, such as 20G
    #[arg(long, value_name = "SIZE", requires = "before", value_parser = size)]
    pub(crate) keep: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Camera {
    /// The pool's name, or its socket's path
    pub(crate) pool: OsString,
    /// Write to this device of v4l2loopback instead, such as /dev/video10
    #[arg(long, value_name = "DEVICE")]
    pub(crate) v4l2: Option<PathBuf>,
    /// Size of the camera's pictures, in pixels. Frames are scaled to fit
    #[arg(long, value_name = "WIDTHxHEIGHT", default_value = "1280x720", value_parser = dimensions)]
    pub(crate) size: (u32, u32),
    /// Pictures per second
    #[arg(long, value_name = "N", default_value = "30", value_parser = clap::value_parser!(u32).range(1..=240))]
    pub(crate) rate: u32,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the pools of the runtime directory, or those that another host exports
    List {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a pool and its consumers
    Show {
        /// The pool's name, or its socket's path
        pool: OsString,
        #[command(flatten)]
        output: Output,
    },
    /// Show a pool repeatedly, and wait while it has no producer. With JSON, print one line each time
    Watch(Watch),
    /// Show all pools on the full screen. Keys: q (quit), arrows (select), enter (open a pool), s (sort), space (freeze)
    Top(Top),
    /// Write a picture of a pool to a file
    Snapshot(Snapshot),
    /// Write the frames of a pool to standard output as Y4M, for example for `ffplay -`, and skip frames if the reader is slow
    Tap {
        /// The pool's name, or its socket's path
        pool: OsString,
        /// Write the bytes of each frame unchanged and without separators
        #[arg(long)]
        raw: bool,
    },
    /// Write the frames of a pool to a Matroska file, without loss, until SIGINT. `xmem replay` plays the file
    Record(Record),
    /// Decode a camera, a stream or a file into a pool, and restart this source when it fails or ends, until SIGINT or SIGTERM
    #[command(visible_alias = "replay")]
    Share(Share),
    /// Show a pool as a camera of the desktop (PipeWire), for browsers and other programs, until SIGINT or SIGTERM
    Camera(Camera),
    /// Serve a web page with pictures, statistics and consumers of all pools
    Serve {
        /// Address and port. With an address that is not a loopback address, other hosts can see the pictures
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Serve the statistics of all pools over HTTP, for Prometheus
    Metrics {
        /// Address and port. With an address that is not a loopback address, other hosts can read the statistics
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
        listen: SocketAddr,
    },
    /// Check whether this host meets the requirements of pools. Exit code 0: no findings, 1: warnings, 2: pools do not work
    Doctor {
        #[command(flatten)]
        output: Output,
    },
    /// Remove the files of killed producers, but none of a pool that has a producer or belongs to another user
    Clean {
        /// Names of pools, or paths of their sockets. Without any: all pools of the runtime directory, and this user's segments in
        /// /dev/shm that have no producer
        pools: Vec<OsString>,
        #[command(flatten)]
        output: Output,
    },
    /// Let GStreamer find the plugin that pip has installed together with this command
    Plugin {
        #[command(subcommand)]
        action: Plugin,
    },
    /// Print the completion script for a shell
    Completions { shell: Shell },
    /// Write the manual pages to a directory
    Man { directory: PathBuf },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Plugin {
    /// Print the folder of the plugin, for GST_PLUGIN_PATH
    Path,
    /// Link the plugin into the folder where GStreamer looks for plugins of this user
    Install,
    /// Remove this link
    Remove,
}

fn property(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some(("pool", _)) => Err("--pool sets the pool".to_owned()),
        Some((name, _)) if !name.is_empty() && !text.contains('!') => Ok(text.to_owned()),
        _ => Err("expected PROPERTY=VALUE".to_owned()),
    }
}

/// A number of bytes, such as `20G`.
fn size(text: &str) -> Result<u64, String> {
    let unit = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let power = ["", "K", "M", "G", "T"].iter().position(|it| *it == unit);
    let number = number.parse::<u64>().ok().filter(|it| *it > 0);
    number
        .zip(power)
        .and_then(|(number, power)| number.checked_mul(1 << (10 * power)))
        .ok_or_else(|| "expected a number of bytes, such as 500M or 20G".to_owned())
}

fn also(text: &str) -> Result<Also, String> {
    let (pool, form) = text
        .rsplit_once('=')
        .filter(|(pool, _)| !pool.is_empty())
        .ok_or("expected a pool and a size, such as cam0-small=640x360@5")?;
    let (size, rate) = match form.split_once('@') {
        None => (form, None),
        Some((size, rate)) => {
            let rate = rate.parse().ok().filter(|it| (1..=240).contains(it));
            (
                size,
                Some(rate.ok_or("expected a rate from 1 to 240 behind the @")?),
            )
        }
    };
    Ok(Also {
        pool: pool.to_owned(),
        size: dimensions(size)?,
        rate,
    })
}

/// A size such as `640x480`. The format YUY2 stores pixels in pairs.
fn dimensions(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse().ok().filter(|it| (16..=8192).contains(it));
    let size = text.split_once('x');
    size.and_then(|(width, height)| number(width).filter(|it| it % 2 == 0).zip(number(height)))
        .ok_or_else(|| {
            "expected an even width and a height from 16 to 8192, such as 640x480".to_owned()
        })
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|interval| (INTERVALS.0..=INTERVALS.1).contains(interval))
        .ok_or_else(|| format!("not from {:?} to {:?}", INTERVALS.0, INTERVALS.1))
}
