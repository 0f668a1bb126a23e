// SPDX-License-Identifier: MPL-2.0

//! `xmem record POOL FILE`

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::launch::{TOOL, not_started, pipeline, property, video_pool};

/// Holds copies of frames while the encoder or the disk is slow, so that the pool's budget does not limit them.
const QUEUE: &str = "queue max-size-buffers=0 max-size-time=0 max-size-bytes=268435456";

/// Replaces this process with GStreamer's tool, which writes the file. At SIGINT the tool completes the file.
pub(crate) fn run(pool: &OsStr, file: &Path, h264: bool) -> Result<(), Error> {
    let name = file.display();
    if file.extension() != Some(OsStr::new("mkv")) {
        return Err(format!("{name}: use a name that ends in .mkv").into());
    }
    let caps = video_pool(pool, None)?;
    // Never overwrite a recording.
    if file.exists() {
        return Err(format!("{name} exists: remove it, or choose another name").into());
    }
    let convert = match caps.name() {
        _ if caps.is_raw() && h264 => "videoconvert ! x264enc tune=zerolatency ! ",
        _ if caps.is_raw() => "videoconvert ! avenc_ffv1 ! ",
        // Encoded frames are stored unchanged, in the form that the file format needs.
        "video/x-h264" => "h264parse ! ",
        "video/x-h265" => "h265parse ! ",
        _ => "",
    };
    let rest = format!("{QUEUE} ! {convert}matroskamux offset-to-zero=true ! filesink");
    let source = ["max-held=8".to_owned()];
    let error = pipeline(Command::new(TOOL), pool, &source, &rest)
        .args([&property("location", file), "--eos-on-shutdown"])
        .exec();
    Err(not_started(&error))
}
