// SPDX-License-Identifier: MPL-2.0

//! `xmem camera POOL`: a pool as a camera of the desktop.

use std::fs;
use std::mem::replace;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde_json::Value;
use xmem_core::discovery::printable;

use crate::Error;
use crate::caps::Caps;
use crate::child::{self, END_TIMEOUT};
use crate::cli::Camera;
use crate::format::to_stderr;
use crate::launch::{TOOL, decoder, newest_only, not_started, pipeline, property, why_ended};
use crate::tool::{Event, interrupt, is_stopped, start, stop_on_signals};

/// The delay before a restart: it doubles after each run that is shorter than `LONG`.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(30));
const LONG: Duration = Duration::from_secs(10);
/// The first run of the tool loads every plugin.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A tool that takes no frame for this time, while programs show the camera, hangs.
const STUCK: Duration = Duration::from_secs(5);
/// For how long the last frame is shown when no other one comes, in nanoseconds.
const SHOWN: u64 = 1_000_000_000;

pub(crate) fn run(camera: &Camera, verbose: bool) -> Result<(), Error> {
    let sink = sink(camera)?;
    if camera.v4l2.is_none() {
        check_free(&plain_name(camera))?;
    }
    let (sender, events) = channel();
    stop_on_signals(sender.clone())?;
    let name = printable(&camera.pool.to_string_lossy());
    match &camera.v4l2 {
        Some(device) => to_stderr(format_args!("{name}: a camera at {}", device.display())),
        None => to_stderr(format_args!("{name}: a camera of PipeWire")),
    }
    let mut wait = BACKOFF.0;
    loop {
        let begin = Instant::now();
        let mut tool = start(&mut command(camera, &sink), sender.clone())?;
        let mut printed = String::new();
        let mut progress = Progress::of(camera, &tool);
        let end = watch(&tool, &events, &mut printed, &mut progress, verbose);
        if tool.try_wait()?.is_none() {
            tool.kill()?;
        }
        let status = tool.wait()?;
        let reason = match end {
            End::Stopped => return Ok(()),
            End::Stuck => "programs show the camera, but PipeWire takes no picture".to_owned(),
            End::Ended => why_ended(&printed, status) + advice(camera, &printed),
        };
        if printed.contains("erroneous pipeline") {
            return Err(reason.into());
        }
        // pipewiresink ends when the last program that shows the camera leaves.
        let is_left = printed.contains("all buffers have been removed");
        if is_left || begin.elapsed() > LONG {
            wait = BACKOFF.0;
        }
        if !is_left {
            to_stderr(format_args!(
                "{name}: {reason}; starting it again in {wait:?}"
            ));
        }
        if is_stopped(&events, wait) {
            return Ok(());
        }
        wait = (2 * wait).min(BACKOFF.1);
    }
}

/// Why the tool has ended, or is to be ended.
enum End {
    /// This command is to end.
    Stopped,
    Stuck,
    Ended,
}

/// Waits until the tool ends, or should have ended. Interrupts it if this command is to end.
fn watch(
    tool: &Child,
    events: &Receiver<Event>,
    printed: &mut String,
    progress: &mut Progress,
    verbose: bool,
) -> End {
    let mut end = End::Ended;
    let mut deadline: Option<Instant> = None;
    let mut next_look = Instant::now() + STUCK;
    let mut warned = None;
    loop {
        let end_of_wait = deadline.unwrap_or(next_look);
        let left = end_of_wait.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Stop) => {
                end = End::Stopped;
                deadline.get_or_insert(Instant::now() + END_TIMEOUT);
                interrupt(tool);
            }
            Ok(Event::Printed(line)) => {
                if verbose {
                    to_stderr(printable(&line));
                }
                // v4l2sink may wait for its device after an error, and the tool with it.
                if line.starts_with("ERROR: from element") {
                    deadline.get_or_insert(Instant::now() + END_TIMEOUT);
                }
                // The reason of the end is in the last lines.
                if printed.len() > 1 << 16 {
                    printed.clear();
                }
                *printed += &line;
                printed.push('\n');
            }
            Ok(Event::Warned(text)) => {
                if warned.as_ref() != Some(&text) {
                    to_stderr(printable(&text));
                    warned = Some(text);
                }
            }
            Ok(Event::Pictures) => {}
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return end,
            Err(RecvTimeoutError::Timeout) if deadline.is_some() => return end,
            Err(RecvTimeoutError::Timeout) if progress.is_stuck() => return End::Stuck,
            Err(RecvTimeoutError::Timeout) => next_look = Instant::now() + STUCK,
        }
    }
}

/// The frames that the tool takes. pipewiresink 0.3 can wait without end for PipeWire on a busy machine.
struct Progress<'a> {
    pool: &'a Path,
    pid: u32,
    /// The name of the node. `None`: a device, which takes each picture.
    node: Option<String>,
    /// The number of frames that were published, and that the tool has taken, at the last look.
    seen: Option<(u64, u64)>,
}

impl<'a> Progress<'a> {
    fn of(camera: &'a Camera, tool: &Child) -> Self {
        let node = camera.v4l2.is_none().then(|| plain_name(camera));
        Self {
            pool: Path::new(&camera.pool),
            pid: tool.id(),
            node,
            seen: None,
        }
    }

    /// Whether the tool has taken no frame since the last look, while there were some and a program shows the camera.
    fn is_stuck(&mut self) -> bool {
        let Some(node) = &self.node else { return false };
        let stats = xmem_core::discovery::query(self.pool).ok();
        let now = stats.and_then(|stats| {
            let tool = stats.consumers.iter().find(|it| it.pid == self.pid)?;
            Some((stats.published, tool.received))
        });
        let before = replace(&mut self.seen, now);
        let (Some((published, taken)), Some(now)) = (before, now) else {
            return false;
        };
        now.0 > published && now.1 == taken && is_shown(node)
    }
}

/// Whether a program shows the camera.
fn is_shown(node: &str) -> bool {
    let ended = child::run(&mut Command::new("pw-dump"), END_TIMEOUT);
    let Ok(Some(ended)) = ended else { return false };
    let objects: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap_or_default();
    let name = format!("xmem.{node}");
    objects
        .iter()
        .any(|it| it["info"]["props"]["node.name"] == *name && it["info"]["state"] == "running")
}

/// The element that shows the camera to programs. Fails if this machine cannot have such a camera.
fn sink(camera: &Camera) -> Result<String, Error> {
    if let Some(device) = &camera.v4l2 {
        let is_device = fs::metadata(device).is_ok_and(|it| it.file_type().is_char_device());
        if !is_device {
            return Err(format!("there is no device {}: {LOOPBACK}", device.display()).into());
        }
        // v4l2sink can crash if two threads ask it for its caps at the same time, as those of the still picture and of the pool do.
        // typefind answers such questions itself.
        return Ok(format!(
            "typefind ! v4l2sink {} sync=false",
            property("device", device)
        ));
    }
    let mut inspect = Command::new("gst-inspect-1.0");
    let ended = child::run(inspect.arg("pipewiresink"), INSPECT_TIMEOUT).map_err(not_started)?;
    let element = ended.filter(|it| it.status.success()).ok_or(
        "GStreamer has no element pipewiresink: install its plugin for PipeWire (package gstreamer1.0-pipewire)",
    )?;
    // With its own buffers, newer versions wait for a reader, which waits for a frame.
    let buffers = match element.stdout.contains("use-bufferpool") {
        true => " use-bufferpool=false",
        false => "",
    };
    // Without its type, GStreamer reads "10" as a number and warns.
    let text = |name, value| property(name, value).replacen('=', "=(string)", 1);
    let node = text("node.name", format!("xmem.{}", plain_name(camera)));
    let description = text(
        "node.description",
        printable(&String::from_utf8_lossy(own_name(camera))).to_string(),
    );
    Ok(format!(
        "pipewiresink mode=provide sync=false{buffers} \
         stream-properties=p,media.class=Video/Source,media.role=Camera,{node},{description}"
    ))
}

/// The name of the pool without its folder.
fn own_name(camera: &Camera) -> &[u8] {
    let name = Path::new(&camera.pool).file_name().unwrap_or_default();
    let name = name.as_bytes();
    name.strip_suffix(b".sock").unwrap_or(name)
}

/// Characters without a meaning for PipeWire, and for programs that are told the name of a node.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

/// This name, in which other characters are escaped. They are not removed, so that no two names become one.
fn plain_name(camera: &Camera) -> String {
    percent_encode(own_name(camera), PLAIN).to_string()
}

/// Fails if PipeWire has a camera of this name, because programs could not tell the two apart.
fn check_free(name: &str) -> Result<(), Error> {
    let mut list = Command::new("pw-cli");
    let ended = child::run(list.args(["ls", "Node"]), END_TIMEOUT);
    // Without PipeWire, the element reports what is missing.
    let Ok(Some(ended)) = ended else {
        return Ok(());
    };
    if !ended.stdout.contains(&format!("\"xmem.{name}\"")) {
        return Ok(());
    }
    Err(format!(
        "PipeWire has a camera xmem.{name} already: another `xmem camera` shows a pool of this name. End that one, or give this pool \
         another name"
    )
    .into())
}

const LOOPBACK: &str = "load the module, such as `sudo modprobe v4l2loopback video_nr=10 exclusive_caps=1` (package v4l2loopback-dkms)";

/// What to do about an error of the tool.
fn advice(camera: &Camera, printed: &str) -> &'static str {
    let is_sink = |name: &str| printed.lines().any(|line| line.contains(name));
    match &camera.v4l2 {
        None if is_sink("GstPipeWireSink") => {
            ". PipeWire must run in this session: `systemctl --user start pipewire wireplumber` (packages of the same names)"
        }
        Some(_) if is_sink("GstV4l2Sink") => {
            ". The device must be one of v4l2loopback that no other program writes to"
        }
        _ => "",
    }
}

/// Frames of the pool over a still picture, which is seen while there are none. What the camera delivers never changes its form.
fn command(camera: &Camera, sink: &str) -> Command {
    let (width, height) = camera.size;
    // The colours too, because a device of v4l2loopback refuses caps that change.
    let fixed = "interlace-mode=progressive,colorimetry=bt601,chroma-site=jpeg";
    // The pool may be absent, or have other caps later: the tool then fails, and is started again.
    let stats = xmem_core::discovery::query(&camera.pool).ok();
    let caps = stats.as_ref().and_then(Caps::of);
    let is_raw = caps.is_none_or(|it| it.is_raw());
    let size = format!("width={width},height={height},pixel-aspect-ratio=1/1");
    let picture = format!("video/x-raw,format=YUY2,{size}");
    let rate = format!("framerate={}/1", camera.rate);
    // First, because the compositor draws what is linked to it first behind the rest.
    let still = format!(
        "videotestsrc pattern=black num-buffers=1 ! {picture},{rate} \
         ! textoverlay {text} {font} valignment=center halignment=center \
         ! imagefreeze is-live=true ! video/x-raw,{rate} ! queue ! all.sink_0",
        text = property("text", "no signal"),
        font = property("font-desc", "Sans 40"),
    );
    let rest = format!(
        "{}videoconvertscale add-borders=true ! {picture} ! queue ! all.sink_1 \
         compositor name=all sink_1::max-last-buffer-repeat={SHOWN} ! {picture},{rate},{fixed} ! {sink}",
        decoder(is_raw)
    );
    let mut command = child::dependent(TOOL);
    command.args(still.split(' '));
    let source = ["on-eos=wait".to_owned(), newest_only(is_raw)];
    pipeline(command, &camera.pool, &source, &rest)
}
