// SPDX-License-Identifier: MPL-2.0

//! Pictures of pools. They are made only while a browser requests them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::child;
use crate::launch::{TO_JPEG, TOOL, decoder, failure, newest_only, not_started, pipeline};
use crate::pools::locked;

/// The largest number of pools that are shown at the same time.
const MAX_VIEWERS: usize = 16;
/// A viewer leaves the pool if no picture was requested for this time.
const LINGER: Duration = Duration::from_secs(3);
/// The reason of a failure is shown for this time before the next attempt.
const RETRY: Duration = Duration::from_secs(5);
/// The pause after a viewer that reduced the budgets of the pool's consumers.
const NO_ROOM: Duration = Duration::from_secs(600);
/// The interval between checks whether pictures are still requested.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
/// A low rate and small pictures reduce the load.
const SCALE: &str = "videorate max-rate=8 ! videoscale ! video/x-raw,width=[1,960],height=[1,960],pixel-aspect-ratio=1/1";
/// The limit for the size of a picture.
const MAX_JPEG: usize = 16 << 20;

#[derive(Debug, Clone)]
pub(super) struct Picture {
    /// A number that is unique for all pictures of all pools.
    pub(super) number: u64,
    pub(super) jpeg: Bytes,
}

/// A pool's name, and the process of its producer.
pub(super) type Key = (OsString, u32);

/// The viewers of the pools that are shown.
#[derive(Default)]
pub(super) struct Pictures(Mutex<HashMap<Key, Arc<Viewer>>>);

impl Pictures {
    /// The newest picture of a pool. The first request starts a viewer and returns `None`.
    pub(super) fn ask(&self, pool: &Key, is_raw: bool) -> Result<Option<Picture>, Error> {
        let mut viewers = locked(&self.0);
        viewers.retain(|_, viewer| !viewer.is_over());
        if let Some(viewer) = viewers.get(pool) {
            return Ok(viewer.ask());
        }
        if viewers.values().filter(|it| it.is_running()).count() >= MAX_VIEWERS {
            return Err(format!(
                "pictures of at most {MAX_VIEWERS} pools can be shown at the same time"
            )
            .into());
        }
        let viewer = Arc::new(Viewer::new());
        let (starting, name) = (viewer.clone(), pool.0.clone());
        thread::Builder::new().spawn(move || starting.run(&name, is_raw))?;
        viewers.insert(pool.clone(), viewer);
        Ok(None)
    }

    /// The reason why there are no pictures of a pool at present.
    pub(super) fn failure(&self, pool: &Key) -> Option<String> {
        match &locked(&locked(&self.0).get(pool)?.0).end {
            Some((Err(reason), next)) if Instant::now() < *next => Some(reason.clone()),
            _ => None,
        }
    }

    /// Ends the viewer of a pool: it may be the reason why the pool has no free slot.
    pub(super) fn end_viewer(&self, pool: &Key, reason: &str) {
        if let Some(viewer) = locked(&self.0).get(pool) {
            viewer.end(Err(reason.to_owned()), NO_ROOM);
        }
    }
}

/// A process of GStreamer that is a consumer of the pool.
struct Viewer(Mutex<Seen>);

struct Seen {
    asked: Instant,
    newest: Option<Picture>,
    /// The result of the viewer, and the time from which a request starts another one.
    end: Option<(Result<(), String>, Instant)>,
}

impl Viewer {
    fn new() -> Self {
        Self(Mutex::new(Seen {
            asked: Instant::now(),
            newest: None,
            end: None,
        }))
    }

    fn ask(&self) -> Option<Picture> {
        let mut seen = locked(&self.0);
        seen.asked = Instant::now();
        seen.newest.clone()
    }

    fn is_asked(&self) -> bool {
        let seen = locked(&self.0);
        seen.end.is_none() && seen.asked.elapsed() < LINGER
    }

    fn end(&self, outcome: Result<(), String>, pause: Duration) {
        let end = (outcome, Instant::now() + pause);
        locked(&self.0).end.get_or_insert(end);
    }

    fn is_running(&self) -> bool {
        locked(&self.0).end.is_none()
    }

    /// Whether the next request starts another viewer.
    fn is_over(&self) -> bool {
        let end = &locked(&self.0).end;
        matches!(end, Some((_, next)) if Instant::now() > *next)
    }

    fn run(&self, pool: &OsStr, is_raw: bool) {
        let outcome = self.view(pool, is_raw);
        let pause = if outcome.is_ok() {
            Duration::ZERO
        } else {
            RETRY
        };
        self.end(outcome.map_err(|error| error.to_string()), pause);
    }

    /// Keeps the newest picture as long as pictures are requested. `Err` is the error of GStreamer.
    fn view(&self, pool: &OsStr, is_raw: bool) -> Result<(), Error> {
        let mut printed = tempfile::tempfile()?;
        let source = [
            "client-name=xmem serve",
            "start-from=newest",
            "on-eos=wait",
            // videorate holds one frame.
            "max-held=2",
            &newest_only(is_raw),
        ];
        let source = source.map(str::to_owned);
        let rest = format!(
            "{}{SCALE} ! {TO_JPEG} ! multipartmux ! fdsink sync=false",
            decoder(is_raw)
        );
        let mut tool = child::dependent(TOOL);
        tool.arg("--quiet");
        let mut command = pipeline(tool, pool, &source, &rest);
        command.stdout(Stdio::piped()).stderr(printed.try_clone()?);
        let mut tool = Tool(command.spawn().map_err(not_started)?);
        let stdout = tool.0.stdout.take().ok_or("it has no standard output")?;
        if self.keep_newest(stdout)? {
            Ok(())
        } else {
            Err(reason(&mut printed)?)
        }
    }

    /// Returns `false` at the end of the stream.
    fn keep_newest(&self, mut from: ChildStdout) -> Result<bool, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let (mut unread, mut part) = (Vec::new(), vec![0; 64 << 10]);
        while self.is_asked() {
            if poll(
                &mut [PollFd::new(&from, PollFlags::IN)],
                Some(&POLL_INTERVAL),
            )? == 0
            {
                continue;
            }
            let len = from.read(&mut part)?;
            if len == 0 {
                return Ok(false);
            }
            unread.extend_from_slice(&part[..len]);
            while let Some(jpeg) = take_jpeg(&mut unread)? {
                // Relaxed is sufficient: the counter only makes numbers unique.
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                locked(&self.0).newest = Some(Picture {
                    number,
                    jpeg: jpeg.into(),
                });
            }
        }
        Ok(true)
    }
}

fn reason(printed: &mut File) -> Result<Error, Error> {
    let mut text = Vec::new();
    printed.rewind()?;
    printed.read_to_end(&mut text)?;
    Ok(failure(&String::from_utf8_lossy(&text)))
}

/// Removes the first part of a multipart stream from the buffer. `None`: the part is incomplete.
fn take_jpeg(unread: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(head) = unread.windows(END.len()).position(|it| it == END) else {
        return Ok(None);
    };
    let mut lines = str::from_utf8(&unread[..head])?.lines();
    let len = lines.find_map(|line| line.strip_prefix("Content-Length: "));
    let len: usize = len.ok_or("a part without a length")?.parse()?;
    if len > MAX_JPEG {
        return Err("a picture is too large".into());
    }
    let begin = head + END.len();
    if unread.len() < begin + len {
        return Ok(None);
    }
    let jpeg = unread[begin..begin + len].to_vec();
    unread.drain(..begin + len);
    Ok(Some(jpeg))
}

/// A child process that is killed when the value is dropped.
struct Tool(Child);

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
