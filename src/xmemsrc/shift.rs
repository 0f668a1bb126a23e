// SPDX-License-Identifier: MPL-2.0

//! The shift by which streams are delayed, and the time that is missing between frames, by which it may shrink.
//!
//! Streams that were held up, such as those of a file, share a shift if they come from one pipeline of a producer: audio and video
//! come from two pools. All live streams of a consumer's pipeline share one shift, which is fixed by the first of them.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{lock, stream::timing};

/// Streams of one file start at most about this far apart.
pub(super) const MARGIN: gst::ClockTime = gst::ClockTime::from_mseconds(500);

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
    gathered: Mutex<Gathered>,
    has_gathered: Condvar,
}

/// The streams that have [gathered](Shift::gather).
#[derive(Debug, Default)]
struct Gathered {
    streams: usize,
    /// `None`: there was none.
    until: Option<Instant>,
}

/// Streams that begin together, also on a busy machine, begin within this time.
const AT_MOST: Duration = Duration::from_millis(100);
/// The interval at which a wait checks for a stop.
const SLICE: Duration = Duration::from_millis(10);

/// A stream that gathers.
#[derive(Debug)]
pub(super) struct Gathering {
    shift: Arc<Shift>,
    until: Instant,
    streams: usize,
}

impl Gathering {
    /// Waits for the other streams.
    pub(super) fn wait(&self, is_cancelled: impl Fn() -> bool) {
        let mut gathered = lock(&self.shift.gathered);
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if gathered.streams >= self.streams || left.is_zero() || is_cancelled() {
                // From now on, no stream may raise the shift.
                gathered.until = Some(Instant::now().min(self.until));
                return;
            }
            gathered = self
                .shift
                .has_gathered
                .wait_timeout(gathered, left.min(SLICE))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

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
            gathered: Mutex::default(),
            has_gathered: Condvar::new(),
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

    /// Raises the shift to `by`, for a stream that waits with its first frame, because times must not jump after that: until
    /// `others` streams more have done so, or else for a short time after the first. Later the shift is not raised.
    pub(super) fn gather(self: &Arc<Self>, by: gst::ClockTime, others: usize) -> Gathering {
        let mut gathered = lock(&self.gathered);
        let until = *gathered
            .until
            .get_or_insert_with(|| Instant::now() + AT_MOST);
        if Instant::now() < until {
            self.raise_to(by, gst::ClockTime::ZERO);
            gathered.streams += 1;
            self.has_gathered.notify_all();
        }
        Gathering {
            shift: self.clone(),
            until,
            streams: others + 1,
        }
    }

    /// Lowers the shift to this many nanoseconds, at least 0, if it is more. Only for streams that were held up.
    pub(super) fn lower_to(&self, by: i64) {
        self.by
            .fetch_min(by.max(0).cast_unsigned(), Ordering::Relaxed);
    }
}

/// The intervals between the frames of a stream, on CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct Spacing {
    latest: Option<i64>,
    /// The longest interval without a gap.
    usual: gst::ClockTime,
}

impl Spacing {
    /// The time that is missing between the previous frames and this one.
    pub(super) fn missing(
        &mut self,
        time: i64,
        duration: Option<gst::ClockTime>,
    ) -> gst::ClockTime {
        let latest = self.latest.replace(time.max(self.latest.unwrap_or(time)));
        let step = timing::elapsed(latest.unwrap_or(time), time);
        let usual = self.usual.max(duration.unwrap_or_default());
        let most = if usual.is_zero() {
            MARGIN
        } else {
            usual.saturating_add(usual / 2)
        };
        if step > most {
            return step.saturating_sub(usual);
        }
        self.usual = usual.max(step);
        gst::ClockTime::ZERO
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

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
    fn streams_that_begin_together_have_the_greatest_shift() {
        let time = gst::ClockTime::from_seconds;
        let shift = Shift::of(None);
        let begin = |by| {
            shift.gather(time(by), 1).wait(|| false);
            shift.get()
        };
        let both = thread::scope(|scope| {
            let other = scope.spawn(|| begin(1));
            [begin(3), other.join().unwrap()]
        });
        assert_eq!(both[0], both[1]);
        // Too late.
        assert_eq!(begin(9), both[0]);
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

    const fn ms(ms: u64) -> gst::ClockTime {
        gst::ClockTime::from_mseconds(ms)
    }

    /// The missing time before each frame, in milliseconds.
    fn missing(duration: Option<u64>, times: &[i64]) -> Vec<u64> {
        let mut spacing = Spacing::default();
        let each = times.iter().map(|time| {
            spacing
                .missing(time * 1_000_000, duration.map(ms))
                .mseconds()
        });
        each.collect()
    }

    #[test]
    fn a_gap_is_longer_than_the_usual_interval() {
        assert_eq!(
            missing(Some(33), &[0, 33, 66, 132, 166, 1_166, 1_200]),
            [0, 0, 0, 33, 0, 966, 0]
        );
        assert_eq!(missing(None, &[0, 40, 80, 160, 240]), [0, 0, 0, 40, 40]);
        // The caps of a camera state 30 frames per second. In the dark it delivers 25.
        assert_eq!(missing(Some(33), &[0, 40, 80, 120]), [0; 4]);
        // Several packets of one frame.
        assert_eq!(missing(None, &[0, 0, 0, 33, 33, 66]), [0; 6]);
        // In decoding order.
        assert_eq!(missing(Some(33), &[66, 0, 33, 99]), [0; 4]);
        assert_eq!(missing(None, &[0, 60_000, 60_033]), [0, 60_000, 0]);
    }
}
