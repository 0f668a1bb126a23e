// SPDX-License-Identifier: MPL-2.0

//! Pipelines for a pool, run by GStreamer's own tool, so that the other commands need no GStreamer.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use xmem_core::{PoolStats, pools_in_words, printable};

use crate::Error;
use crate::caps::Caps;

const TOOL: &str = "gst-launch-1.0";

/// The figures of a pool that has video, and its caps.
pub(crate) fn video_pool(pool: &OsStr) -> Result<(PoolStats, Caps), Error> {
    let stats = xmem_core::query(pool)
        .map_err(|error| format!("{error}; {}", printable(&pools_in_words(pool))))?;
    let caps = Caps::of(&stats);
    match caps {
        Some(caps) if caps.is_video() => Ok((stats, caps)),
        Some(caps) => Err(format!(
            "pool {} has no video, but {}",
            printable(&stats.pool),
            printable(&caps.summary())
        )
        .into()),
        None => Err(format!(
            "pool {} has no caps, so its frames are no pictures",
            printable(&stats.pool)
        )
        .into()),
    }
}

/// `gst-launch-1.0 xmemsrc pool=... ! ...`, which reads no more than it needs and holds one slot.
pub(crate) fn pipeline(pool: &OsStr, source: &[String], rest: &str) -> Command {
    let mut command = Command::new(TOOL);
    let mut name = std::ffi::OsString::from("pool=");
    name.push(pool);
    command.args(["--quiet", "xmemsrc"]).arg(name);
    command.args(["client-name=xmem", "max-held=1", "download=true"]);
    command.args(source).arg("!").args(rest.split(' '));
    command.stdin(Stdio::null());
    command
}

/// A timeout as a property.
pub(crate) fn connection_timeout(timeout: Duration) -> String {
    format!("connection-timeout={}", timeout.as_nanos())
}

/// Why the tool was not started.
pub(crate) fn not_started(error: &io::Error) -> Error {
    format!("cannot run {TOOL}: {error}. Install GStreamer's tools (package gstreamer1.0-tools)")
        .into()
}

/// The error in what the tool printed on standard error.
pub(crate) fn failure(stderr: &str) -> Error {
    let line = |part: &str| stderr.lines().find(|line| line.contains(part));
    let reason = line("ERROR")
        .or_else(|| line("WARNING"))
        .unwrap_or(stderr)
        .trim();
    let reason = reason
        .rsplit_once(": ")
        .map_or(reason, |(_, reason)| reason);
    let advice = if reason.contains("no element \"xmemsrc\"") {
        ". `xmem doctor` checks whether the plugin is found"
    } else if reason.contains("no element") {
        ". Install the package of GStreamer's plugins that has it, such as gstreamer1.0-plugins-good"
    } else {
        ""
    };
    format!("{}{advice}", printable(reason)).into()
}
