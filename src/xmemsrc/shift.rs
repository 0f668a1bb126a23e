// SPDX-License-Identifier: MPL-2.0

//! Delays frames from before the start of the consumer's pipeline. Audio and video of one producer's pipeline come from two
//! pools and share the delay.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering},
};

use crate::lock;

/// The key of a shared shift: the base times of the producer's and the consumer's pipelines.
type Key = (gst::ClockTime, gst::ClockTime);

/// The shared shifts in use.
static SHIFTS: Mutex<Vec<(Key, Weak<Shift>)>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
pub(super) struct Shift(AtomicU64);

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
        let shift = Arc::default();
        shifts.push((key, Arc::downgrade(&shift)));
        shift
    }

    /// In nanoseconds.
    pub(super) fn get(&self) -> i64 {
        // Relaxed: no other data depends on it.
        self.0.load(Ordering::Relaxed).cast_signed()
    }

    /// Raises the shift to `by` plus `margin`, if it is less than `by`. The margin is for another stream that needs slightly more:
    /// without it, the times of frames that were already sent would no longer match.
    pub(super) fn raise_to(&self, by: gst::ClockTime, margin: gst::ClockTime) {
        let known = |time: gst::ClockTime| time.nseconds().min(i64::MAX.unsigned_abs());
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                (now < known(by)).then(|| known(by.saturating_add(margin)))
            });
    }

    /// Reduces the shift by the time that is missing in the stream, at most to 0. Only for a shift that is not shared.
    pub(super) fn catch_up(&self, missing: gst::ClockTime) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                Some(now.saturating_sub(missing.nseconds()))
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_with_one_key_share_a_shift() {
        let time = gst::ClockTime::from_seconds;
        let key = Some((time(1), time(2)));
        let video = Shift::of(key);
        let audio = Shift::of(key);
        let other = Shift::of(Some((time(1), time(3))));
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
        other.catch_up(time(2));
        assert_eq!(other.get(), 0);
        drop((video, audio));
        assert_eq!(Shift::of(key).get(), 0, "a new stream starts at 0");
        let alone = Shift::of(None);
        alone.raise_to(time(1), time(0));
        assert_eq!(Shift::of(None).get(), 0);
    }
}
