// SPDX-License-Identifier: MPL-2.0

//! `xmem record POOL FILE --before SECONDS`: keeps the newest frames, and writes clips when it is told.

use std::collections::VecDeque;
use std::io::{self, BufRead, PipeReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGUSR1, SIGXFSZ};

use super::clip::Clip;
use super::matroska::{Frame, Header, Stream};
use super::names::Names;
use crate::Error;
use crate::cli::Record;
use crate::format::to_stderr;
use crate::tool::on_signals;

/// The number of frames that wait for the disk here. More wait in the tool.
const WAITING: usize = 16;
/// How long a clip waits for the next frame when its time is over, and for how long it waits in all. A slow machine is late.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_LATE: Duration = Duration::from_secs(30);

pub(super) enum Event {
    /// The elements that describe the frames that come next.
    Header(Header),
    Frame(Frame),
    /// A clip is to begin, or to go on.
    Trigger,
    Ended,
}

/// Triggers, from now on.
pub(super) struct Triggers {
    sender: SyncSender<Event>,
    events: Receiver<Event>,
}

impl Triggers {
    pub(super) fn new(from_stdin: bool) -> Result<Self, Error> {
        let (sender, events) = sync_channel(WAITING);
        let on_signal = sender.clone();
        on_signals(&[SIGUSR1], move || on_signal.send(Event::Trigger).is_ok())?;
        if from_stdin {
            let on_line = sender.clone();
            thread::Builder::new().spawn(move || {
                for _ in io::stdin().lock().split(b'\n').map_while(Result::ok) {
                    if on_line.send(Event::Trigger).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(Self { sender, events })
    }
}

/// What the thread that writes the clips has done.
#[derive(Debug, Default)]
pub(super) struct Progress {
    has_frame: AtomicBool,
    is_done: AtomicBool,
}

impl Progress {
    /// A frame has come.
    pub(super) fn has_frame(&self) -> bool {
        self.has_frame.load(Ordering::Relaxed)
    }

    /// The last clip is written, or has failed.
    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }
}

/// Frames in memory, and the clip that is being written.
pub(super) struct Clips {
    names: Names,
    before: i64,
    after: Duration,
    memory: usize,
    limit: Option<u64>,
    header: Option<Header>,
    clock: StreamClock,
    /// Begins with a key frame.
    kept: VecDeque<Frame>,
    bytes: usize,
    is_short: bool,
    running: Option<Running>,
    has_failed: bool,
    has_written: bool,
}

/// A clip that was told to begin.
struct Running {
    name: PathBuf,
    /// When it was told to begin, or to go on.
    told: Instant,
    /// The time of its end in the stream. `None`: there was no frame yet.
    end: Option<i64>,
    /// When it ends if frames do not come.
    until: Instant,
    /// `None`: there was no frame.
    clip: Option<Clip>,
}

/// The time in the stream. Frames come later than they were made, by as much as the tool and the disk take, so the earliest ones
/// tell it. Only those of the last two minutes do, because clocks drift.
struct StreamClock {
    begin: Instant,
    minute: u128,
    /// The least distance from a frame's time to its arrival here, in milliseconds, in the minute before this one and in this one.
    least: [Option<i64>; 2],
}

impl Default for StreamClock {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            minute: 0,
            least: [None; 2],
        }
    }
}

impl StreamClock {
    fn note(&mut self, time: i64) {
        let elapsed = self.begin.elapsed().as_millis();
        let minute = elapsed / 60_000;
        if self.minute != minute {
            self.minute = minute;
            self.least = [self.least[1], None];
        }
        let distance = elapsed as i64 - time;
        self.least[1] = Some(self.least[1].map_or(distance, |least| least.min(distance)));
    }

    /// `None`: there was no frame.
    fn now(&self) -> Option<i64> {
        let least = self.least.into_iter().flatten().min()?;
        Some(self.begin.elapsed().as_millis() as i64 - least)
    }
}

impl Clips {
    /// Fails if the names or the folder are wrong.
    pub(super) fn new(record: &Record, before: Duration) -> Result<Self, Error> {
        let names = Names::of(&record.file)?;
        if record.keep.is_some() && !names.are_many() {
            return Err("--keep needs a name with %t, such as clip-%t.mkv".into());
        }
        // A write beyond `ulimit -f` is an error, as on a full disk.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        Ok(Self {
            names,
            before: before.as_millis() as i64,
            after: record.after,
            memory: record.memory as usize,
            limit: record.keep,
            header: None,
            clock: StreamClock::default(),
            kept: VecDeque::new(),
            bytes: 0,
            is_short: false,
            running: None,
            has_failed: false,
            has_written: false,
        })
    }

    /// Reads the tool's stream to its end. Returns whether all clips were written.
    pub(super) fn spawn(
        mut self,
        triggers: Triggers,
        input: PipeReader,
        progress: Arc<Progress>,
    ) -> io::Result<JoinHandle<bool>> {
        let Triggers { sender, events } = triggers;
        thread::Builder::new().spawn(move || read(input, &sender))?;
        thread::Builder::new().spawn(move || {
            self.run(&events, &progress);
            if !self.has_written && !self.has_failed {
                to_stderr("there was no clip to write");
            }
            !self.has_failed
        })
    }

    fn run(&mut self, events: &Receiver<Event>, progress: &Progress) {
        loop {
            let left = self
                .running
                .as_ref()
                .map(|it| it.until.saturating_duration_since(Instant::now()));
            match events.recv_timeout(left.unwrap_or(Duration::from_secs(3600))) {
                Ok(Event::Header(header)) => self.header = Some(header),
                Ok(Event::Frame(frame)) if !progress.is_done() => {
                    progress.has_frame.store(true, Ordering::Relaxed);
                    self.take(frame);
                }
                Ok(Event::Trigger) if !progress.is_done() => self.trigger(),
                Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
            if self
                .running
                .as_ref()
                .is_some_and(|it| Instant::now() >= it.until)
            {
                self.finish();
            }
            if self.running.is_none()
                && !self.names.are_many()
                && (self.has_written || self.has_failed)
            {
                progress.is_done.store(true, Ordering::Relaxed);
            }
        }
    }

    fn trigger(&mut self) {
        let told = Instant::now();
        let until = told + self.after + PATIENCE;
        let end = self.clock.now().map(|now| now + self.after());
        if let Some(running) = &mut self.running {
            (running.told, running.end, running.until) = (told, end, until);
            return;
        }
        self.make_room();
        let name = self.names.at(SystemTime::now());
        self.running = Some(Running {
            name,
            told,
            end,
            until,
            clip: None,
        });
        let kept = std::mem::take(&mut self.kept);
        for frame in &kept {
            self.write(frame);
        }
        self.kept = kept;
    }

    fn after(&self) -> i64 {
        self.after.as_millis() as i64
    }

    fn take(&mut self, frame: Frame) {
        self.clock.note(frame.time);
        let (after, now) = (self.after(), Instant::now());
        if let Some(running) = &mut self.running {
            let latest = running.told + self.after + MOST_LATE;
            if frame.time > *running.end.get_or_insert(frame.time + after) {
                self.finish();
            } else {
                running.until = running.until.max(now + PATIENCE).min(latest);
            }
        }
        self.write(&frame);
        if frame.is_key {
            // The clip of a trigger that comes next begins with the last key frame before its time.
            let begin = frame.time - self.before;
            let older = self
                .kept
                .iter()
                .rposition(|it| it.is_key && it.time <= begin);
            self.forget(older.unwrap_or(0));
        } else if self.kept.is_empty() {
            return;
        }
        self.bytes += frame.bytes.len();
        self.kept.push_back(frame);
        while self.bytes > self.memory {
            let next_key = self.kept.iter().skip(1).position(|it| it.is_key);
            self.forget(next_key.map_or(self.kept.len(), |it| it + 1));
            if !self.is_short {
                self.is_short = true;
                to_stderr(format_args!(
                    "the time before a trigger takes more than {} bytes, so clips begin later: raise --memory",
                    self.memory
                ));
            }
        }
    }

    /// Removes the oldest frames.
    fn forget(&mut self, count: usize) {
        let bytes: usize = self.kept.drain(..count).map(|it| it.bytes.len()).sum();
        self.bytes -= bytes;
    }

    fn write(&mut self, frame: &Frame) {
        let (Some(running), Some(header)) = (&mut self.running, &self.header) else {
            return;
        };
        let written = match &mut running.clip {
            Some(clip) => clip.write(frame),
            None if !frame.is_key => return,
            None => Clip::create(&running.name, header, frame).and_then(|mut clip| {
                let written = clip.write(frame);
                running.clip = Some(clip);
                written
            }),
        };
        if let Err(error) = written {
            self.has_failed = true;
            let name = running.name.display();
            if running.clip.is_some() {
                to_stderr(format_args!(
                    "{name} ends here, because writing failed: {error}"
                ));
                self.finish();
            } else {
                to_stderr(format_args!("cannot write {name}: {error}"));
                self.running = None;
                self.make_room();
            }
        }
    }

    /// Ends the clip that is being written.
    fn finish(&mut self) {
        let Some(Running { name, clip, .. }) = self.running.take() else {
            return;
        };
        let name = name.display();
        match clip.map(Clip::finish) {
            Some(Ok(seconds)) => {
                self.has_written = true;
                to_stderr(format_args!("{name}: {seconds:.1} seconds"));
            }
            Some(Err(error)) => {
                self.has_failed = true;
                to_stderr(format_args!(
                    "cannot complete {name}: {error}. What was written is in {name}.part"
                ));
            }
            None => {
                self.has_failed = true;
                to_stderr(format_args!("there was no frame for {name}"));
            }
        }
        self.make_room();
    }

    fn make_room(&mut self) {
        let Some(limit) = self.limit else { return };
        match self.names.make_room(limit) {
            Ok(removed) => {
                for path in removed {
                    to_stderr(format_args!(
                        "removed {}, to keep the limit",
                        path.display()
                    ));
                }
            }
            Err(error) => {
                self.has_failed = true;
                to_stderr(error);
            }
        }
    }
}

/// Sends what the tool writes, until it ends.
fn read(input: PipeReader, events: &SyncSender<Event>) {
    let mut stream = Stream::new(io::BufReader::new(input));
    let mut has_header = false;
    loop {
        let event = match stream.next() {
            Ok(Some(frame)) if !has_header => {
                has_header = true;
                if events.send(Event::Header(stream.header())).is_err() {
                    return;
                }
                Event::Frame(frame)
            }
            Ok(Some(frame)) => Event::Frame(frame),
            Ok(None) => Event::Ended,
            Err(error) => {
                to_stderr(format_args!("the tool's stream cannot be read: {error}"));
                Event::Ended
            }
        };
        let is_last = matches!(event, Event::Ended);
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::command::record::matroska::CLUSTER;
    use clap::Parser;
    use std::path::Path;

    fn frame(time: i64) -> Event {
        Event::Frame(Frame {
            time,
            is_key: true,
            bytes: vec![0],
        })
    }

    fn clips(file: &Path) -> Clips {
        let words = ["xmem", "record", "p", file.to_str().unwrap()];
        let cli = Cli::parse_from(words.into_iter().chain(["--before=9", "--after=0.01"]));
        let Command::Record(record) = cli.command else {
            panic!("another command")
        };
        Clips::new(&record, Duration::from_secs(9)).unwrap()
    }

    /// The number of frames in a clip of these events. Between the parts they are late.
    fn clip(parts: Vec<Vec<Event>>) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("clip.mkv");
        let mut clips = clips(&file);
        let (sender, events) = sync_channel(WAITING);
        let written = thread::spawn(move || clips.run(&events, &Progress::default()));
        for part in parts {
            for event in part {
                sender.send(event).unwrap();
            }
            thread::sleep(Duration::from_millis(300));
        }
        drop(sender);
        written.join().unwrap();
        let bytes = std::fs::read(&file).unwrap();
        // Each is a key frame, which has a cluster.
        let id = CLUSTER.to_be_bytes();
        bytes.windows(4).filter(|it| *it == id).count()
    }

    fn header() -> Event {
        Event::Header(Header::default())
    }

    #[test]
    fn frames_from_before_the_trigger_that_come_late_are_in_the_clip() {
        let before = vec![header(), frame(0)];
        let late = vec![frame(100), frame(200), frame(1_000_000), frame(1_000_001)];
        assert_eq!(clip(vec![before, vec![Event::Trigger], late]), 3);
    }

    #[test]
    fn without_frames_a_clip_ends() {
        let before = vec![header(), frame(0), frame(1), Event::Trigger];
        assert_eq!(clip(vec![before]), 2);
        // There was no frame before the trigger.
        let first = vec![Event::Trigger, header(), frame(500), frame(600)];
        assert_eq!(clip(vec![first]), 1);
    }

    #[test]
    fn a_clip_without_a_frame_is_a_failure() {
        for (triggers, has_failed) in [(0, false), (1, true)] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("clip.mkv");
            let mut clips = clips(&file);
            let (sender, events) = sync_channel(WAITING);
            sender.send(header()).unwrap();
            for _ in 0..triggers {
                sender.send(Event::Trigger).unwrap();
            }
            sender.send(Event::Ended).unwrap();
            clips.run(&events, &Progress::default());
            assert_eq!(clips.has_failed, has_failed);
            assert!(!file.exists());
        }
    }
}
