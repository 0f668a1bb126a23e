// SPDX-License-Identifier: MPL-2.0

//! `xmem share SOURCE --pool POOL`

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use xmem_core::{PoolStats, printable};

use super::show::caps_summary;
use crate::Error;
use crate::child;
use crate::cli::Share;
use crate::format::to_stderr;
use crate::launch::{TOOL, failure, not_started};

/// How long to wait before the source is started again: twice as long each time that it gives no frame.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How often to ask the pool whether frames come.
const LOOK: Duration = Duration::from_secs(1);
/// How long a pipeline that was interrupted may take to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Lines of the tool that are kept for the reason of its end.
const LINES: usize = 100;

enum Event {
    /// SIGINT or SIGTERM.
    Stop,
    /// A line of the tool on standard error.
    Printed(String),
    /// The tool has ended.
    Ended,
}

/// How a run of the source ended.
enum Outcome {
    Stopped,
    /// The source was at its end.
    Over,
    /// The reason, which another run may not have.
    Failed(String),
    /// The reason, which every other run has too.
    Useless(String),
}

pub(crate) fn run(share: &Share, verbose: bool) -> Result<(), Error> {
    let source = Source::of(&share.source)?;
    child::run(Command::new(TOOL).arg("--version"), PATIENCE)
        .map_err(|error| not_started(&error))?;
    let (sender, events) = channel();
    stop_on_signals(sender.clone())?;
    let plays_once = matches!(source, Source::File(_)) && !share.repeat;
    let mut wait = BACKOFF.0;
    to_stderr(format_args!(
        "{source}: sharing it in the pool {}",
        printable(&share.pool.to_string_lossy())
    ));
    loop {
        let mut playing = Playing::start(share, &source, plays_once, sender.clone())?;
        let outcome = playing.watch(share, verbose, &events)?;
        let has_played = playing.published > 0;
        let reason = match outcome {
            Outcome::Stopped => return Ok(()),
            Outcome::Useless(reason) => return Err(reason.into()),
            Outcome::Failed(reason) if plays_once => return Err(reason.into()),
            Outcome::Over if plays_once => return Ok(()),
            // The next round of a file, which may be shorter than the time between two looks at the pool.
            Outcome::Over if share.repeat => continue,
            Outcome::Over => "at its end".to_owned(),
            Outcome::Failed(reason) => reason,
        };
        if has_played {
            wait = BACKOFF.0;
        }
        to_stderr(format_args!(
            "{source}: {reason}; starting it again in {wait:?}"
        ));
        if let Ok(Event::Stop) = events.recv_timeout(wait) {
            return Ok(());
        }
        wait = (2 * wait).min(BACKOFF.1);
    }
}

/// Reports SIGINT and SIGTERM, instead of ending by them.
fn stop_on_signals(events: Sender<Event>) -> Result<(), Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for _ in &mut signals {
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    });
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Test,
    Camera(PathBuf),
    Address(String),
    File(PathBuf),
    /// Elements, as for gst-launch-1.0.
    Pipeline(String),
}

impl Source {
    fn of(source: &OsStr) -> Result<Self, Error> {
        match source.to_str() {
            Some("test") => return Ok(Self::Test),
            Some(text) if text.contains(" ! ") => return Ok(Self::Pipeline(text.to_owned())),
            Some(text) if text.contains("://") => return Ok(Self::Address(text.to_owned())),
            _ => {}
        }
        let path = Path::new(source);
        let unreadable = |error| {
            let path = path.display();
            format!(
                "cannot read {path}: {error}. A source is `test`, a camera, an address, a file or a pipeline"
            )
        };
        let kind = fs::metadata(path).map_err(unreadable)?.file_type();
        if kind.is_dir() {
            return Err(format!("{} is a directory", path.display()).into());
        }
        // Some cameras can be opened once only, so this is before the pipeline opens it.
        File::open(path).map_err(unreadable)?;
        let path = fs::canonicalize(path).map_err(unreadable)?;
        Ok(if kind.is_char_device() {
            Self::Camera(path)
        } else {
            Self::File(path)
        })
    }

    /// The elements that give its frames.
    fn elements(&self) -> Vec<OsString> {
        let words = |words: &str| words.split_whitespace().map(OsString::from).collect();
        match self {
            Self::Test => words(
                "videotestsrc is-live=true ! video/x-raw,width=1280,height=720,framerate=30/1",
            ),
            Self::Camera(path) => {
                let mut device = OsString::from("device=");
                device.push(path);
                let mut elements = vec!["v4l2src".into(), device];
                elements.extend(words("! decodebin"));
                elements
            }
            Self::Address(address) => decoded(address),
            Self::File(path) => decoded(&file_address(path)),
            Self::Pipeline(elements) => words(elements),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Test => "test".to_owned(),
            Self::Camera(path) | Self::File(path) => path.display().to_string(),
            Self::Address(address) => without_password(address),
            Self::Pipeline(_) => "pipeline".to_owned(),
        };
        f.write_str(&printable(&text))
    }
}

/// The video of an address; other streams are not decoded.
fn decoded(address: &str) -> Vec<OsString> {
    let uri = format!("uri={address}");
    [
        "uridecodebin",
        &uri,
        "expose-all-streams=false",
        "caps=video/x-raw(ANY)",
    ]
    .map(OsString::from)
    .into()
}

fn file_address(path: &Path) -> String {
    let mut address = "file://".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                address.push(char::from(*byte));
            }
            _ => {
                let _ = write!(address, "%{byte:02X}");
            }
        }
    }
    address
}

/// What is printed may be kept in a log.
fn without_password(address: &str) -> String {
    let parts = address.split_once("://").and_then(|(scheme, rest)| {
        let host = rest.split('/').next()?;
        let (user, _) = host.rsplit_once('@')?;
        Some((scheme, &rest[user.len() + 1..]))
    });
    parts.map_or_else(
        || address.to_owned(),
        |(scheme, rest)| format!("{scheme}://{rest}"),
    )
}

/// One run of the source.
struct Playing {
    tool: Child,
    /// The newest lines of its standard error.
    printed: Vec<String>,
    /// Frames in the pool.
    published: u64,
    last_frame: Instant,
    /// When it is killed, since it was interrupted and has not ended.
    deadline: Option<Instant>,
}

impl Playing {
    fn start(
        share: &Share,
        source: &Source,
        plays_once: bool,
        events: Sender<Event>,
    ) -> Result<Self, Error> {
        let mut command = child::dependent(TOOL);
        command.arg("--quiet").args(source.elements());
        if share.format != "any" {
            let caps = format!("video/x-raw,format={}", share.format);
            command.args(["!", "videoconvert", "!", &caps]);
        }
        let mut pool = OsString::from("pool=");
        pool.push(&share.pool);
        command.args(["!", "xmemsink"]).arg(pool);
        // Else each restart would end the consumers' streams.
        command
            .arg(format!("send-eos={plays_once}"))
            .args(&share.set);
        command
            .stdin(Stdio::null())
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
            tool,
            printed: Vec::new(),
            published: 0,
            last_frame: Instant::now(),
            deadline: None,
        })
    }

    /// Waits for its end.
    fn watch(
        &mut self,
        share: &Share,
        verbose: bool,
        events: &Receiver<Event>,
    ) -> Result<Outcome, Error> {
        let (mut is_stopped, mut is_stalled) = (false, false);
        let mut next_look = Instant::now() + LOOK;
        loop {
            let time = next_look.saturating_duration_since(Instant::now());
            match events.recv_timeout(time) {
                Ok(Event::Stop) if is_stopped => self.tool.kill()?,
                Ok(Event::Stop) => {
                    is_stopped = true;
                    self.interrupt();
                }
                Ok(Event::Printed(line)) => {
                    if verbose {
                        to_stderr(printable(&line));
                    }
                    if self.printed.len() < LINES {
                        self.printed.push(line);
                    }
                }
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() < next_look {
                continue;
            }
            next_look = Instant::now() + LOOK;
            self.look(share);
            match self.deadline {
                Some(deadline) if Instant::now() > deadline => self.tool.kill()?,
                None if self.last_frame.elapsed() > share.timeout => {
                    is_stalled = true;
                    self.interrupt();
                }
                _ => {}
            }
        }
        let status = self.tool.wait()?;
        Ok(if is_stopped {
            Outcome::Stopped
        } else if is_stalled {
            Outcome::Failed(format!("no frame for {:?}", share.timeout))
        } else if status.success() {
            Outcome::Over
        } else {
            let stderr = self.printed.join("\n");
            let reason = match stderr.contains("ERROR") || stderr.contains("WARNING") {
                true => failure(&stderr).to_string(),
                false => format!("{TOOL} ended: {status}"),
            };
            let repeats = self.published == 0 && is_repeated(&stderr);
            if repeats {
                Outcome::Useless(reason)
            } else {
                Outcome::Failed(reason)
            }
        })
    }

    /// Reads how many frames there are.
    fn look(&mut self, share: &Share) {
        let stats = xmem_core::query(&share.pool).ok();
        // Another producer may have the pool.
        let stats = stats.filter(|stats: &PoolStats| stats.pid == self.tool.id());
        let Some(stats) = stats.filter(|stats| stats.published != self.published) else {
            return;
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_recognized() {
        let of = |text: &str| Source::of(OsStr::new(text));
        assert_eq!(of("test").unwrap(), Source::Test);
        assert_eq!(of("/dev/null").unwrap(), Source::Camera("/dev/null".into()));
        let rtsp = of("rtsp://user:secret@host:554/a").unwrap();
        assert_eq!(
            rtsp,
            Source::Address("rtsp://user:secret@host:554/a".into())
        );
        assert_eq!(rtsp.to_string(), "rtsp://host:554/a");
        assert_eq!(
            of("rtsp://host/a@b").unwrap().to_string(),
            "rtsp://host/a@b"
        );
        assert!(matches!(of("a ! b"), Ok(Source::Pipeline(_))));
        for (wrong, part) in [
            ("/none", "cannot read /none: No such file"),
            ("/", "/ is a directory"),
        ] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with(part), "{error}");
        }
    }

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(
            file_address(Path::new("/a b/ü.mp4")),
            "file:///a%20b/%C3%BC.mp4"
        );
    }
}
