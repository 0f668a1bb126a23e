// SPDX-License-Identifier: MPL-2.0

//! The state of a source between start and stop: the parts that its streaming thread works with, its statistics, its position in
//! the stream, and the gate that drops frames until a key frame arrives.

use std::{
    mem::{replace, take},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gst::prelude::*;
use xmem_core::{
    Canceller, ConsumerHandle, Delivery, FrameFlags, FrameInfo, FrameMeta, ReadLease,
    follow::{Follower, FollowerHandle, FollowerStats},
    key_frame::{self, KeyFrame},
};

use super::{
    base::{CAT, Outgoing},
    latency::{self, Latency},
    settings::{Settings, XmemSrcStartFrom},
    stream::{Playback, Snapshot, SourceStream, Units},
    times::{BufferTimes, FromRunningTime, ToRunningTime},
    window::Segment,
};
use crate::{
    buffers::{allocator::Tally, bufferpool::ReceivedBuffers},
    cuda, lock,
    stream::{meta::Losses, timing},
};

/// The parts of a started source that its streaming thread uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SourceContext<'a> {
    pub(super) element: &'a gst_base::BaseSrc,
    /// The settings at the start.
    pub(super) settings: &'a Settings,
    pub(super) stream: &'a SourceStream,
    pub(super) outgoing: &'a Arc<Outgoing>,
    pub(super) stats: &'a SourceStats,
    pub(super) latency: &'a Latency,
    pub(super) tally: &'a Arc<Tally>,
    pub(super) losses: &'a Losses,
    pub(super) canceller: &'a Canceller,
}

impl SourceContext<'_> {
    /// The latency of the element for frames that are played so.
    pub(super) fn latency(&self, playback: &Playback) -> gst::ClockTime {
        // The deadline may change meanwhile, and does not matter for a comparison.
        let deadline = gst::ClockTime::ZERO;
        let mode = self.settings.timestamp_mode;
        self.latency.answer(playback, mode, deadline)
    }

    /// Asks the producer to keep frames for as long as downstream needs them.
    pub(super) fn ask_to_keep(&self) {
        self.latency.ask(self.stats.consumer(), self.stream);
    }
}

#[derive(Debug, Default)]
pub(super) struct SourceStats {
    zero_copy: AtomicU64,
    undecodable: AtomicU64,
    /// `None`: the source was never started.
    follower: Mutex<Option<FollowerHandle>>,
}

impl SourceStats {
    /// Starts to count at 0, for a new follower.
    pub(super) fn restart(&self, follower: FollowerHandle) {
        *lock(&self.follower) = Some(follower);
        self.zero_copy.store(0, Ordering::Relaxed);
        self.undecodable.store(0, Ordering::Relaxed);
    }

    /// Counts a frame that is sent downstream in place.
    pub(super) fn note_zero_copy(&self) {
        self.zero_copy.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a frame that depends on a key frame that was not received.
    pub(super) fn note_undecodable(&self) {
        self.undecodable.fetch_add(1, Ordering::Relaxed);
    }

    /// The statistics of the follower, `zero-copy` and `undecodable`.
    pub(super) fn get(&self) -> (FollowerStats, u64, u64) {
        let follower = lock(&self.follower).clone();
        let stats = follower.map(|it| it.stats()).unwrap_or_default();
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (stats, count(&self.zero_copy), count(&self.undecodable))
    }

    /// The connection to the present producer. `None`: there is no producer.
    pub(super) fn consumer(&self) -> Option<ConsumerHandle> {
        let follower = lock(&self.follower).clone();
        follower?.consumer()
    }

    /// Requests a key frame from the producer. `false`: there is no producer, or it takes no requests.
    pub(super) fn request(&self, element: &gst_base::BaseSrc, key_frame: KeyFrame) -> bool {
        let Some(consumer) = self.consumer() else {
            return false;
        };
        let asked = consumer.request(KeyFrame::NAME, &key_frame.encode());
        asked
            .inspect_err(|error| {
                gst::debug!(CAT, obj = element, "Cannot ask for {key_frame:?}: {error}");
            })
            .is_ok()
    }
}

/// The state of a started source.
#[derive(Debug)]
pub(super) struct Run {
    /// The settings at the start. They can be changed only while the source is stopped.
    settings: Settings,
    follower: Follower,
    started: Started,
}

impl Run {
    pub(super) fn new(
        settings: Settings,
        follower: Follower,
        mapping: Arc<FromRunningTime>,
        buffers: ReceivedBuffers,
    ) -> Self {
        Self {
            started: Started::new(&settings, mapping, buffers),
            settings,
            follower,
        }
    }

    pub(super) fn parts(&mut self) -> (&Settings, &mut Follower, &mut Started) {
        (&self.settings, &mut self.follower, &mut self.started)
    }
}

/// The run, if the source is started. The streaming thread takes it out while it creates a buffer. The box avoids a copy.
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

    /// A flush discarded buffers. The next frames may depend on them.
    pub(super) fn flush(&self) {
        if let Some(run) = &mut *lock(&self.0) {
            run.started.note_gap();
        }
    }

    /// Disconnects at the end of the stream. The follower connects again if another frame is requested.
    pub(super) fn disconnect(&self) {
        let connection = lock(&self.0).as_mut().map(|run| run.follower.leave());
        // Drop it after the lock is released.
        drop(connection);
    }
}

/// Warnings that are posted once.
#[derive(Debug, Clone, Copy)]
pub(super) enum Report {
    Copies,
    Drops,
    Misses,
}

/// How much of the header of a producer's stream was sent downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// Nothing.
    Due,
    /// All frames until now were parts of it.
    Begun,
    /// All of it, or the stream has none.
    Sent,
}

/// The cache of GstCudaMemory for a producer's frames, and the format of these frames.
pub(super) type FormatCache = (Arc<cuda::MemoryCache>, gst_video::VideoInfo);

/// The position of the source in the stream.
#[derive(Debug)]
pub(super) struct Started {
    /// Version of this producer's sticky state that was sent downstream.
    sticky_version: Option<u64>,
    /// Sequence of the entry that follows the last one without a gap.
    next_sequence: Option<u64>,
    /// As `next_sequence`, after the entry that is being taken. It is lost if its frame vanishes while it is copied.
    then_next: Option<u64>,
    /// When the last entry was published, on CLOCK_MONOTONIC.
    published_at: i64,
    /// The pipeline's base time at the last gap. A pause changes it.
    base_time: Option<gst::ClockTime>,
    /// The next buffer is not continuous with the last one.
    discont: bool,
    /// A frame was sent downstream since the join, the last gap or the last pause.
    has_begun: bool,
    gate: KeyFrameGate,
    header: Header,
    /// The beginning of the present stream was missed.
    has_joined_late: bool,
    to_running_time: ToRunningTime,
    stream: Snapshot,
    reported: [bool; Report::Misses as usize + 1],
    cache: Option<FormatCache>,
}

impl Started {
    fn new(settings: &Settings, mapping: Arc<FromRunningTime>, buffers: ReceivedBuffers) -> Self {
        Self {
            sticky_version: None,
            next_sequence: None,
            then_next: None,
            published_at: 0,
            base_time: None,
            discont: false,
            has_begun: false,
            gate: KeyFrameGate::default(),
            header: Header::Due,
            has_joined_late: false,
            to_running_time: ToRunningTime::new(settings, mapping),
            stream: Snapshot::new(buffers),
            reported: Default::default(),
            cache: None,
        }
    }

    /// The pipeline changes to PLAYING.
    pub(super) fn begin(&mut self) {
        self.to_running_time.begin();
    }

    /// Called after a join. If the consumer has resumed the stream of the same producer, only some frames may be missing, and
    /// the stream continues.
    pub(super) fn join(&mut self, has_resumed: bool, delivery: Delivery) {
        self.sticky_version = None;
        self.cache = None;
        if !has_resumed {
            self.next_sequence = None;
            self.gate = KeyFrameGate::default();
            self.header = Header::Due;
            self.has_begun = false;
            self.to_running_time.begin_producer(delivery);
        }
    }

    /// Frames before the next one are missing. It may depend on them.
    pub(super) fn note_gap(&mut self) {
        self.discont = true;
        self.has_begun = false;
        self.gate.close();
    }

    /// Compares the sequence of an entry with the last one that was taken. Returns whether it is the next one.
    pub(super) fn follow_sequence(
        &mut self,
        source: SourceContext<'_>,
        info: &FrameInfo,
        meta: &FrameMeta,
    ) -> bool {
        let is_next = self.next_sequence == Some(info.sequence);
        if !is_next {
            self.note_jump(source, info);
        }
        // Frames are missing on the producer's side.
        if meta.flags.contains(FrameFlags::AFTER_GAP) {
            self.note_gap();
        }
        self.then_next = info.sequence.checked_add(1);
        self.published_at = info.published_at;
        is_next
    }

    /// The entry whose sequence was compared last is of another stream than the one before it. `is_first`: no entry between them was
    /// missed. Returns the segment that applies. `None`: that of GstBaseSrc.
    #[cold]
    pub(super) fn begin_stream(
        &mut self,
        element: &gst_base::BaseSrc,
        units: Units,
        is_first: bool,
    ) -> Option<&Segment> {
        self.header = Header::Due;
        self.has_joined_late &= !is_first;
        self.to_running_time.begin_stream(element, units)
    }

    /// The entry whose sequence was compared last was taken.
    pub(super) fn note_taken(&mut self) {
        self.next_sequence = self.then_next;
    }

    /// The entry is the producer's first one that was taken, or entries between it and the last one were not taken. Warns once of
    /// missed frames, which otherwise only the frame rate would show.
    #[cold]
    fn note_jump(&mut self, source: SourceContext<'_>, info: &FrameInfo) {
        let base_time = source.element.base_time();
        let is_paused = source.element.current_state() < gst::State::Playing;
        let was_paused = replace(&mut self.base_time, base_time) != base_time || is_paused;
        let Some(expected) = self.next_sequence else {
            self.has_joined_late = info.sequence > 0;
            return self.note_gap();
        };
        self.has_joined_late = true;
        if self.header == Header::Begun {
            self.header = Header::Due;
        }
        // Statistics count what was missed beyond the limit.
        if source.settings.limits_rate() {
            return;
        }
        self.note_gap();
        if source.settings.newest_only {
            return;
        }
        self.to_running_time.note_missed();
        // Who pauses a live stream misses frames on purpose.
        if !was_paused && self.reports(Report::Misses) {
            // A source that is not held up takes a frame when it is published.
            let busy = timing::elapsed(self.published_at, xmem_core::monotonic_ns());
            let missed = info.sequence.saturating_sub(expected);
            let is_encoded = !source.stream.has_only_key_frames();
            let within = timing::elapsed(self.published_at, info.published_at);
            let why = source.latency.why_missed(missed, within, busy, is_encoded);
            gst::warning!(gst::CAT_PERFORMANCE, obj = source.element, "{why}");
            gst::element_warning!(source.element, gst::StreamError::Failed, ("{why}"));
        }
    }

    /// Whether this sticky state was sent downstream, with caps for the memory of the frames. `on_device` is `None` for an
    /// event, which does not show the memory.
    pub(super) fn has_sticky(&self, version: u64, on_device: Option<bool>) -> bool {
        self.sticky_version == Some(version) && !self.stream.differs_in_memory(on_device)
    }

    pub(super) fn note_sticky(&mut self, version: u64) {
        self.sticky_version = Some(version);
    }

    /// Copies the changes of the stream.
    pub(super) fn refresh(&mut self, stream: &SourceStream) {
        stream.refresh(&mut self.stream);
    }

    pub(super) fn stream(&self) -> &Snapshot {
        &self.stream
    }

    pub(super) fn stream_mut(&mut self) -> &mut Snapshot {
        &mut self.stream
    }

    /// Whether a frame is left out because it belongs to the time before the pipeline's start.
    pub(super) fn leaves_out(&mut self, source: SourceContext<'_>, times: &BufferTimes) -> bool {
        times.is_early && self.leaves_out_early(source)
    }

    #[cold]
    fn leaves_out_early(&mut self, source: SourceContext<'_>) -> bool {
        let is_coded = self.stream.playback().is_coded();
        if self.has_begun {
            // Such as a picture before the key frame with which the stream began.
            return true;
        }
        if is_coded {
            self.note_gap();
        }
        // One picture, the newest, may be all that the user wants.
        let is_wanted =
            source.settings.start_from == XmemSrcStartFrom::Newest && self.header == Header::Due;
        is_coded || !is_wanted
    }

    /// Whether the next buffer comes after a gap. Clears the flag.
    pub(super) fn take_discont(&mut self) -> bool {
        self.has_begun = true;
        take(&mut self.discont)
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    pub(super) fn has_joined_late(&self) -> bool {
        self.has_joined_late
    }

    pub(super) fn set_header(&mut self, header: Header) {
        self.header = header;
    }

    /// Whether a frame can be decoded. Requests a key frame if not.
    pub(super) fn is_decodable(&mut self, source: SourceContext<'_>, meta: &FrameMeta) -> bool {
        self.gate.is_decodable(source, meta)
    }

    /// The stream has ended. Warns if its frames were dropped for lack of a key frame.
    pub(super) fn end(&mut self, source: SourceContext<'_>) {
        self.gate.warn(source, true);
    }

    /// The times of an entry.
    pub(super) fn times(&mut self, element: &gst_base::BaseSrc, lease: &ReadLease) -> BufferTimes {
        let playback = self.stream.playback();
        let times = self.to_running_time.stamp(element, lease, playback);
        if self.to_running_time.take_resumed() {
            self.has_begun = false;
        }
        times
    }

    pub(super) fn running_time(&mut self) -> &mut ToRunningTime {
        &mut self.to_running_time
    }

    /// The shift or the delay of the frames has changed.
    #[cold]
    pub(super) fn follow_latency(&self, source: SourceContext<'_>) {
        let playback = self.stream.playback();
        let before = source.latency(playback);
        source.latency.set_delays(self.to_running_time.delays());
        let latency = source.latency(playback);
        if latency != before {
            source.latency.expect(latency);
        } else if self.to_running_time.is_measured() {
            source.latency.expect(gst::ClockTime::ZERO);
        }
        source.ask_to_keep();
        if latency != before {
            latency::changed(source.element);
        }
    }

    /// Whether to post this warning: true once.
    #[expect(
        clippy::indexing_slicing,
        reason = "a place for each variant of `Report`"
    )]
    pub(super) fn reports(&mut self, report: Report) -> bool {
        !replace(&mut self.reported[report as usize], true)
    }

    pub(super) fn cache(&self) -> Option<&FormatCache> {
        self.cache.as_ref()
    }

    pub(super) fn set_cache(&mut self, cache: FormatCache) {
        self.cache = Some(cache);
    }
}

/// A warning is posted after this time.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// Longer intervals between frames do not count as waiting: the pipeline was probably paused.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct KeyFrameGate {
    gate: key_frame::KeyFrameGate,
    /// When the last frame was dropped.
    last_dropped: Option<Instant>,
    /// How long frames have been dropped.
    waited: Duration,
    warned: bool,
}

impl KeyFrameGate {
    /// Frames are missing, so frames that depend on them cannot be decoded.
    pub(super) fn close(&mut self) {
        self.gate.close();
    }

    /// Whether a frame can be decoded, by its flags. Requests a key frame if not.
    pub(super) fn is_decodable(&mut self, source: SourceContext<'_>, meta: &FrameMeta) -> bool {
        if !source.settings.wait_for_keyframe
            || self.passes(meta)
            || source.stream.has_only_key_frames()
        {
            return true;
        }
        gst::log!(CAT, obj = source.element, "Waiting for a key frame");
        if self.gate.should_request(Instant::now()) {
            source.stats.request(source.element, KeyFrame::NOW);
        }
        self.note_dropped();
        self.warn(source, false);
        false
    }

    /// Warns once that no key frame arrives: after some time, or when the stream ends. Without it, the user would not learn why
    /// there are no buffers.
    pub(super) fn warn(&mut self, source: SourceContext<'_>, is_over: bool) {
        if self.should_warn(is_over) {
            gst::element_warning!(
                source.element,
                gst::StreamError::Decode,
                (
                    "No key frame comes from pool {:?}, and frames are dropped until one comes. Make the encoder send key frames more \
                     often, start this pipeline before the producer, or set wait-for-keyframe=false if each frame can be decoded alone",
                    source.settings.pool
                )
            );
        }
    }

    /// Whether a frame passes. A key frame ends the wait.
    fn passes(&mut self, meta: &FrameMeta) -> bool {
        let passes = self.gate.passes(meta);
        if self.gate.is_open() {
            self.last_dropped = None;
            self.waited = Duration::ZERO;
        }
        passes
    }

    /// Counts the time for which frames are dropped.
    fn note_dropped(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last_dropped.replace(now) {
            self.waited += now.duration_since(last).min(MAX_INTERVAL);
        }
    }

    fn should_warn(&mut self, is_over: bool) -> bool {
        let is_time = self.waited >= WARN_AFTER || (is_over && self.last_dropped.is_some());
        is_time && !std::mem::replace(&mut self.warned, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_warns_once() {
        let mut gate = KeyFrameGate::default();
        gate.close();
        assert!(!gate.should_warn(true), "it dropped nothing");
        gate.note_dropped();
        assert!(!gate.should_warn(false), "it has only begun");
        assert!(gate.should_warn(true));
        // More frames are missing.
        gate.close();
        gate.note_dropped();
        assert!(!gate.should_warn(true), "it has warned");
        assert!(gate.passes(&FrameMeta::new(1)));
        gate.close();
        gate.note_dropped();
        assert!(!gate.should_warn(true), "it has warned");
    }
}
