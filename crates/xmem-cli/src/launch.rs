// SPDX-License-Identifier: MPL-2.0

//! Runs pipelines for a pool with GStreamer's tool, so that this program does not link GStreamer.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use xmem_core::discovery::{pools_in_words, printable};
use xmem_core::follow::{OverBudget, Step};
use xmem_core::{Consumer, PoolStats};

use crate::Error;
use crate::caps::{Caps, elementary_filter};
use crate::format::to_stderr;

pub(crate) const TOOL: &str = "gst-launch-1.0";

/// Converts frames to another format with the same bits, and back. By default videoconvert dithers formats of 10 and 12 bits,
/// which changes the values.
pub(crate) const CONVERT: &str = "videoconvert dither=none";

/// Encodes raw frames as JPEG. By way of RGB, because jpegenc takes YUV values as they are, and JPEG has others than most video: of
/// the full range, by the matrix of BT.601.
pub(crate) const TO_JPEG: &str = "videoconvert ! video/x-raw,format=RGB ! jpegenc";

/// The caps of a pool with video. Waits for the first frame, which sets the caps, for at most `time` (`None`: no limit).
pub(crate) fn video_pool(pool: &OsStr, time: Option<Duration>) -> Result<Caps, Error> {
    let query = || {
        xmem_core::discovery::query(pool)
            .map_err(|error| format!("{error}; {}", pools_in_words(pool)))
    };
    let mut stats = query()?;
    if stats.published == 0 && Caps::of(&stats).is_none() {
        first_frame(pool, time)?;
        stats = query()?;
    }
    video_caps(&stats)
}

/// Joins the pool as a consumer until there is a frame. This also opens a source on demand.
fn first_frame(pool: &OsStr, time: Option<Duration>) -> Result<(), Error> {
    to_stderr("waiting for the first frame");
    let consumer = Consumer::builder(pool).name("xmem").max_held(1);
    let mut follower = consumer.follow().over_budget(OverBudget::Copy);
    let start = Instant::now();
    loop {
        let left = time.map(|time| time.saturating_sub(start.elapsed()));
        if let (Some(Duration::ZERO), Some(time)) = (left, time) {
            return Err(format!("no frame within {time:?}").into());
        }
        if let Step::Took(()) = follower.step(left, |_| ())? {
            return Ok(());
        }
    }
}

/// The caps of a pool with video.
pub(crate) fn video_caps(stats: &PoolStats) -> Result<Caps, Error> {
    match Caps::of(stats) {
        Some(caps) if caps.is_video() => Ok(caps),
        Some(caps) => Err(format!(
            "pool {} has no video, but {}",
            printable(&stats.pool),
            printable(&caps.summary())
        )
        .into()),
        None => Err(format!(
            "pool {} has no caps, so its frames are not pictures",
            printable(&stats.pool)
        )
        .into()),
    }
}

/// Checks that frames can be decoded to raw video.
pub(crate) fn check_decodable(caps: &Caps) -> Result<(), Error> {
    if caps.is_raw() || caps.is_elementary() {
        return Ok(());
    }
    Err(format!(
        "its frames are {}, which is not decoded here, because a container can name files and addresses for GStreamer to open: \
         read it with a pipeline of your own",
        printable(caps.name())
    )
    .into())
}

/// The elements that decode frames to raw video, with a trailing ` ! `, or nothing. The filter is needed because the pool may have
/// other caps than its producer reports.
pub(crate) fn decoder(is_raw: bool) -> String {
    if is_raw {
        String::new()
    } else {
        format!("{} ! decodebin ! ", elementary_filter())
    }
}

/// What the producer may have to change if none of its encoded frames can be decoded, or nothing.
pub(crate) fn parameter_sets(caps: &Caps) -> String {
    let parser = match caps.name() {
        "video/x-h264" => "h264parse",
        "video/x-h265" => "h265parse",
        _ => return String::new(),
    };
    format!(
        ". If the encoder sends its parameter sets only once, put `{parser} config-interval=-1` before xmemsink"
    )
}

/// The setting whether a viewer skips frames. Encoded frames depend on one another, so they must not be skipped.
pub(crate) fn newest_only(is_raw: bool) -> String {
    format!("newest-only={is_raw}")
}

/// Adds `xmemsrc pool=... ! ...` to a command of the tool. It reads only the frames that it needs, and holds one slot.
pub(crate) fn pipeline(
    mut command: Command,
    pool: &OsStr,
    source: &[String],
    rest: &str,
) -> Command {
    command.args(["xmemsrc", &property("pool", pool)]);
    command.args(["client-name=xmem", "max-held=1", "download=true"]);
    command.args(source).arg("!").args(rest.split(' '));
    command.stdin(Stdio::null());
    command
}

/// A property as an argument of the tool. The tool joins its arguments and parses them as one text, so a pool's name could contain
/// elements. Special characters are therefore written as octal escapes, which are valid in a quoted value.
pub(crate) fn property(name: &str, value: impl AsRef<OsStr>) -> String {
    let mut text = format!("{name}=\\\"");
    for &byte in value.as_ref().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            text.push(byte.into());
        } else {
            text += &format!("\\\\{byte:03o}");
        }
    }
    text + "\\\""
}

/// The exit code for the end of a tool: as shells do for a signal, such as SIGPIPE when the reader of `tap` has ended.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|it| 128 + it));
    code.map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8))
}

/// The error if the tool cannot be started.
pub(crate) fn not_started(error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound if !Path::new("/proc/self").exists() => ". Mount /proc",
        io::ErrorKind::NotFound => ". Install GStreamer's tools (package gstreamer1.0-tools)",
        io::ErrorKind::WouldBlock => ". Raise the limit of processes and threads (ulimit -u)",
        _ if error.raw_os_error() == Some(libc::EMFILE) => {
            ". Raise the limit of descriptors (ulimit -n)"
        }
        _ => "",
    };
    format!("cannot run {TOOL}: {error}{advice}").into()
}

/// Part of the error for VP8 and VP9 with alpha.
pub(crate) const WITH_ALPHA: &str = " with alpha";

/// Why the tool has ended, by its messages, or else by its status.
pub(crate) fn why_ended(printed: &str, status: ExitStatus) -> String {
    let has_reason = printed.contains("ERROR") || printed.contains("WARNING");
    if !has_reason && (status.signal().is_some() || printed.trim().is_empty()) {
        return format!("{TOOL} ended: {status}");
    }
    failure(printed).to_string()
}

/// Finds the error in the tool's standard error.
pub(crate) fn failure(stderr: &str) -> Error {
    let line = |part: &str| stderr.lines().find(|line| line.contains(part));
    const MISSING: &str = "Missing decoder: ";
    let missing = stderr.lines().filter_map(|line| line.strip_prefix(MISSING));
    let is_video = |codec: &&str| codec.contains(" (video/") || codec.contains(" (image/");
    // Without the caps in brackets, which are long.
    let codec = |codec: &'_ str| codec.split(" (").next().unwrap_or(codec).to_owned();
    if let Some(codec_and_caps) = missing.clone().find(is_video) {
        let has_alpha = codec_and_caps.contains("codec-alpha=(boolean)true");
        let name = codec(codec_and_caps) + if has_alpha { WITH_ALPHA } else { "" };
        let package = package(if has_alpha { "plugins-bad" } else { "libav" });
        return format!("no decoder for {}{package}", printable(&name)).into();
    }
    let is_container = |codec: &&str| codec.contains(" (application/");
    if let Some(container) = missing.clone().find(is_container) {
        let name = codec(container);
        return format!(
            "GStreamer cannot read {}{}",
            printable(&name),
            package("plugins-bad")
        )
        .into();
    }
    if missing.clone().next().is_some() {
        return "there is no video in it".into();
    }
    let reason = line("ERROR").or_else(|| line("WARNING")).unwrap_or(stderr);
    if reason.trim().is_empty() {
        return "GStreamer ended without a message, as after a signal or at a limit (ulimit -f)"
            .into();
    }
    let advice = advice(reason);
    let (_, mut reason) = reason.split_once(": ").unwrap_or(("", reason));
    if reason.starts_with("from element") || reason.starts_with("erroneous pipeline") {
        reason = reason.split_once(": ").map_or(reason, |(_, rest)| rest);
    }
    let reason = reason.trim().trim_end_matches('.');
    // Details that the element adds, such as a system error, follow the source location.
    let mut lines = stderr
        .lines()
        .skip_while(|line| *line != "Additional debug info:");
    let detail = lines
        .nth(2)
        .map(|line| line.trim_start_matches("system error: "));
    let is_none = |line: &str| {
        line.is_empty() || line.starts_with("ERROR") || line.starts_with("no suitable")
    };
    let detail = detail.filter(|line| !is_none(line));
    let detail = detail.map_or_else(String::new, |detail| {
        format!(" ({})", detail.trim_end_matches('.'))
    });
    printable(&format!("{reason}{detail}{advice}")).into()
}

/// As [`failure`], of a tool that writes to `output`, which its messages do not name.
pub(crate) fn failure_to_write(output: impl Display, stderr: &str) -> Error {
    let reason = failure(stderr);
    if stderr.contains("GstFdSink") {
        format!("cannot write to {output}: {reason}").into()
    } else {
        reason
    }
}

/// The package to install for an error of the tool.
fn advice(reason: &str) -> String {
    let element = reason
        .split_once("no element \"")
        .and_then(|(_, rest)| rest.split('"').next());
    match element {
        Some("xmemsrc" | "xmemsink") => {
            ". `xmem doctor` checks whether the plugin is found".to_owned()
        }
        Some("videotestsrc" | "videoconvert" | "uridecodebin" | "decodebin" | "compositor") => {
            package("plugins-base")
        }
        Some("textoverlay") => package("x"),
        Some("h264parse" | "h265parse" | "av1parse" | "openh264dec") => package("plugins-bad"),
        Some("x264enc") => package("plugins-ugly"),
        Some(name) if name.starts_with("avdec_") || name.starts_with("avenc_") => package("libav"),
        // Plugins for cameras, RTSP, HTTP, Matroska, PNG, JPEG and Y4M.
        Some(_) => package("plugins-good"),
        None if reason.contains("No URI handler implemented") => package("plugins-good"),
        None if reason.contains("is busy") => {
            ". Another program has it open: end that one, or let it read a pool, too".to_owned()
        }
        None if reason.contains("and this program version") => {
            ". \"This program\" is GStreamer's plugin: `xmem doctor` shows its file".to_owned()
        }
        None if reason.contains("No space left") => {
            ". Free space there, or write to another disk".to_owned()
        }
        None => String::new(),
    }
}

fn package(name: &str) -> String {
    format!(". Install the package of GStreamer's plugins that has it, such as gstreamer1.0-{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_has_no_character_with_a_meaning() {
        assert_eq!(
            property("pool", "/a/cam-0_1.sock"),
            r#"pool=\"/a/cam-0_1.sock\""#
        );
        assert_eq!(property("pool", "a\" !"), r#"pool=\"a\\042\\040\\041\""#);
        assert_eq!(property("pool", "\\ü"), r#"pool=\"\\134\\303\\274\""#);
    }

    #[test]
    fn a_failure_names_the_package() {
        let wav = "ERROR: from element /GstPipeline:pipeline0/GstURIDecodeBin:d: Your installation is missing a plug-in.
no suitable plugins found:
Missing decoder: H.264 (Main Profile) (video/x-h264, level=(string)3.1)
ERROR: pipeline doesn't want to preroll.";
        let camera = "ERROR: from element /GstPipeline:pipeline0/GstV4l2Src:v: Cannot identify device '/dev/video9'.
Additional debug info:
../sys/v4l2/v4l2_calls.c(608): gst_v4l2_open (): /GstPipeline:pipeline0/GstV4l2Src:v:
system error: No such file or directory";
        for (stderr, is) in [
            (
                "WARNING: erroneous pipeline: no element \"v4l2src\"",
                "no element \"v4l2src\". Install the package of GStreamer's plugins that has it, such as \
                 gstreamer1.0-plugins-good",
            ),
            (
                "WARNING: erroneous pipeline: no element \"xmemsink\"",
                "no element \"xmemsink\". `xmem doctor` checks whether the plugin is found",
            ),
            (
                wav,
                "no decoder for H.264. Install the package of GStreamer's plugins that has it, such as gstreamer1.0-libav",
            ),
            (
                "Missing decoder: VP9 (video/x-vp9, codec-alpha=(boolean)true)",
                "no decoder for VP9 with alpha. Install the package of GStreamer's plugins that has it, such as \
                 gstreamer1.0-plugins-bad",
            ),
            (
                "Missing decoder: Microsoft Media Server (application/x-mmsh)",
                "GStreamer cannot read Microsoft Media Server. Install the package of GStreamer's plugins that has it, such as \
                 gstreamer1.0-plugins-bad",
            ),
            (
                "Missing decoder: Raw 16-bit PCM audio (audio/x-raw)",
                "there is no video in it",
            ),
            (
                "ERROR: from element /GstPipeline:p/GstXmemSink:s: Cannot create pool \"a\": pool \"a\" has a producer: stop it",
                "Cannot create pool \"a\": pool \"a\" has a producer: stop it",
            ),
            (
                "ERROR: from element /GstPipeline:pipeline0/GstV4l2Src:v: Device '/dev/video0' is busy",
                "Device '/dev/video0' is busy. Another program has it open: end that one, or let it read a pool, too",
            ),
            (
                camera,
                "Cannot identify device '/dev/video9' (No such file or directory)",
            ),
        ] {
            assert_eq!(failure(stderr).to_string(), is);
        }
    }
}
