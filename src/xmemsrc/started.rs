// SPDX-License-Identifier: MPL-2.0

//! The state of a source between start and stop.

use std::mem::{replace, take};
use std::sync::{Arc, Mutex};

use xmem_core::{Delivery, FrameInfo, FrameMeta, ReadLease, follow::Follower};

use super::{
    key_frame_gate::KeyFrameGate,
    settings::Settings,
    source::Source,
    stream::{Snapshot, Stream},
    times::{Stamper, Times},
};
use crate::{cuda, lock, stream::frame::AFTER_GAP};

/// The state of a started source.
#[derive(Debug)]
pub(super) struct Run {
    /// As they were at the start; they can be changed only while the source is stopped.
    settings: Settings,
    follower: Follower,
    started: Started,
}

impl Run {
    pub(super) fn new(settings: Settings, follower: Follower) -> Self {
        Self {
            started: Started::new(&settings),
            settings,
            follower,
        }
    }

    pub(super) fn parts(&mut self) -> (&Settings, &mut Follower, &mut Started) {
        (&self.settings, &mut self.follower, &mut self.started)
    }
}

/// The run, if there is one. The streaming thread takes it out while it makes a buffer. In a box, so that it is not moved.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Option<Box<Run>>>);

impl Running {
    pub(super) fn put(&self, run: Box<Run>) {
        let before = lock(&self.0).replace(run);
        drop(before);
    }

    pub(super) fn take(&self) -> Option<Box<Run>> {
        lock(&self.0).take()
    }

    /// Buffers on their way were discarded by a flush. The next frames may refer to them.
    pub(super) fn flush(&self) {
        if let Some(run) = &mut *lock(&self.0) {
            run.started.note_gap();
        }
    }

    /// Disconnects at the end of the stream. The follower connects again if it is asked for more.
    pub(super) fn leave(&self) {
        let left = lock(&self.0).as_mut().map(|run| {
            run.started.stream.leave();
            run.follower.leave()
        });
        // Outside of the lock.
        drop(left);
    }
}

/// The warnings that are posted once to the application.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    Copies,
    Drops,
    Misses,
}

/// Where frames of a producer become GstCudaMemory, and the format that it was made for.
pub(super) type Home = (Arc<cuda::Home>, gst_video::VideoInfo);

/// How far the source has come in the stream.
#[derive(Debug)]
pub(super) struct Started {
    /// Version of this producer's sticky state that has been sent downstream.
    sticky_version: Option<u64>,
    /// Sequence of the frame that would follow the last one without a gap.
    next_sequence: Option<u64>,
    /// The next buffer does not follow the last one.
    discont: bool,
    gate: KeyFrameGate,
    /// No frame of this producer has been sent downstream.
    header_is_due: bool,
    stamper: Stamper,
    stream: Snapshot,
    reported: [bool; Report::Misses as usize + 1],
    home: Option<Home>,
}

impl Started {
    fn new(settings: &Settings) -> Self {
        Self {
            sticky_version: None,
            next_sequence: None,
            discont: false,
            gate: KeyFrameGate::default(),
            header_is_due: true,
            stamper: Stamper::new(settings),
            stream: Snapshot::default(),
            reported: Default::default(),
            home: None,
        }
    }

    /// The pipeline plays.
    pub(super) fn begin(&mut self) {
        self.stamper.begin();
    }

    /// There is a connection to a producer. If it has resumed the stream, some frames may be missing, and the rest goes on.
    pub(super) fn join(&mut self, has_resumed: bool, delivery: Delivery) {
        self.sticky_version = None;
        self.home = None;
        self.stream.leave();
        if !has_resumed {
            self.next_sequence = None;
            self.gate = KeyFrameGate::default();
            self.header_is_due = true;
            self.stamper.begin_producer(delivery);
        }
    }

    /// Frames are missing before the next one, which may refer to them.
    pub(super) fn note_gap(&mut self) {
        self.discont = true;
        self.gate.close();
    }

    /// Takes the place of an entry in the sequence. Returns whether frames were missed after the first one.
    pub(super) fn follow_sequence(&mut self, info: &FrameInfo, meta: &FrameMeta) -> bool {
        let has_begun = self.next_sequence.is_some();
        let missed = self.next_sequence != Some(info.sequence);
        // Or the producer had to leave some out.
        if missed || meta.flags & AFTER_GAP != 0 {
            self.note_gap();
        }
        self.next_sequence = info.sequence.checked_add(1);
        missed && has_begun
    }

    /// Whether this sticky state was sent downstream, for frames that are handed on there. `None`: not known from a frame.
    pub(super) fn has_sticky(&self, version: u64, on_device: Option<bool>) -> bool {
        self.sticky_version == Some(version) && !self.stream.is_elsewhere(on_device)
    }

    pub(super) fn note_sticky(&mut self, version: u64) {
        self.sticky_version = Some(version);
    }

    /// Takes over the changes of the stream.
    pub(super) fn refresh(&mut self, stream: &Stream) {
        stream.refresh(&mut self.stream);
    }

    pub(super) fn stream(&self) -> &Snapshot {
        &self.stream
    }

    pub(super) fn stream_mut(&mut self) -> &mut Snapshot {
        &mut self.stream
    }

    /// Whether the next buffer begins after a gap. Then that is noted as sent.
    pub(super) fn take_discont(&mut self) -> bool {
        take(&mut self.discont)
    }

    /// Whether the stream's header comes before the next buffer.
    pub(super) fn is_header_due(&self) -> bool {
        self.header_is_due
    }

    pub(super) fn note_header(&mut self) {
        self.header_is_due = false;
    }

    /// Whether a frame can be decoded. Asks for a key frame if not.
    pub(super) fn is_decodable(&mut self, source: Source<'_>, meta: &FrameMeta) -> bool {
        self.gate.is_decodable(source, meta)
    }

    /// The stream is over. Warns if its frames were dropped for want of a key frame.
    pub(super) fn end(&mut self, source: Source<'_>) {
        self.gate.warn(source, true);
    }

    pub(super) fn stamp(&mut self, source: Source<'_>, lease: &ReadLease) -> Times {
        self.stamper
            .stamp(source.element, lease, self.stream.course())
    }

    /// Whether this is to be reported. Only the first time.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place for each variant of `Report`"
    )]
    pub(super) fn reports(&mut self, report: Report) -> bool {
        !replace(&mut self.reported[report as usize], true)
    }

    pub(super) fn home(&self) -> Option<&Home> {
        self.home.as_ref()
    }

    pub(super) fn set_home(&mut self, home: Home) {
        self.home = Some(home);
    }
}
