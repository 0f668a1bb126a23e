// SPDX-License-Identifier: MPL-2.0

//! A session: a thread that reads a pool for one importer, and sends as much as the importer has credit for.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use xmem_core::discovery::printable;
use xmem_core::key_frame::{KeyFrame, KeyFrameGate};
use xmem_core::{FrameMeta, Sticky, monotonic_ns};

use super::mailbox::Mailbox;
use super::source::{Entry, Source, in_host_memory};
use crate::link::{Link, Outlet, Urgency};
use crate::report::{Minute, State, line};
use crate::tai;
use crate::window::{CREDIT_TIME, Sender};
use crate::wire::{Begin, CHUNK_HEAD, Chunk, Down, Ids, Kind, MAX_CHUNK, Place, Probe, Pulse};
use crate::{Error, keys};

/// The longest wait for a frame or a message. After it, the session checks all conditions again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A session ends if its importer is silent for this time.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between attempts to read a pool that cannot be exported.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of frames in flight of a stream that is sent in order. It is high because these frames are small and each is
/// needed.
const MAX_IN_ORDER: usize = 64;

#[derive(Debug, Default)]
struct Figures {
    frames: u64,
    bytes: u64,
    /// Frames and events that were not sent completely.
    given_up: u64,
    /// Frames that were dropped until the next key frame.
    kept_back: u64,
    /// Frames that were copied from a device.
    downloaded: u64,
}

/// The sticky state of the importer.
#[derive(Debug, Default)]
struct Stickies {
    /// The number of the newest state. 0: there is none yet.
    id: u64,
    last: Arc<Sticky>,
    /// The position after the newest state. `None`: it has not been sent.
    end: Option<u64>,
    /// The number of the state that the importer has, from its last credit.
    theirs: u64,
}

#[derive(Debug)]
struct Session {
    /// The pool and the importer, for printed lines.
    title: String,
    mailbox: Arc<Mailbox>,
    down: Outlet,
    data: Outlet,
    source: Source,
    sender: Sender,
    gate: KeyFrameGate,
    stickies: Stickies,
    tai: tai::Reader,
    /// The arrival of the last message.
    heard: Instant,
    /// The importer's pool has consumers.
    wants: bool,
    /// The last probe reported the end of the stream.
    has_told_end: bool,
    /// The stream and the number that the next frame has if no frame is missing.
    next: Option<(u64, u64)>,
    /// The publication time and the number of the last frame.
    last: (i64, u64),
    /// The time of the next attempt to read a pool that cannot be exported.
    again: Option<Instant>,
    state: State,
    figures: Figures,
    minute: Minute,
}

/// A session that was started.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) mailbox: Arc<Mailbox>,
    thread: JoinHandle<()>,
}

impl Active {
    /// Whether its thread has ended.
    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts the thread of a session.
pub(super) fn start(
    link: &Link,
    pool: &str,
    importer: u64,
    name: &str,
    instance: u64,
) -> Result<Active, Error> {
    let ids = Ids {
        exporter: instance,
        importer,
    };
    // The name comes from another host, and the name of a thread must not contain NUL.
    let name = printable(name);
    let source = Source::new(pool, &name);
    let mailbox = Arc::new(Mailbox::new(ids, source.handle()));
    let (link, pool, title) = (link.clone(), pool.to_owned(), format!("{pool} to {name}"));
    let shared = mailbox.clone();
    let thread = std::thread::Builder::new().name(title.clone());
    let thread = thread.spawn(move || {
        // Declare the outlets on this thread, because `start` runs in a callback of Zenoh, which must not block.
        let outlets = link
            .outlet(keys::down(&pool, importer), Urgency::Urgent)
            .and_then(|down| {
                let data = link.outlet(keys::data(&pool, importer), Urgency::Stream)?;
                Ok((down, data))
            });
        match outlets {
            Ok((down, data)) => Session::new(title, shared, down, data, source).run(),
            Err(error) => line(format_args!("{title}: {error}")),
        }
    })?;
    Ok(Active { mailbox, thread })
}

impl Session {
    fn new(
        title: String,
        mailbox: Arc<Mailbox>,
        down: Outlet,
        data: Outlet,
        source: Source,
    ) -> Self {
        let now = Instant::now();
        Self {
            sender: Sender::new(mailbox.ids(), now),
            title,
            mailbox,
            down,
            data,
            source,
            gate: KeyFrameGate::default(),
            stickies: Stickies::default(),
            tai: tai::Reader::default(),
            heard: now,
            wants: false,
            has_told_end: false,
            next: None,
            last: (0, 0),
            again: None,
            state: State::default(),
            figures: Figures::default(),
            minute: Minute::new(now),
        }
    }

    fn run(mut self) {
        loop {
            self.handle_inbox();
            let now = Instant::now();
            if self.minute.is_over(now) {
                self.report();
            }
            if now.saturating_duration_since(self.heard) >= SESSION_TIMEOUT {
                break;
            }
            if !self.is_active(now) {
                self.pause(now);
            } else if self.again.is_some_and(|again| now < again)
                || self.sender.under_way() >= self.limit()
            {
                self.mailbox.wait(POLL_INTERVAL);
            } else if self.again.is_some()
                && let Some(reason) = self.source.refusal()
            {
                self.refuse(reason.to_owned());
            } else {
                self.again = None;
                match self.source.next(POLL_INTERVAL) {
                    Ok(Some(entry)) => self.send(entry),
                    Ok(None) => {}
                    Err(reason) => self.refuse(reason),
                }
                if self.source.has_ended() && !self.has_told_end {
                    self.probe();
                }
            }
        }
        self.report();
        self.state
            .set(&self.title, "forgotten after a minute of silence");
    }

    /// Whether the importer is connected and its pool has consumers.
    fn is_active(&self, now: Instant) -> bool {
        self.wants && !self.sender.is_void(now)
    }

    /// Leaves the pool, and waits for a message.
    fn pause(&mut self, now: Instant) {
        let state = if self.sender.is_void(now) {
            self.sender.forget();
            "no message for 3 seconds"
        } else {
            "no consumers there"
        };
        if self.state.set(&self.title, state) && self.figures.frames > 0 {
            self.report();
        }
        self.source.leave();
        self.next = None;
        self.mailbox.wait(CREDIT_TIME);
    }

    /// Leaves a pool that cannot be exported, and sends the reason to the importer. The session tries again later, because the next
    /// producer of the pool may be acceptable.
    fn refuse(&mut self, reason: String) {
        self.source.leave();
        self.again = Some(Instant::now() + RETRY_INTERVAL);
        let importer = self.mailbox.ids().importer;
        let reason = format!("the pool is not exported: {reason}");
        self.state.set(&self.title, &reason);
        let refusal = Down::Refusal { importer, reason };
        self.down.send(refusal.encode(), Bytes::new());
    }

    /// Reads the importer's messages, answers them, and sends a probe if one is due.
    fn handle_inbox(&mut self) {
        let inbox = self.mailbox.take();
        if let Some(heard) = inbox.heard {
            self.heard = heard;
            self.sender.hear(heard);
        }
        if let Some((credit, heard)) = inbox.credit {
            if self.sender.credit(&credit, heard) {
                self.gate.close();
            }
            self.wants = credit.wants;
            self.stickies.theirs = credit.sticky;
        }
        if let Some((echo, received)) = inbox.echo {
            let pulse = Down::Pulse(Pulse {
                ids: self.mailbox.ids(),
                echo,
                received,
                tai: self.tai.read(Instant::now()),
                sent: monotonic_ns(),
            });
            self.down.send(pulse.encode(), Bytes::new());
        }
        let now = Instant::now();
        if self.sender.is_probe_due(now) && !self.sender.is_void(now) {
            self.probe();
        }
    }

    fn probe(&mut self) {
        let mut probe = Probe {
            place: Place::default(),
            ended: self.source.has_ended(),
            live: self.source.is_live(),
        };
        self.has_told_end = probe.ended;
        probe.place = self.sender.probe(probe.encode().len(), Instant::now());
        self.data.send(probe.encode(), Bytes::new());
    }

    /// The maximum number of frames in flight.
    fn limit(&self) -> usize {
        if self.source.is_in_order() {
            MAX_IN_ORDER
        } else {
            self.sender.limit()
        }
    }

    /// Sends a frame or an event, unless the importer cannot use it.
    fn send(&mut self, entry: Entry) {
        if !self.passes(&entry) {
            self.figures.kept_back += 1;
            return;
        }
        if !self.has_sticky(&entry.sticky) {
            self.give_up();
            return;
        }
        self.state.set(&self.title, "sends");
        let Entry {
            mut meta,
            payload,
            is_downloaded,
            ..
        } = entry;
        let kind = if meta.event { Kind::Event } else { Kind::Frame };
        let attachments = meta.attachments.encode();
        let bytes = payload.len() as u64;
        (meta.offset, meta.size) = (0, bytes);
        let begin = Begin {
            place: Place::default(),
            kind,
            sticky: self.stickies.id,
            stream: entry.stream,
            number: entry.number,
            attached: attachments.len() as u64,
            meta,
        };
        let is_sent = self.item(begin, [payload, attachments.into()]);
        match kind {
            _ if !is_sent => self.give_up(),
            Kind::Frame => {
                self.figures.frames += 1;
                self.figures.bytes += bytes;
                self.figures.downloaded += u64::from(is_downloaded);
            }
            _ => {}
        }
    }

    /// An entry was not sent. Frames of an encoded stream that depend on it are not sent either.
    fn give_up(&mut self) {
        self.figures.given_up += 1;
        self.gate.close();
    }

    /// Whether the importer can use an entry. It cannot use a frame of an encoded stream that depends on a missing frame. Updates
    /// the frame interval.
    fn passes(&mut self, entry: &Entry) -> bool {
        if entry.meta.event {
            return true;
        }
        let after = (entry.stream, entry.number.saturating_add(1));
        let expected = self.next.replace(after);
        let (at, number) = std::mem::replace(&mut self.last, (entry.published_at, entry.number));
        if expected != Some((entry.stream, entry.number)) {
            self.gate.close();
        }
        if let Some(frames) = entry.number.checked_sub(number).filter(|it| *it > 0)
            && let Ok(time) = u64::try_from(entry.published_at.saturating_sub(at))
        {
            self.sender.set_period(Duration::from_nanos(time / frames));
        }
        if !self.source.is_encoded() || self.gate.passes(&entry.meta) {
            return true;
        }
        if self.gate.should_request(Instant::now()) {
            let request = KeyFrame::NOW.encode();
            self.mailbox.request(KeyFrame::NAME, &request);
        }
        false
    }

    /// Sends the sticky state of an entry, unless the importer has it or the state is in flight. Returns whether the entry may be
    /// sent.
    fn has_sticky(&mut self, sticky: &Arc<Sticky>) -> bool {
        let stickies = &mut self.stickies;
        if stickies.id == 0 || !Arc::ptr_eq(&stickies.last, sticky) {
            if stickies.id == 0 || stickies.last != *sticky {
                stickies.id += 1;
                stickies.end = None;
            }
            stickies.last = sticky.clone();
        }
        let is_under_way = |end| !self.sender.is_acknowledged(end);
        if stickies.theirs == stickies.id || stickies.end.is_some_and(is_under_way) {
            return true;
        }
        let bytes = in_host_memory(sticky).encode();
        let begin = Begin {
            place: Place::default(),
            kind: Kind::Sticky,
            sticky: stickies.id,
            stream: 0,
            number: 0,
            attached: bytes.len() as u64,
            meta: FrameMeta::default(),
        };
        let is_sent = self.item(begin, [Bytes::new(), bytes.into()]);
        self.stickies.end = is_sent.then(|| self.sender.position());
        is_sent
    }

    /// Sends an item. Returns `false` if it was given up: see [`waits_for_room`](Self::waits_for_room).
    fn item(&mut self, begin: Begin, parts: [Bytes; 2]) -> bool {
        self.sender.begin(begin.kind == Kind::Frame, Instant::now());
        let is_sent = self.try_item(begin, parts);
        self.sender.finish();
        is_sent
    }

    fn try_item(&mut self, mut begin: Begin, parts: [Bytes; 2]) -> bool {
        let total = begin.total();
        let len = begin.encode().len();
        if !self.waits_for_room(len) {
            return false;
        }
        begin.place = self.sender.place(len, Instant::now());
        self.data.send(begin.encode(), Bytes::new());
        let mut offset = 0;
        for mut part in parts {
            while !part.is_empty() {
                let bytes = part.split_to(part.len().min(MAX_CHUNK));
                let (len, end) = (CHUNK_HEAD + bytes.len(), offset + bytes.len() as u64);
                if !self.waits_for_room(len) {
                    return false;
                }
                let chunk = Chunk {
                    place: self.sender.place(len, Instant::now()),
                    offset,
                    last: end == total,
                    bytes: &[],
                };
                self.data.send(chunk.head(), bytes);
                offset = end;
            }
        }
        true
    }

    /// Waits until the window has room for a message. Returns `false` if the importer is silent, acknowledges nothing, or no longer
    /// has consumers.
    fn waits_for_room(&mut self, len: usize) -> bool {
        while !self.sender.has_room(len) {
            self.mailbox.wait(POLL_INTERVAL);
            self.handle_inbox();
            let now = Instant::now();
            if !self.is_active(now) || self.sender.is_stuck(now) {
                return false;
            }
        }
        true
    }

    fn report(&self) {
        let Figures {
            frames,
            bytes,
            given_up,
            kept_back,
            downloaded,
        } = &self.figures;
        let megabytes = bytes / 1_000_000;
        line(format_args!(
            "{}: {frames} frames, {megabytes} MB, {given_up} given up, {kept_back} kept back for a key frame, \
             {downloaded} copied from a device, {:.1} ms for the last one",
            self.title,
            self.sender.transfer().as_secs_f64() * 1e3,
        ));
    }
}
