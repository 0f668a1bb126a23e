// SPDX-License-Identifier: MPL-2.0

//! The producer's input: an encoded test clip, a file, or a camera.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;

use super::process::Process;
use super::stage::{POOL, Stage};

#[derive(Debug)]
pub(super) enum Input {
    /// A clip that the demo encodes, so that the decoder is known.
    Clip(Loop),
    File(Loop),
    /// A file of a format that cannot be played repeatedly as one stream.
    Once(PathBuf),
    Camera(String),
}

/// A file that is played repeatedly, because the demo may take longer than the file.
#[derive(Debug)]
pub(super) struct Loop {
    file: PathBuf,
    /// A pattern that matches the links to the file, one link for each repetition.
    parts: PathBuf,
}

const CLIP_SECONDS: u32 = 10;
/// The formats that splitmuxsrc can read.
const LOOPED: [&str; 6] = ["mp4", "m4v", "mov", "mkv", "webm", "ts"];
const CODECS: &str =
    "video/x-h264;video/x-h265;video/mpeg;video/x-vp8;video/x-vp9;video/x-av1;image/jpeg";

impl Input {
    pub(super) fn prepare(input: Option<&str>, seconds: u32, stage: &Stage) -> Result<Self> {
        let Some(name) = input else {
            let path = stage.path("clip.mp4");
            encode(&path, stage)?;
            let times = seconds / CLIP_SECONDS + 2;
            return Ok(Self::Clip(Loop::new(path, times, stage)?));
        };
        if let Some(device) = name.strip_prefix("v4l2:") {
            return if Path::new(device).exists() {
                Ok(Self::Camera(device.to_owned()))
            } else {
                Err(format!("there is no camera {device}").into())
            };
        }
        if !Path::new(name).is_file() {
            return Err(
                format!("{name} is not a file; a camera is given as v4l2:/dev/videoN").into(),
            );
        }
        let path = std::path::absolute(name)?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| LOOPED.contains(&extension.to_lowercase().as_str())) {
            // Enough repetitions for a clip of two seconds. A part that is not played costs almost nothing.
            let times = seconds / 2 + 2;
            Ok(Self::File(Loop::new(path, times, stage)?))
        } else {
            Ok(Self::Once(path))
        }
    }

    /// Whether the decoder writes into slots, so that no copy is expected.
    pub(super) fn is_copy_free(&self) -> bool {
        matches!(self, Self::Clip(_))
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Clip(_) => "an H.264 clip made with x264enc, 1280x720, 30 fps".to_owned(),
            Self::File(Loop { file, .. }) | Self::Once(file) => file.display().to_string(),
            Self::Camera(device) => format!("the camera {device}"),
        }
    }

    /// The pipeline of the producer: decodes the input into the pool.
    pub(super) fn producer(&self, stage: &Stage) -> Command {
        let mut command = stage.command("gst-launch-1.0");
        command.arg("-q");
        match self {
            // Without the filter, GStreamer 1.26 prefers caps of DMA buffers.
            Self::Camera(device) => {
                let device = format!("device={device}");
                let readable = "caps=video/x-raw;image/jpeg";
                command.args(["v4l2src", &device, "!", "capsfilter", readable, "!"])
            }
            Self::Once(file) => {
                command.args(["filesrc", &format!("location={}", file.display()), "!"])
            }
            Self::Clip(Loop { parts, .. }) | Self::File(Loop { parts, .. }) => {
                let location = format!("location={}", parts.display());
                command.args(["splitmuxsrc", &location, "!", CODECS, "!"])
            }
        };
        command.args(format!("decodebin ! video/x-raw ! xmemsink pool={POOL}").split(' '));
        command
    }
}

impl Loop {
    fn new(file: PathBuf, times: u32, stage: &Stage) -> Result<Self> {
        let dir = stage.path("parts");
        std::fs::create_dir(&dir)?;
        for number in 0..times {
            symlink(&file, dir.join(format!("{number:04}")))?;
        }
        Ok(Self {
            file,
            parts: dir.join("*"),
        })
    }
}

fn encode(path: &Path, stage: &Stage) -> Result {
    println!("Encoding a clip of {CLIP_SECONDS} s ...");
    let mut command = stage.command("gst-launch-1.0");
    let frames = CLIP_SECONDS * 30;
    let source = format!(
        "-q videotestsrc num-buffers={frames} pattern=ball background-color=0xff204060 foreground-color=0xffffc040 \
         ! video/x-raw,format=I420,width=1280,height=720,framerate=30/1 ! timeoverlay"
    );
    let encoder = "! x264enc speed-preset=ultrafast key-int-max=30 ! h264parse ! mp4mux ! filesink";
    command.args(source.split(' ')).arg("font-desc=Sans 24");
    command.args(encoder.split(' '));
    command.arg(format!("location={}", path.display()));
    Process::start(stage, "encoder", command)?.finish(Duration::from_secs(120))
}
