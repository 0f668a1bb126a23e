// SPDX-License-Identifier: MPL-2.0

//! Independent programs in separate processes receive the producer's frames.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
};

use crate::support::{process::*, *};

const FRAMES: usize = 20;

/// Raw video.
struct Video {
    format: &'static str,
    width: usize,
    planes: &'static [Plane],
}

/// A plane: the number of rows, the bytes of a row, and GStreamer's stride.
type Plane = (usize, usize, usize);

const PADDED_BGR: Video = Video {
    format: "BGR",
    width: 322,
    planes: &[(242, 966, 968)],
};

/// A format without padding: y4menc 1.22 writes the padding, which no reader expects.
const PLAIN_I420: Video = Video {
    format: "I420",
    width: 328,
    planes: &[(242, 328, 328), (121, 164, 164), (121, 164, 164)],
};

/// Frames that all differ and are the same in each run.
fn frames(video: &Video) -> String {
    format!(
        "videotestsrc num-buffers={FRAMES} pattern=ball \
         ! video/x-raw,format={},width={},height=242,framerate=30/1",
        video.format, video.width
    )
}

/// A lossless producer that waits for the program.
fn producer(pools: &Pools, video: &Video) -> Launch {
    let pipeline = format!(
        "{} ! xmemsink pool=cam delivery=lossless wait-for-connection=true sync=false",
        frames(video)
    );
    Launch::new(pools, "producer", &pipeline)
}

/// Asserts that these bytes are the frames without padding.
#[track_caller]
fn are_the_frames(pools: &Pools, bytes: &[u8], video: &Video) {
    let file = pools.file("reference");
    pools.run(&format!(
        "{} ! filesink location={}",
        frames(video),
        file.display()
    ));
    let reference = std::fs::read(file).unwrap();
    let mut left = &reference[..];
    let mut expected = Vec::new();
    for (rows, width, stride) in (0..FRAMES).flat_map(|_| video.planes) {
        for _ in 0..*rows {
            let (row, rest) = left.split_at(*stride);
            expected.extend_from_slice(&row[..*width]);
            left = rest;
        }
    }
    assert!(left.is_empty());
    assert_eq!(bytes.len(), expected.len());
    assert!(bytes == expected, "other pictures came out");
}

/// Debian's Python, for python3-opencv. The package from PyPI has no GStreamer support.
const PYTHON: &str = "/usr/bin/python3";

fn opencv_has_gstreamer() -> bool {
    let script = "import cv2; print(cv2.getBuildInformation())";
    let output = Command::new(PYTHON).args(["-c", script]).output();
    output.is_ok_and(|output| {
        let output = String::from_utf8_lossy(&output.stdout);
        output
            .lines()
            .any(|line| line.contains("GStreamer:") && line.contains("YES"))
    })
}

const OPENCV: &str = r#"
import sys
import cv2

capture = cv2.VideoCapture(
    "xmemsrc pool=cam ! video/x-raw,format=BGR ! appsink sync=false max-buffers=1", cv2.CAP_GSTREAMER)
while True:
    ok, frame = capture.read()
    if not ok:
        break
    sys.stdout.buffer.write(frame.tobytes())
"#;

#[test]
fn opencv_reads_each_frame() {
    if !opencv_has_gstreamer() {
        return not_run("no OpenCV with GStreamer (Debian's python3-opencv)");
    }
    let pools = prepared();
    let mut producer = producer(&pools, &PADDED_BGR);
    let mut python = command(&pools, PYTHON);
    // OpenCV warns about each live source.
    python.env_remove("G_DEBUG");
    let output = python.args(["-c", OPENCV]).output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complained}");
    producer.succeeds();
    are_the_frames(&pools, &output.stdout, &PADDED_BGR);
}

/// A process that is killed at the end of the test, also after a failure.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ffmpeg_reads_each_frame_through_a_pipe() {
    let version = Command::new("ffmpeg").arg("-version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        return not_run("no ffmpeg");
    }
    let pools = prepared();
    let mut producer = producer(&pools, &PLAIN_I420);
    let mut pipeline = Running(
        command(&pools, "gst-launch-1.0")
            .args(["-q", "xmemsrc", "pool=cam", "!", "y4menc", "!", "fdsink"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut ffmpeg = Command::new("ffmpeg")
        .args(["-loglevel", "error", "-f", "yuv4mpegpipe", "-i", "-"])
        .args(["-f", "rawvideo", "-"])
        .stdin(pipeline.0.stdout.take().unwrap())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut bytes = Vec::new();
    let mut output = ffmpeg.stdout.take().unwrap();
    output.read_to_end(&mut bytes).unwrap();
    assert!(ffmpeg.wait().unwrap().success());
    assert!(pipeline.0.wait().unwrap().success());
    producer.succeeds();
    are_the_frames(&pools, &bytes, &PLAIN_I420);
}
