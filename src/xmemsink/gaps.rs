// SPDX-License-Identifier: MPL-2.0

//! Detects frames that reached the sink but not the pool. The next published frame gets a flag, so that decoders know of the
//! gap.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// No time has this value.
const NONE: u64 = u64::MAX;

/// Identifies a buffer. Its times distinguish it from earlier buffers at the same address.
#[derive(Debug, Default)]
struct PendingBuffer {
    /// 0: no buffer.
    address: AtomicU64,
    pts: AtomicU64,
    dts: AtomicU64,
}

impl PendingBuffer {
    /// Stores another buffer. Returns whether a different one was stored before.
    fn replace(&self, buffer: &gst::BufferRef) -> bool {
        let number = |time: Option<gst::ClockTime>| time.map_or(NONE, gst::ClockTime::nseconds);
        let it = [
            (&self.address, buffer.as_ptr().addr() as u64),
            (&self.pts, number(buffer.pts())),
            (&self.dts, number(buffer.dts())),
        ];
        let is_same = it.iter().all(|(word, now)| word.load(Relaxed) == *now);
        let was_set = self.is_set();
        for (word, now) in it {
            word.store(now, Relaxed);
        }
        was_set && !is_same
    }

    fn is_set(&self) -> bool {
        self.address.load(Relaxed) != 0
    }

    fn clear(&self) {
        self.address.store(0, Relaxed);
    }
}

/// Only a thread that holds the pad's stream lock changes these fields. Other threads read `skipped`. Relaxed: no other data
/// depends on them.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The buffer that arrived and is not rendered yet.
    pending: PendingBuffer,
    /// Frames before the next one are missing.
    are_missing: AtomicBool,
    /// How many buffers arrived and were not rendered. Includes those that waited when a flush or the end of the stream came.
    skipped: AtomicU64,
}

impl Gaps {
    /// A buffer arrived: GstBaseSink calls `get_times`, once or several times, before it renders a buffer and before it drops
    /// one that is late or outside of the segment. If the previous buffer was not rendered, it counts as skipped.
    pub(super) fn note_arrival(&self, buffer: &gst::BufferRef) {
        if self.pending.replace(buffer) {
            self.note_skipped();
        }
    }

    /// How many buffers arrived and were not rendered. A list that is dropped as a whole counts as one.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// The pending buffer is rendered. Returns whether frames before it are missing.
    pub(super) fn note_rendered(&self) -> bool {
        self.pending.clear();
        self.are_missing.load(Relaxed) && self.are_missing.swap(false, Relaxed)
    }

    /// A rendered buffer was not published, and another figure counts it.
    pub(super) fn note_missing(&self) {
        self.are_missing.store(true, Relaxed);
    }

    /// A buffer was not published, and no other figure counts it.
    pub(super) fn note_skipped(&self) {
        self.note_missing();
        self.skipped.fetch_add(1, Relaxed);
    }

    /// No buffer follows for now. A pending buffer counts as skipped.
    pub(super) fn note_end(&self) {
        if self.pending.is_set() {
            self.pending.clear();
            self.note_skipped();
        }
    }

    /// Starts a new run.
    pub(super) fn reset(&self) {
        self.pending.clear();
        self.are_missing.store(false, Relaxed);
        self.skipped.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_not_rendered_leaves_a_gap() {
        gst::init().unwrap();
        let mut buffer = gst::Buffer::new();
        let gaps = Gaps::default();
        let mut arrive = |seconds| {
            // All buffers have the same address.
            buffer
                .get_mut()
                .unwrap()
                .set_pts(gst::ClockTime::from_seconds(seconds));
            gaps.note_arrival(&buffer);
        };
        for seconds in 0..3 {
            arrive(seconds);
            arrive(seconds);
            assert!(!gaps.note_rendered());
        }
        arrive(4);
        arrive(5);
        assert!(gaps.note_rendered());
        arrive(6);
        assert!(!gaps.note_rendered());
        gaps.note_missing();
        arrive(7);
        assert!(gaps.note_rendered());
        assert_eq!(gaps.skipped(), 1);
        gaps.note_end();
        assert_eq!(gaps.skipped(), 1, "it was rendered");
        arrive(7);
        gaps.note_end();
        gaps.note_end();
        gaps.note_skipped();
        assert_eq!(gaps.skipped(), 3);
        assert!(gaps.note_rendered());
        arrive(8);
        gaps.reset();
        arrive(9);
        assert!(!gaps.note_rendered());
    }
}
