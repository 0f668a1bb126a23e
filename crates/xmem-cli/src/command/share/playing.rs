// SPDX-License-Identifier: MPL-2.0

//! One run of GStreamer's tool.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use xmem_core::{PoolStats, printable};

use super::source::Source;
use crate::Error;
use crate::child;
use crate::cli::Share;
use crate::command::show::caps_summary;
use crate::format::to_stderr;
use crate::launch::{TOOL, failure, not_started, property};

/// How often to ask the pool whether frames come, and whether consumers come to a source on demand.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(200));
/// How long a source on demand goes on without a consumer: one may be about to come back.
const LINGER: Duration = Duration::from_secs(5);
/// How long a pipeline that was interrupted may take to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Lines of the tool that are kept for the reason of its end.
const LINES: usize = 100;

pub(super) enum Event {
    /// SIGINT or SIGTERM.
    Stop,
    /// A line of the tool on standard error.
    Printed(String),
    /// The tool has ended.
    Ended,
}

/// How a run ended.
pub(super) enum Outcome {
    Stopped,
    /// The source was at its end.
    Over,
    /// Consumers came to a pool without a source, or left one with a source on demand.
    Changed,
    /// The reason, which another run may not have.
    Failed(String),
    /// The reason, which every other run has too.
    Useless(String),
}

/// One run of the tool, with a source or without one.
pub(super) struct Playing {
    /// Without a source the pool is there for consumers to join.
    has_source: bool,
    tool: Child,
    /// The newest lines of its standard error.
    printed: Vec<String>,
    /// Frames in the pool.
    pub(super) published: u64,
    last_frame: Instant,
    has_consumers: bool,
    pub(super) last_consumer: Instant,
    /// When it is killed, since it was interrupted and has not ended.
    deadline: Option<Instant>,
}

impl Playing {
    pub(super) fn start(
        share: &Share,
        source: Option<&Source>,
        plays_once: bool,
        events: Sender<Event>,
    ) -> Result<Self, Error> {
        let mut command = child::dependent(TOOL);
        command.arg("--quiet");
        match source {
            Some(source) => command.args(source.elements()),
            // Nothing is ever written to its standard input.
            None => command.arg("fdsrc"),
        };
        if source.is_some() && share.format != "any" {
            let caps = format!("video/x-raw,format={}", share.format);
            command.args(["!", "videoconvert", "!", &caps]);
        }
        command.args(["!", "xmemsink", &property("pool", &share.pool)]);
        // Else each restart would end the consumers' streams.
        command
            .arg(format!("send-eos={plays_once}"))
            .args(&share.set);
        command
            .stdin(if source.is_some() {
                Stdio::null()
            } else {
                Stdio::piped()
            })
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        // A signal for this command's group, such as Ctrl+C, would end it before it has closed its pool.
        command.process_group(0);
        let mut tool = command.spawn().map_err(|error| not_started(&error))?;
        let stderr = tool.stderr.take().map(BufReader::new);
        thread::spawn(move || {
            let lines = stderr
                .into_iter()
                .flat_map(|it| it.split(b'\n'))
                .map_while(Result::ok);
            for line in lines {
                let _ = events.send(Event::Printed(String::from_utf8_lossy(&line).into_owned()));
            }
            let _ = events.send(Event::Ended);
        });
        Ok(Self {
            has_source: source.is_some(),
            tool,
            printed: Vec::new(),
            published: 0,
            last_frame: Instant::now(),
            has_consumers: false,
            last_consumer: Instant::now(),
            deadline: None,
        })
    }

    /// Waits for its end.
    pub(super) fn watch(
        &mut self,
        share: &Share,
        verbose: bool,
        events: &Receiver<Event>,
    ) -> Result<Outcome, Error> {
        let interval = if share.on_demand { LOOK.1 } else { LOOK.0 };
        // Why it was interrupted.
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
                Ok(Event::Printed(line)) => {
                    if verbose {
                        to_stderr(printable(&line));
                    }
                    if self.printed.len() == LINES {
                        self.printed.remove(0);
                    }
                    self.printed.push(line);
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
            None if status.success() => Outcome::Over,
            None => self.failure(status),
        })
    }

    fn reason_to_end(&self, share: &Share) -> Option<Outcome> {
        if !self.has_source {
            return self.has_consumers.then_some(Outcome::Changed);
        }
        if share.on_demand && self.last_consumer.elapsed() > LINGER {
            return Some(Outcome::Changed);
        }
        let is_stalled = self.last_frame.elapsed() > share.timeout;
        is_stalled.then(|| Outcome::Failed(format!("no frame for {:?}", share.timeout)))
    }

    fn failure(&self, status: ExitStatus) -> Outcome {
        let stderr = self.printed.join("\n");
        let reason = match stderr.contains("ERROR") || stderr.contains("WARNING") {
            true => failure(&stderr).to_string(),
            false => format!("{TOOL} ended: {status}"),
        };
        if self.published == 0 && is_repeated(&stderr) {
            Outcome::Useless(reason)
        } else {
            Outcome::Failed(reason)
        }
    }

    /// Reads how many frames there are, and whether there are consumers.
    fn look(&mut self, share: &Share) {
        let stats = xmem_core::query(&share.pool).ok();
        // Another producer may have the pool.
        let stats = stats.filter(|stats: &PoolStats| stats.pid == self.tool.id());
        let Some(stats) = stats else {
            return;
        };
        self.has_consumers = stats.consumers.iter().any(|it| !it.leaving);
        if self.has_consumers {
            self.last_consumer = Instant::now();
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

    fn interrupt(&mut self) {
        self.deadline.get_or_insert(Instant::now() + PATIENCE);
        // It ends by itself at the latest now.
        let _ = kill_process(Pid::from_child(&self.tool), Signal::INT);
    }
}

/// Whether another run fails in the same way: the pipeline, an element that is not there, or the pool.
fn is_repeated(stderr: &str) -> bool {
    [
        "erroneous pipeline",
        "missing a plug-in",
        "No URI handler",
        "GstXmemSink",
    ]
    .iter()
    .any(|part| stderr.contains(part))
}
