// SPDX-License-Identifier: MPL-2.0

//! What the producer plays: a clip of our own, a file, or a camera.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;

use super::process::Process;
use super::stage::{POOL, Stage};

#[derive(Debug)]
pub(super) enum Input {
    /// Encoded by the demo, so it is known which decoder gets it.
    Clip {
        path: PathBuf,
        plays: u32,
    },
    File {
        path: PathBuf,
        plays: u32,
    },
    Camera(String),
}

const CLIP_SECONDS: u32 = 10;
const CODECS: &str =
    "video/x-h264;video/x-h265;video/mpeg;video/x-vp8;video/x-vp9;video/x-av1;image/jpeg";

impl Input {
    pub(super) fn prepare(input: Option<&str>, seconds: u32, stage: &Stage) -> Result<Self> {
        match input {
            None => {
                let path = stage.path("clip.mp4");
                encode(&path, stage)?;
                let plays = seconds.div_ceil(CLIP_SECONDS) + 1;
                Ok(Self::Clip { path, plays })
            }
            Some(name) => match name.strip_prefix("v4l2:") {
                Some(device) if Path::new(device).exists() => Ok(Self::Camera(device.to_owned())),
                Some(device) => Err(format!("there is no camera {device}").into()),
                None if Path::new(name).is_file() => Ok(Self::File {
                    path: std::path::absolute(name)?,
                    // Enough for a clip of three seconds; one that is not reached costs nothing.
                    plays: seconds.div_ceil(3) + 1,
                }),
                None => Err(
                    format!("{name} is not a file; a camera is given as v4l2:/dev/videoN").into(),
                ),
            },
        }
    }

    /// The frames come out of a decoder that writes into slots, so no copy is expected.
    pub(super) fn is_copy_free(&self) -> bool {
        matches!(self, Self::Clip { .. })
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Clip { .. } => "a H.264 clip made with x264enc, 1280x720, 30 fps".to_owned(),
            Self::File { path, .. } => path.display().to_string(),
            Self::Camera(device) => format!("the camera {device}"),
        }
    }

    /// The producer: decodes the input into the pool.
    pub(super) fn producer(&self, stage: &Stage) -> Command {
        let mut command = stage.command("gst-launch-1.0");
        command.arg("-q");
        let pool = format!("pool={POOL}");
        let decode = ["decodebin", "!", "video/x-raw", "!", "xmemsink", &pool];
        match self {
            Self::Camera(device) => {
                command
                    .args(["v4l2src", &format!("device={device}"), "!"])
                    .args(decode);
            }
            Self::Clip { path, plays } | Self::File { path, plays } => {
                // Played several times over, as one stream for one decoder.
                command.args(["concat", "name=all", "!"]).args(decode);
                let location = format!("location={}", path.display());
                for _ in 0..*plays {
                    command.args([
                        "filesrc", &location, "!", "parsebin", "!", CODECS, "!", "all.",
                    ]);
                }
            }
        }
        command
    }
}

fn encode(path: &Path, stage: &Stage) -> Result {
    println!("\nEncoding a clip of {CLIP_SECONDS} s ...");
    let mut command = stage.command("gst-launch-1.0");
    command.args([
        "-q",
        "videotestsrc",
        &format!("num-buffers={}", CLIP_SECONDS * 30),
    ]);
    command.args([
        "pattern=ball",
        "background-color=0xff204060",
        "foreground-color=0xffffc040",
        "!",
    ]);
    command.args([
        "video/x-raw,format=I420,width=1280,height=720,framerate=30/1",
        "!",
    ]);
    command.args(["timeoverlay", "font-desc=Sans 24", "!"]);
    command.args(["x264enc", "speed-preset=ultrafast", "key-int-max=30", "!"]);
    command.args(["h264parse", "!", "mp4mux", "!", "filesink"]);
    command.arg(format!("location={}", path.display()));
    Process::start(stage, "encoder", command)?.finish(Duration::from_secs(120))
}
