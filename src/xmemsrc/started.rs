// SPDX-License-Identifier: MPL-2.0

//! The state of a source between start and stop.

use std::sync::{Arc, Mutex};

use xmem_core::{Delivery, FrameInfo, FrameMeta, ReadLease, follow::Follower};

use super::{
    key_frame_gate::KeyFrameGate,
    settings::Settings,
    source::Source,
    times::{Stamper, Times},
};
use crate::{cuda, frame::AFTER_GAP, lock};

/// What a started source has.
#[derive(Debug)]
pub(super) struct Run {
    /// As they were at the start; they can be changed only while the source is stopped.
    pub(super) settings: Settings,
    pub(super) follower: Follower,
    pub(super) started: Started,
}

/// The run, if there is one. The streaming thread takes it out while it makes a buffer.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Option<Run>>);

impl Running {
    pub(super) fn put(&self, run: Run) {
        let before = lock(&self.0).replace(run);
        drop(before);
    }

    pub(super) fn take(&self) -> Option<Run> {
        lock(&self.0).take()
    }

    /// Buffers on their way were discarded by a flush. What comes next may refer to them.
    pub(super) fn flush(&self) {
        let kept = lock(&self.0).as_mut().and_then(|run| {
            run.started.note_gap();
            run.started.kept.take()
        });
        drop(kept);
    }

    /// Disconnects at the end of the stream. The follower connects again if it is asked for more.
    pub(super) fn leave(&self) {
        let left = lock(&self.0)
            .as_mut()
            .map(|run| (run.started.kept.take(), run.follower.leave()));
        // Both outside of the lock. The buffer holds a slot.
        drop(left);
    }
}

/// How far the source has come in the stream.
#[derive(Debug)]
pub(super) struct Started {
    /// Version of this producer's sticky state that has been sent downstream.
    sticky_version: Option<u64>,
    /// Sequence of the frame that would follow the last one without a gap.
    next_sequence: Option<u64>,
    /// The next buffer does not follow the last one.
    discont: bool,
    pub(super) gate: KeyFrameGate,
    /// No frame of this producer has been sent downstream.
    pub(super) header_is_due: bool,
    pub(super) stamper: Stamper,
    /// The next buffer, which arrived after a pause had begun.
    pub(super) kept: Option<gst::Buffer>,
    pub(super) reported_copies: bool,
    pub(super) reported_drops: bool,
    pub(super) reported_misses: bool,
    /// Where frames of this producer become GstCudaMemory, and the format that it was made for.
    pub(super) home: Option<(Arc<cuda::Home>, gst_video::VideoInfo)>,
}

impl Started {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            stamper: Stamper::new(settings),
            sticky_version: None,
            next_sequence: None,
            discont: false,
            gate: KeyFrameGate::default(),
            header_is_due: true,
            kept: None,
            reported_copies: false,
            reported_drops: false,
            reported_misses: false,
            home: None,
        }
    }

    /// There is a connection to a producer. If it has resumed the stream, some frames may be missing, and the rest goes on.
    pub(super) fn join(&mut self, has_resumed: bool, delivery: Delivery) {
        self.sticky_version = None;
        self.home = None;
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

    pub(super) fn has_sticky(&self, version: u64) -> bool {
        self.sticky_version == Some(version)
    }

    pub(super) fn note_sticky(&mut self, version: u64) {
        self.sticky_version = Some(version);
    }

    /// Whether the next buffer begins after a gap. Then that is noted as sent.
    pub(super) fn take_discont(&mut self) -> bool {
        std::mem::take(&mut self.discont)
    }

    pub(super) fn stamp(&mut self, source: Source<'_>, lease: &ReadLease) -> Times {
        let course = source.stream.course();
        self.stamper.stamp(source.element, lease, &course)
    }
}
