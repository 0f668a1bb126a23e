// SPDX-License-Identifier: MPL-2.0

//! One run of GStreamer's tool.

use std::ffi::OsStr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use xmem_core::discovery::{printable, query};
use xmem_core::{ConnectError, PoolStats};

use super::source::{ONLY_NEEDED, Source};
use crate::Error;
use crate::child::{self, END_TIMEOUT};
use crate::cli::{Also, Share};
use crate::format::to_stderr;
use crate::launch::{CONVERT, TOOL, property, why_ended};
use crate::pools::caps_summary;
use crate::tool::{self, Event};

/// A picture stays. The file is read once. Without a queue, imagefreeze allows no other latency in the pipeline.
const STILL: &str = "! imagefreeze is-live=true ! video/x-raw,framerate=10/1 ! queue";
/// Without it, some sources allow no other latency in the pipeline, such as that of `--also`.
const ROOM: &str = "! queue max-size-buffers=2";

/// The interval between queries of the pool. The shorter one is for `--on-demand`, and for the frames of a short film in a loop.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// The time for which a source on demand stays open without a consumer, because a consumer may return.
const LINGER: Duration = Duration::from_secs(5);
/// The name of the consumers that make smaller frames.
const OWN: &str = "xmem share";
/// The number of lines of the tool's output that are kept to find the reason of its end.
const LINES: usize = 100;
/// The number of warnings that are kept so that none of them is printed again.
const WARNINGS: usize = 8;

/// The result of a run.
pub(super) enum Outcome {
    Stopped,
    /// The source has ended.
    Eos,
    /// With `--on-demand`: a consumer joined while the source was closed, or the last one left while it was open.
    Changed,
    /// The source is to be opened as one that sends pictures.
    Pictures,
    /// The reason of a failure that may not happen in another run.
    Failed(String),
    /// The reason of a failure that happens in every run.
    Fatal(String),
}

/// One run of the tool, with or without a source.
pub(super) struct Playing {
    /// Without a source, the pool exists so that consumers can join it.
    has_source: bool,
    tool: Child,
    /// The newest lines of the tool's standard error.
    printed: Vec<String>,
    /// The newest warnings.
    warned: Vec<String>,
    /// The number of frames that were published.
    pub(super) published: u64,
    last_frame: Instant,
    has_pool: bool,
    /// Why the pool cannot be looked at, if its producer has another version.
    other_version: Option<String>,
    has_consumers: bool,
    pub(super) last_consumer: Instant,
    /// The time at which the tool is killed, after it was interrupted.
    deadline: Option<Instant>,
}

impl Playing {
    /// `has_alpha`: all streams are decoded, which decoders of video with alpha need.
    pub(super) fn start(
        share: &Share,
        source: Option<&Source>,
        plays_once: bool,
        has_alpha: bool,
        events: Sender<Event>,
    ) -> Result<Self, Error> {
        let mut command = child::dependent(TOOL);
        match source {
            Some(source) => {
                if source.is_told_by_messages() {
                    command.arg("-m");
                }
                command.args(frames(share, source, has_alpha))
            }
            // It waits: nothing is written to its standard input.
            None => command.arg("fdsrc"),
        };
        // Without send-eos=false each restart would end the consumers' streams.
        let publish = |command: &mut Command, elements: Vec<String>, pool: &OsStr| {
            command
                .args(elements)
                .args(["!", "xmemsink", &property("pool", pool)]);
            command
                .arg(format!("send-eos={plays_once}"))
                .args(&share.set);
        };
        publish(&mut command, Vec::new(), &share.pool);
        for also in &share.also {
            let elements = match source {
                Some(_) => smaller(share, also),
                None => vec!["fdsrc".to_owned()],
            };
            publish(&mut command, elements, also.pool.as_ref());
            // Otherwise all sinks would wait for its first frame, which comes after theirs.
            command.arg("async=false");
        }
        command.stdin(if source.is_some() {
            Stdio::null()
        } else {
            Stdio::piped()
        });
        let tool = tool::start(&mut command, events)?;
        Ok(Self {
            has_source: source.is_some(),
            tool,
            printed: Vec::new(),
            warned: Vec::new(),
            published: 0,
            last_frame: Instant::now(),
            has_pool: false,
            other_version: None,
            has_consumers: false,
            last_consumer: Instant::now(),
            deadline: None,
        })
    }

    /// Waits until the run ends.
    pub(super) fn watch(
        &mut self,
        share: &Share,
        verbose: bool,
        source: &Source,
        events: &Receiver<Event>,
    ) -> Result<Outcome, Error> {
        let interval = if share.on_demand || share.repeat {
            POLL_INTERVALS.1
        } else {
            POLL_INTERVALS.0
        };
        // The result if the tool was interrupted.
        let mut outcome = None;
        let mut next_look = Instant::now() + interval;
        loop {
            let time = next_look.saturating_duration_since(Instant::now());
            match events.recv_timeout(time) {
                Ok(Event::Stop) if matches!(outcome, Some(Outcome::Stopped)) => self.tool.kill()?,
                Ok(Event::Stop) => {
                    outcome = Some(Outcome::Stopped);
                    self.interrupt();
                }
                Ok(Event::Pictures) => {
                    if self.has_source && outcome.is_none() && source.is_told_by_messages() {
                        outcome = Some(Outcome::Pictures);
                        self.interrupt();
                    }
                }
                Ok(Event::Printed(line)) => {
                    let line = source.without_secrets(&line);
                    if verbose {
                        to_stderr(printable(&line));
                    }
                    if self.printed.len() == LINES {
                        self.printed.remove(0);
                    }
                    self.printed.push(line);
                }
                Ok(Event::Warned(text)) => {
                    let text = source.without_secrets(&text);
                    // A decoder may post the same ones for each frame.
                    if !self.warned.contains(&text) {
                        to_stderr(printable(&text));
                        self.warned.truncate(WARNINGS - 1);
                        self.warned.insert(0, text);
                    }
                }
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + interval;
            self.look(share);
            match self.deadline {
                Some(deadline) if Instant::now() > deadline => self.tool.kill()?,
                Some(_) => {}
                None => {
                    outcome = self.reason_to_end(share);
                    if outcome.is_some() {
                        self.interrupt();
                    }
                }
            }
        }
        let status = self.tool.wait()?;
        Ok(match outcome {
            Some(outcome) => outcome,
            None if status.success() => Outcome::Eos,
            None => self.failure(status),
        })
    }

    fn reason_to_end(&self, share: &Share) -> Option<Outcome> {
        if let Some(error) = &self.other_version {
            return Some(Outcome::Fatal(format!(
                "{error}. If this command made the pool, the producer is GStreamer's plugin: `xmem doctor` shows its file"
            )));
        }
        if !self.has_source {
            return self.has_consumers.then_some(Outcome::Changed);
        }
        if share.on_demand && self.last_consumer.elapsed() > LINGER {
            return Some(Outcome::Changed);
        }
        let is_idle = |idle| self.has_pool && self.last_consumer.elapsed() > idle;
        if share.idle.is_some_and(is_idle) {
            return Some(Outcome::Stopped);
        }
        let is_stalled = self.last_frame.elapsed() > share.timeout;
        is_stalled.then(|| Outcome::Failed(format!("no frame for {:?}", share.timeout)))
    }

    fn failure(&self, status: ExitStatus) -> Outcome {
        let stderr = self.printed.join("\n");
        if self.published == 0 && stderr.contains(NO_FRAME) {
            return Outcome::Eos;
        }
        let reason = why_ended(&stderr, status);
        if self.published == 0 && is_repeated(&stderr) {
            Outcome::Fatal(reason)
        } else {
            Outcome::Failed(reason)
        }
    }

    /// Reads the number of frames, and whether there are consumers.
    fn look(&mut self, share: &Share) {
        // Ignore the statistics of another producer of the pool.
        let is_ours = |stats: &PoolStats| stats.pid == self.tool.id();
        let stats = match query(&share.pool) {
            Ok(stats) if is_ours(&stats) => stats,
            Err(error @ ConnectError::OtherVersion { .. }) => {
                self.other_version = Some(error.to_string());
                return;
            }
            _ => return,
        };
        let also = share.also.iter().filter_map(|it| query(&it.pool).ok());
        let also = also.filter(is_ours);
        let pools = also.chain([stats.clone()]);
        let mut consumers = pools.flat_map(|it| it.consumers);
        self.has_consumers = consumers.any(|it| !it.leaving && it.name != OWN);
        // GStreamer may have needed long to make the pool.
        let is_new = share.idle.is_some() && !self.has_pool;
        if self.has_consumers || is_new {
            self.last_consumer = Instant::now();
        }
        self.has_pool = true;
        // The pool waits, not the source.
        let is_slowed = stats.consumers.iter().any(|it| it.waited_for_ns > 0);
        if is_slowed || (!self.has_consumers && share.waits_for_consumers()) {
            self.last_frame = Instant::now();
        }
        if stats.published == self.published {
            return;
        }
        if self.published == 0 {
            let format = caps_summary(&stats).unwrap_or_default();
            to_stderr(format_args!(
                "pool {}: {}",
                printable(&stats.pool),
                printable(&format)
            ));
        }
        self.published = stats.published;
        self.last_frame = Instant::now();
    }

    /// A second signal would end the tool before it has closed the pool.
    fn interrupt(&mut self) {
        if self.deadline.is_none() {
            self.deadline = Some(Instant::now() + END_TIMEOUT);
            tool::interrupt(&self.tool);
        }
    }
}

/// Elements that make the frames of the pool. `has_alpha`: see [`Playing::start`].
fn frames(share: &Share, source: &Source, has_alpha: bool) -> Vec<String> {
    let elements = source.elements(share.latency).into_iter();
    let elements = elements.filter(|it| !has_alpha || it != ONLY_NEEDED);
    let mut frames: Vec<String> = elements.collect();
    if source.is_picture() {
        frames.extend(STILL.split(' ').map(str::to_owned));
    }
    if !share.also.is_empty() {
        frames.extend(ROOM.split(' ').map(str::to_owned));
    }
    if share.format != "any" {
        let caps = format!("! {CONVERT} ! video/x-raw,format={}", share.format);
        frames.extend(caps.split(' ').map(str::to_owned));
    }
    frames
}

/// Part of decodebin's error for films that end without a frame. Before GStreamer 1.28, some of them ended without an error.
const NO_FRAME: &str = "all streams without buffers";

/// Whether a film has a frame, or that cannot be found out. Decodes the first one, because a short film ends before its pool is
/// looked at.
pub(super) fn has_frame(share: &Share, source: &Source, has_alpha: bool) -> bool {
    let mut command = child::dependent(TOOL);
    command
        .arg("--quiet")
        .args(frames(share, source, has_alpha))
        .args("! identity error-after=1 ! fakesink".split(' '));
    let ended = child::run(&mut command, END_TIMEOUT);
    !matches!(ended, Ok(Some(ended)) if ended.status.success() || ended.stderr.contains(NO_FRAME))
}

/// Elements that read the pool and scale its frames. The source writes into the slots of the pool, which it could not before a tee.
fn smaller(share: &Share, also: &Also) -> Vec<String> {
    let (width, height) = also.size;
    let rate = also
        .rate
        .map(|it| format!("videorate ! video/x-raw,framerate={it}/1 ! "));
    // videorate keeps the previous frame.
    let rest = format!(
        "newest-only=true max-held=2 ! {}videoconvertscale add-borders=true \
         ! video/x-raw,format={},width={width},height={height},pixel-aspect-ratio=1/1",
        rate.unwrap_or_default(),
        share.format
    );
    let mut elements = vec!["xmemsrc".to_owned(), property("pool", &share.pool)];
    elements.push(property("client-name", OWN));
    elements.extend(rest.split(' ').map(str::to_owned));
    elements
}

/// Whether another run would fail in the same way, because of the pipeline, a missing element or the pool.
fn is_repeated(stderr: &str) -> bool {
    let stays = [
        "erroneous pipeline",
        "missing a plug-in",
        "No URI handler",
        "GstXmemSink",
    ];
    stays.iter().any(|part| stderr.contains(part)) && !is_shortage(stderr)
}

/// The errors of system calls that lack memory, space, descriptors or threads, which may pass.
const SHORTAGES: [Errno; 6] = [
    Errno::NOMEM,
    Errno::NOSPC,
    Errno::MFILE,
    Errno::NFILE,
    Errno::AGAIN,
    Errno::NOBUFS,
];

/// Recognizes these errors by the number that Rust prints with each, because the text around it differs.
fn is_shortage(stderr: &str) -> bool {
    let mut after = stderr.split("(os error ").skip(1);
    after.any(|text| {
        let number = text.split(')').next().and_then(|it| it.parse().ok());
        SHORTAGES.iter().any(|it| number == Some(it.raw_os_error()))
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use xmem_core::{AcquireError, CreateError, RegionError, SystemError};

    use super::*;

    #[test]
    fn only_a_shortage_may_pass() {
        let is_repeated = |error: &dyn std::error::Error| {
            is_repeated(&format!(
                "ERROR: from element /GstPipeline:pipeline0/GstXmemSink:xmemsink0: Cannot share: {error}"
            ))
        };
        let permanent = [Errno::FBIG, Errno::PERM, Errno::ACCESS];
        let errors = SHORTAGES.map(|it| (it, false)).into_iter();
        for (errno, is) in errors.chain(permanent.map(|it| (it, true))) {
            let error = || io::Error::from(errno);
            let no_space = || RegionError::NoSpace {
                size: 1,
                error: error(),
            };
            let exhausted = AcquireError::Exhausted {
                pool: "p".to_owned(),
                slots: 1,
                max_slots: 1,
                max_bytes: 0,
                shortage: Some(Arc::new(no_space().into())),
            };
            let lock = CreateError::Lock {
                path: "/p.lock".into(),
                error: error(),
            };
            let system = SystemError::at("share memory")(error());
            let all: [&dyn std::error::Error; 4] = [&no_space(), &exhausted, &lock, &system];
            for error in all {
                assert_eq!(is_repeated(error), is, "{error}");
            }
        }
        let in_use = CreateError::InUse {
            pool: "p".to_owned(),
            holder: "xmem".to_owned(),
        };
        assert!(is_repeated(&in_use));
        assert!(!super::is_repeated(
            "ERROR: from element GstV4l2Src:v: busy"
        ));
    }
}
