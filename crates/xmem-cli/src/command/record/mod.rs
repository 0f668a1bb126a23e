// SPDX-License-Identifier: MPL-2.0

//! `xmem record POOL FILE`

mod clip;
mod clips;
mod matroska;
mod names;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use xmem_core::PoolStats;

use crate::Error;
use crate::caps::Caps;
use crate::child;
use crate::cli::Record;
use crate::format::to_stderr;
use crate::launch::{CONVERT, TOOL, parameter_sets, pipeline, video_pool};
use crate::play::{play, why};
use clips::{Clips, Progress, Triggers};
use matroska::CLUSTER;
use names::Names;

/// Holds copies of frames while the encoder or the disk is slow, so that the pool's budget does not limit them.
const QUEUE: &str = "queue max-size-buffers=0 max-size-time=0 max-size-bytes=268435456";

/// A key frame at least once a second, for clips of a camera with 30 frames a second.
const H264: &str = "videoconvert ! x264enc tune=zerolatency speed-preset=veryfast key-int-max=30";

/// What ends when the frames change.
const WHAT: &str = "recording";

pub(crate) fn run(record: &Record) -> Result<ExitCode, Error> {
    let Record { pool, file, .. } = record;
    if file.extension() != Some(OsStr::new("mkv")) {
        return Err(format!("{}: use a name that ends in .mkv", file.display()).into());
    }
    match record.before {
        Some(before) => write_clips(record, before),
        None => write_all(pool, &Names::of(file)?, record.h264),
    }
}

/// The elements between the pool and the file, with a trailing ` ! `, or nothing.
fn encoder(caps: &Caps, raw: &str) -> String {
    match caps.name() {
        // Matroska cannot store a change of the caps.
        _ if caps.is_raw() => format!("{} ! {raw} ! ", caps.filter()),
        // Encoded frames are stored unchanged, in the form that the file format needs.
        "video/x-h264" => "h264parse ! ".to_owned(),
        "video/x-h265" => "h265parse ! ".to_owned(),
        "video/x-av1" => "av1parse ! ".to_owned(),
        _ => String::new(),
    }
}

/// H.264 has the colours of two by two pixels.
fn check_even(caps: &Caps) -> Result<(), Error> {
    match caps.size() {
        Some((width, height)) if width % 2 != 0 || height % 2 != 0 => Err(format!(
            "H.264 needs an even width and height, and the frames have {width}x{height}: record without --h264 and --before, or \
             scale them"
        )
        .into()),
        _ => Ok(()),
    }
}

/// Runs GStreamer's tool, which writes the file. At a signal the tool completes the file.
fn write_all(pool: &OsStr, names: &Names, h264: bool) -> Result<ExitCode, Error> {
    let caps = video_pool(pool, None)?;
    let file = names.at(SystemTime::now());
    let name = file.display();
    let raw = match caps.format() {
        Some(format) if !h264 => {
            let target = ffv1_format(format)?;
            format!("{CONVERT} ! video/x-raw,format={target} ! avenc_ffv1")
        }
        format => {
            if format.is_some() {
                check_even(&caps)?;
            }
            "videoconvert ! x264enc tune=zerolatency".to_owned()
        }
    };
    let encode = encoder(&caps, &raw);
    // Never overwrites a recording, and follows no link.
    let mut options = File::options();
    let recording = options.read(true).write(true).create_new(true).open(&file);
    let recording = recording.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => format!("{name} exists: remove it, or choose another name"),
        _ => format!("cannot write {name}: {error}"),
    })?;
    // A descriptor that the tool inherits.
    let inherited = rustix::io::dup(&recording)?;
    let rest = format!(
        "{QUEUE} ! {encode}matroskamux offset-to-zero=true ! fdsink fd={} --eos-on-shutdown",
        inherited.as_raw_fd()
    );
    let mut gaps = Gaps::new(pool, &caps);
    let command = pipeline(child::supervised(TOOL), pool, &gaps.source(), &rest);
    let look = || {
        gaps.look(|| has_frame(&recording));
        true
    };
    let explain = |report: &str| why(pool, &caps, WHAT, &name, report);
    let played = play(command, None, look, explain);
    gaps.report();
    if is_empty_there(&recording, &file) {
        // It would only prevent the next attempt.
        fs::remove_file(&file)?;
        to_stderr(format_args!("nothing was recorded, so there is no {name}"));
    }
    played
}

/// Runs GStreamer's tool, which encodes the frames, and writes clips of them.
fn write_clips(record: &Record, before: Duration) -> Result<ExitCode, Error> {
    // From now on SIGUSR1 does not end this command, which may wait for the first frame.
    let triggers = Triggers::new(record.trigger)?;
    let clips = Clips::new(record, before)?;
    let pool = &record.pool;
    let caps = video_pool(pool, None)?;
    if caps.is_raw() {
        check_even(&caps)?;
        to_stderr("encoding the frames as H.264, with x264enc");
    }
    let rest = format!(
        "{QUEUE} ! {}matroskamux streamable=true min-cluster-duration=0 offset-to-zero=true \
         ! fdsink fd=0 sync=false --eos-on-shutdown",
        encoder(&caps, H264)
    );
    let (input, output) = std::io::pipe()?;
    let mut gaps = Gaps::new(pool, &caps);
    let mut command = pipeline(child::supervised(TOOL), pool, &gaps.source(), &rest);
    // The only descriptor that the command closes here once the tool has it.
    command.stdin(output);
    let progress = Arc::new(Progress::default());
    let clips = clips.spawn(triggers, input, progress.clone())?;
    let look = || {
        gaps.look(|| progress.has_frame());
        !progress.is_done()
    };
    let explain = |report: &str| why(pool, &caps, WHAT, "the clips", report);
    let code = play(command, None, look, explain)?;
    gaps.report();
    match clips.join() {
        Ok(true) => Ok(code),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// Whether the recording has no frame, and is still the file of that name.
fn is_empty_there(recording: &File, file: &Path) -> bool {
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    let there = fs::symlink_metadata(file).map(id).ok();
    there.is_some() && there == recording.metadata().map(id).ok() && !has_frame(recording)
}

/// Whether the file has a cluster. Before the first one it has only headers, which take a few hundred bytes.
fn has_frame(recording: &File) -> bool {
    let mut begin = vec![0; 1 << 16];
    let Ok(len) = recording.read_at(&mut begin, 0) else {
        return true;
    };
    let is_cut = len == begin.len();
    begin.truncate(len);
    is_cut || begin.windows(4).any(|it| it == CLUSTER.to_be_bytes())
}

/// After as many frames, one is recorded if it can be.
const MANY: u64 = 100;

/// The frames that a recording has and lacks.
#[derive(Debug)]
struct Gaps<'a> {
    pool: &'a OsStr,
    /// This consumer's own name, by which its figures are found.
    consumer: String,
    caps: &'a Caps,
    /// It was not checked yet whether frames can be recorded.
    is_new: bool,
    /// The frames that it has passed on, of the present producer.
    handed_on: u64,
    /// For each producer of the pool and each connection to it: the frames that were dropped when the first one was recorded, and those
    /// that are missing.
    missed: HashMap<(u32, u64), (Option<u64>, u64)>,
}

impl<'a> Gaps<'a> {
    fn new(pool: &'a OsStr, caps: &'a Caps) -> Self {
        Self {
            pool,
            consumer: format!("xmem record {}", std::process::id()),
            caps,
            is_new: true,
            handed_on: 0,
            missed: HashMap::new(),
        }
    }

    /// The properties of the consumer.
    fn source(&self) -> [String; 2] {
        [
            "max-held=8".to_owned(),
            format!("client-name={}", self.consumer),
        ]
    }

    /// `has_frame`: whether a frame was recorded.
    fn look(&mut self, has_frame: impl FnOnce() -> bool) {
        if let Ok(stats) = xmem_core::discovery::query(self.pool) {
            self.note(&stats);
        }
        if self.is_new && self.handed_on > MANY {
            self.is_new = false;
            if !has_frame() {
                let advice = parameter_sets(self.caps);
                to_stderr(format_args!("no frame can be recorded until now{advice}"));
            }
        }
    }

    fn note(&mut self, stats: &PoolStats) {
        for it in stats.consumers.iter().filter(|it| it.name == self.consumer) {
            self.handed_on = it.received.saturating_sub(it.dropped);
            let (before, missed) = self.missed.entry((stats.pid, it.id)).or_default();
            if self.handed_on > 0 {
                before.get_or_insert(it.dropped);
            }
            // Frames from before the start are dropped first. Encoded ones are also dropped after missed frames.
            let before = before.filter(|_| self.caps.is_raw());
            *missed = it.missed + before.map_or(0, |before| it.dropped.saturating_sub(before));
        }
    }

    fn report(&self) {
        if let Some(text) = self.text() {
            to_stderr(text);
        }
    }

    fn text(&self) -> Option<String> {
        let frames = match self.missed.values().map(|(_, missed)| missed).sum::<u64>() {
            0 => return None,
            1 => "1 frame was".to_owned(),
            missed => format!("{missed} frames were"),
        };
        Some(format!(
            "{frames} missed: the recording has gaps. Record to a faster disk, or have the producer raise history"
        ))
    }
}

/// The format in which FFV1 stores frames of a format without loss. videoconvert alone would choose I420 for most of them.
fn ffv1_format(format: &str) -> Result<&'static str, Error> {
    Ok(match format {
        "I420" | "YV12" | "NV12" | "NV21" | "NV12_4L4" | "NV12_32L32" | "NV12_64Z32" => "I420",
        "YUY2" | "UYVY" | "YVYU" | "VYUY" | "Y42B" | "NV16" | "NV61" => "Y42B",
        "Y444" | "NV24" | "v308" | "IYU2" => "Y444",
        "Y41B" | "IYU1" => "Y41B",
        "YUV9" | "YVU9" => "YUV9",
        "A420" => "A420",
        "AYUV" | "VUYA" | "Y410" | "A444_10LE" | "A444_10BE" => "A444_10LE",
        "RGB" | "BGR" | "RGBx" | "BGRx" | "xRGB" | "xBGR" | "GBR" | "RGBP" | "BGRP" | "RGB16"
        | "BGR16" | "RGB15" | "BGR15" => "BGRx",
        "RGBA" | "BGRA" | "ARGB" | "ABGR" | "GBRA" => "BGRA",
        "GRAY8" => "GRAY8",
        "GRAY16_LE" | "GRAY16_BE" => "GRAY16_LE",
        "P010_10LE" | "P010_10BE" | "I420_10LE" | "I420_10BE" | "NV12_10LE32" | "NV12_10LE40" => {
            "I420_10LE"
        }
        "v210" | "UYVP" | "Y210" | "I422_10LE" | "I422_10BE" | "NV16_10LE32" => "I422_10LE",
        "Y444_10LE" | "Y444_10BE" => "Y444_10LE",
        "A420_10LE" | "A420_10BE" => "A420_10LE",
        "A422_10LE" | "A422_10BE" => "A422_10LE",
        "P012_LE" | "P012_BE" | "I420_12LE" | "I420_12BE" => "I420_12LE",
        "Y212_LE" | "Y212_BE" | "I422_12LE" | "I422_12BE" => "I422_12LE",
        "Y444_12LE" | "Y444_12BE" => "Y444_12LE",
        "r210" | "GBR_10LE" | "GBR_10BE" => "GBR_10LE",
        "BGR10A2_LE" | "RGB10A2_LE" | "GBRA_10LE" | "GBRA_10BE" => "GBRA_10LE",
        "GBR_12LE" | "GBR_12BE" => "GBR_12LE",
        "GBRA_12LE" | "GBRA_12BE" => "GBRA_12LE",
        _ => {
            return Err(format!(
                "frames of the format {format} cannot be recorded without loss: use --h264, or publish another format"
            )
            .into());
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use xmem_core::ConsumerStats;

    #[test]
    fn frames_before_the_first_recorded_one_are_no_gap() {
        let text = |caps: &str, looks: &[(u64, u64, u64)]| {
            let mut stats = PoolStats::default();
            stats.sticky = vec![("caps".to_owned(), caps.to_owned())];
            let caps = Caps::of(&stats).unwrap();
            let mut gaps = Gaps::new(OsStr::new("p"), &caps);
            let mut consumer = ConsumerStats::default();
            consumer.name = gaps.consumer.clone();
            for look in looks {
                (consumer.received, consumer.missed, consumer.dropped) = *look;
                stats.consumers = vec![consumer.clone()];
                gaps.note(&stats);
            }
            gaps.text()
                .map(|text| text.split(':').next().unwrap().to_owned())
        };
        const RAW: &str = "video/x-raw";
        const ENCODED: &str = "video/x-h264";
        for (caps, looks, is) in [
            (ENCODED, &[(9, 0, 7)][..], None),
            (RAW, &[(1, 0, 1), (9, 0, 2)], None),
            (RAW, &[(9, 0, 2), (20, 0, 3)], Some("1 frame was missed")),
            (RAW, &[(9, 2, 1), (20, 2, 2)], Some("3 frames were missed")),
            (
                ENCODED,
                &[(9, 0, 7), (20, 2, 9)],
                Some("2 frames were missed"),
            ),
        ] {
            assert_eq!(text(caps, looks).as_deref(), is);
        }
    }
}
