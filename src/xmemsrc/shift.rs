// SPDX-License-Identifier: MPL-2.0

//! The shift by which streams are delayed.
//!
//! Streams that were held up, such as those of a file, share a shift if they come from one pipeline of a producer: audio and video
//! come from two pools. All live streams of a consumer's pipeline share one shift, which is fixed by the first of them.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::lock;

/// The streams that share a shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// The base times of the producer's and the consumer's pipelines.
    HeldUp(gst::ClockTime, gst::ClockTime),
    /// The address of the consumer's pipeline, which exists as long as one of its streams has the shift.
    Live(usize),
}

/// The shared shifts in use.
static SHIFTS: Mutex<Vec<(Key, Weak<Shift>)>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
pub(super) struct Shift {
    /// In nanoseconds; or `OPEN`.
    by: AtomicU64,
    is_live: bool,
    /// Until when streams [gather](Self::gather). `None`: none has begun.
    gathers_until: Mutex<Option<Instant>>,
}

/// Streams that begin together, also on a busy machine, begin within this time.
const GATHERING: Duration = Duration::from_millis(100);

/// The shift of live streams is not fixed yet.
const OPEN: u64 = u64::MAX;

impl Shift {
    /// The shift for this key. `None`: a shift that is not shared.
    pub(super) fn of(key: Option<Key>) -> Arc<Self> {
        let Some(key) = key else {
            return Arc::default();
        };
        let mut shifts = lock(&SHIFTS);
        shifts.retain(|(_, shift)| shift.strong_count() > 0);
        let found = shifts.iter().find(|(other, _)| *other == key);
        if let Some(shift) = found.and_then(|(_, shift)| shift.upgrade()) {
            return shift;
        }
        let is_live = matches!(key, Key::Live(_));
        let shift = Arc::new(Self {
            by: AtomicU64::new(if is_live { OPEN } else { 0 }),
            is_live,
            gathers_until: Mutex::default(),
        });
        shifts.push((key, Arc::downgrade(&shift)));
        shift
    }

    /// In nanoseconds.
    pub(super) fn get(&self) -> i64 {
        // Relaxed: no other data depends on it.
        match self.by.load(Ordering::Relaxed) {
            OPEN => 0,
            shift => shift.cast_signed(),
        }
    }

    /// Whether it is the shift of all live streams.
    pub(super) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Fixes the shift of live streams. Does nothing if it is fixed.
    pub(super) fn fix(&self, by: gst::ClockTime) {
        let by = by.nseconds().min(i64::MAX.unsigned_abs());
        let _ = self
            .by
            .compare_exchange(OPEN, by, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Raises the shift to `by` plus `margin`, if it is less than `by`. The margin is for another stream that needs slightly more:
    /// without it, the times of frames that were already sent would no longer match.
    pub(super) fn raise_to(&self, by: gst::ClockTime, margin: gst::ClockTime) {
        let known = |time: gst::ClockTime| time.nseconds().min(i64::MAX.unsigned_abs());
        let _ = self
            .by
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                (now < known(by)).then(|| known(by.saturating_add(margin)))
            });
    }

    /// Raises the shift to `by`, and waits until the other streams that begin now have raised it to what they need, because times must
    /// not jump after the first frame. A stream that begins later does not raise it.
    pub(super) fn gather(&self, by: gst::ClockTime) {
        let left = {
            let mut until = lock(&self.gathers_until);
            let until = *until.get_or_insert_with(|| Instant::now() + GATHERING);
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                self.raise_to(by, gst::ClockTime::ZERO);
            }
            left
        };
        thread::sleep(left);
        // Whoever had the lock in time has raised it now.
        drop(lock(&self.gathers_until));
    }

    /// Lowers the shift to this many nanoseconds, at least 0, if it is more. Only for streams that were held up.
    pub(super) fn lower_to(&self, by: i64) {
        self.by
            .fetch_min(by.max(0).cast_unsigned(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_with_one_key_share_a_shift() {
        let time = gst::ClockTime::from_seconds;
        let key = Some(Key::HeldUp(time(1), time(2)));
        let video = Shift::of(key);
        let audio = Shift::of(key);
        let other = Shift::of(Some(Key::HeldUp(time(1), time(3))));
        let need = |shift: &Shift, ns, margin| {
            let time = gst::ClockTime::from_nseconds;
            shift.raise_to(time(ns), time(margin));
        };
        need(&video, 0, 10);
        assert_eq!((video.get(), audio.get()), (0, 0));
        need(&video, 5, 10);
        need(&audio, 12, 10);
        assert_eq!((video.get(), audio.get(), other.get()), (15, 15, 0));
        need(&audio, 16, 0);
        assert_eq!(video.get(), 16);
        other.raise_to(time(1), time(0));
        other.lower_to(2_000_000_000);
        assert_eq!(other.get(), 1_000_000_000);
        other.lower_to(-1);
        assert_eq!(other.get(), 0);
        drop((video, audio));
        assert_eq!(Shift::of(key).get(), 0, "a new stream starts at 0");
        let alone = Shift::of(None);
        alone.raise_to(time(1), time(0));
        assert_eq!(Shift::of(None).get(), 0);
    }

    #[test]
    fn the_first_live_stream_fixes_the_shift() {
        let time = gst::ClockTime::from_seconds;
        let video = Shift::of(Some(Key::Live(7)));
        let sound = Shift::of(Some(Key::Live(7)));
        assert_eq!((video.get(), sound.get()), (0, 0));
        video.fix(time(2));
        sound.fix(time(9));
        let shift = time(2).nseconds().cast_signed();
        assert_eq!((video.get(), sound.get()), (shift, shift));
        assert_eq!(Shift::of(Some(Key::Live(8))).get(), 0);
    }
}
