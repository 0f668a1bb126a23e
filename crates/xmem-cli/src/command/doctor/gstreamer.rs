// SPDX-License-Identifier: MPL-2.0

//! Checks GStreamer and the plugin with GStreamer's tools. The library and the command `xmem` need neither.

use std::process::Command;
use std::time::Duration;

use super::finding::{Finding, is_older};
use crate::child;
use crate::command::plugin;

/// The first run of the tool loads every plugin, and a plugin may hang.
const TOOL_TIMEOUT: Duration = Duration::from_secs(30);
const TOOL: &str = "gst-inspect-1.0";

pub(super) fn check() -> Vec<Finding> {
    let Some(version) = output(&["--version"]) else {
        return vec![Finding::warning(
            "GStreamer",
            format!("{TOOL} is not installed, or does not work"),
            "For the elements, install GStreamer 1.22 or newer (package gstreamer1.0-tools). \
             Programs in Rust and Python need none",
        )];
    };
    vec![gstreamer(&version), plugin()]
}

fn gstreamer(version: &str) -> Finding {
    let words = version
        .lines()
        .find_map(|line| line.strip_prefix("GStreamer "));
    let version = words.unwrap_or("of an unknown version").to_owned();
    if is_older(&version, (1, 22)) {
        return Finding::problem("GStreamer", version, "The elements need 1.22 or newer");
    }
    Finding::ok("GStreamer", version)
}

fn plugin() -> Finding {
    const CHECK: &str = "plugin";
    let Some(text) = output(&["xmem"]) else {
        let blocked = output(&["--print-blacklist"]).unwrap_or_default();
        let is_blocked = blocked.lines().any(|line| line.contains("libgstxmem"));
        return if is_blocked {
            Finding::warning(
                CHECK,
                "GStreamer could not load libgstxmem.so and has blacklisted it",
                "GST_DEBUG=GST_PLUGIN_LOADING:4 prints the reason; then remove the registry in ~/.cache/gstreamer-1.0",
            )
        } else {
            Finding::warning(
                CHECK,
                "GStreamer does not find xmemsink and xmemsrc",
                format!(
                    "Add the directory of libgstxmem.so to {}, or install the plugin",
                    plugin::search_path()
                ),
            )
        };
    };
    let value = |key: &str| {
        let line = text
            .lines()
            .map(str::trim)
            .find_map(|line| line.strip_prefix(key));
        line.unwrap_or("?").trim().to_owned()
    };
    let what = format!("{} from {}", value("Version"), value("Filename"));
    let ours = env!("CARGO_PKG_VERSION");
    // The version of a build from a clone is followed by the commit.
    if value("Version").split('-').next() == Some(ours) {
        Finding::ok(CHECK, what)
    } else {
        let advice = format!("This command is version {ours}: install the same version of both");
        Finding::warning(CHECK, what, advice)
    }
}

/// The output of the tool. `None` if it is not installed, fails or does not end.
pub(super) fn output(args: &[&str]) -> Option<String> {
    let mut command = Command::new(TOOL);
    command.args(args).env("GST_INSPECT_NO_COLORS", "1");
    plugin::offer(&mut command);
    let ended = child::run(&mut command, TOOL_TIMEOUT).ok()??;
    ended.status.success().then_some(ended.stdout)
}
