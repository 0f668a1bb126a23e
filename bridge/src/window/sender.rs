// SPDX-License-Identifier: MPL-2.0

//! The sender's side of the window.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{PROBE_AFTER, SILENCE, STUCK, WINDOW, span};
use crate::wire::{Credit, Ids, Place};

/// What was sent, and what the receiver has of it.
#[derive(Debug)]
pub struct Sender {
    ids: Ids,
    position: u64,
    acknowledged: u64,
    /// The item that was begun last.
    item: u64,
    /// The item that was sent to its end, or given up, last.
    finished: u64,
    /// Frames that are under way, and when they were begun.
    open: VecDeque<(u64, Instant)>,
    lost: u64,
    /// How long the last frame took.
    transfer: Duration,
    heard: Instant,
    progressed: Instant,
    /// When a message was sent last.
    sent: Instant,
    probed: Instant,
}

impl Sender {
    /// A new stream.
    pub fn new(ids: Ids, now: Instant) -> Self {
        Self {
            ids,
            position: 0,
            acknowledged: 0,
            item: 0,
            finished: 0,
            open: VecDeque::new(),
            lost: 0,
            transfer: Duration::ZERO,
            heard: now,
            progressed: now,
            sent: now,
            probed: now,
        }
    }

    /// A message of the receiver arrived at this time.
    pub fn hear(&mut self, heard: Instant) {
        self.heard = self.heard.max(heard);
    }

    /// A credit arrived at this time. Returns whether something was lost since the last one.
    pub fn credit(&mut self, credit: &Credit, heard: Instant) -> bool {
        self.hear(heard);
        // The receiver has no more than was sent, whatever it claims; an older credit that comes late changes nothing.
        let acknowledged = credit.position.min(self.position);
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            self.progressed = self.progressed.max(heard);
        }
        while let Some((item, begun)) = self.open.front()
            && *item <= credit.items
        {
            self.transfer = heard.saturating_duration_since(*begun);
            self.open.pop_front();
        }
        let is_worse = credit.lost > self.lost;
        self.lost = self.lost.max(credit.lost);
        is_worse
    }

    /// How many frames are under way.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// How long the last frame took from its beginning to its credit.
    pub fn transfer(&self) -> Duration {
        self.transfer
    }

    /// Whether a message of this length may be sent now.
    pub fn has_room(&self, len: usize) -> bool {
        let end = self.span(len).end;
        end.saturating_sub(self.acknowledged) <= WINDOW
    }

    /// Whether the receiver has all messages before this position, or knows that it lost them.
    pub fn is_acknowledged(&self, position: u64) -> bool {
        self.acknowledged >= position
    }

    /// The next message begins an item.
    pub fn begin(&mut self, is_frame: bool, now: Instant) {
        self.item += 1;
        if is_frame {
            self.open.push_back((self.item, now));
        }
    }

    /// Where the next message of the item belongs. It counts as sent, with the `len` bytes that it will have.
    pub fn place(&mut self, len: usize, now: Instant) -> Place {
        self.count(self.item, len, now)
    }

    /// The item is sent, or given up.
    pub fn finish(&mut self) {
        self.finished = self.item;
    }

    /// Where a probe belongs. It counts as sent.
    pub fn probe(&mut self, len: usize, now: Instant) -> Place {
        self.probed = now;
        self.count(self.finished, len, now)
    }

    fn span(&self, len: usize) -> Range<u64> {
        // No stream lasts until the end of numbers.
        span(self.position, len).unwrap_or(u64::MAX..u64::MAX)
    }

    fn count(&mut self, item: u64, len: usize, now: Instant) -> Place {
        if self.position == self.acknowledged {
            // Nothing was outstanding, so nothing could progress.
            self.progressed = now;
        }
        let span = self.span(len);
        self.position = span.end;
        self.sent = now;
        Place {
            ids: self.ids,
            position: span.start,
            item,
        }
    }

    /// The position behind all that was sent.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn since_progress(&self, now: Instant) -> Duration {
        if self.position == self.acknowledged {
            return Duration::ZERO;
        }
        now.saturating_duration_since(self.progressed)
    }

    /// Whether it is time for a probe.
    pub fn is_probe_due(&self, now: Instant) -> bool {
        let since = |then| now.saturating_duration_since(then);
        let is_quiet = since(self.sent) >= PROBE_AFTER || self.since_progress(now) >= PROBE_AFTER;
        is_quiet && since(self.probed) >= PROBE_AFTER
    }

    /// Whether the receiver counts as gone.
    pub fn is_void(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= SILENCE
    }

    /// Whether the receiver repeats its credit but does not take what was sent.
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.since_progress(now) >= STUCK
    }

    /// The receiver is gone: no frame is under way any more. Its next credit is answered by a probe, which frees the rest.
    pub fn forget(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CHUNK_HEAD, MAX_CHUNK};

    const FULL: usize = MAX_CHUNK + CHUNK_HEAD;

    fn sender() -> (Sender, Instant) {
        let now = Instant::now();
        (Sender::new(Ids::default(), now), now)
    }

    fn credit(items: u64, position: u64) -> Credit {
        Credit {
            items,
            position,
            ..Credit::default()
        }
    }

    #[test]
    fn the_window_is_never_exceeded_and_credit_opens_it() {
        let (mut sender, now) = sender();
        sender.begin(true, now);
        let mut sent = Vec::new();
        while sender.has_room(FULL) {
            sent.push(sender.place(FULL, now).position);
        }
        assert!(sender.position() <= WINDOW && sent.len() == 14);
        sender.credit(&credit(0, sent[1]), now);
        assert!(sender.has_room(FULL));
        sender.place(FULL, now);
        assert!(!sender.has_room(FULL));
        // Doubled, late and impossible credits.
        sender.credit(&credit(0, sent[1]), now);
        sender.credit(&credit(0, 0), now);
        assert!(!sender.has_room(FULL));
        sender.credit(&credit(0, u64::MAX), now);
        assert!(sender.is_acknowledged(sender.position()) && sender.has_room(FULL));
    }

    #[test]
    fn frames_are_under_way_until_their_credit() {
        let (mut sender, now) = sender();
        let later = now + Duration::from_millis(70);
        for is_frame in [true, false, true] {
            sender.begin(is_frame, now);
            sender.place(100, now);
            sender.finish();
        }
        assert_eq!(sender.under_way(), 2);
        sender.credit(&credit(2, 0), later);
        assert_eq!((sender.under_way(), sender.transfer()), (1, later - now));
        sender.credit(&credit(3, 0), later);
        assert_eq!(sender.under_way(), 0);
        sender.begin(true, now);
        sender.forget();
        assert_eq!(sender.under_way(), 0);
    }

    #[test]
    fn probes_come_after_a_second_of_silence_and_not_more_often() {
        let (mut sender, now) = sender();
        let at = |ms| now + Duration::from_millis(ms);
        assert!(!sender.is_probe_due(at(999)));
        assert!(sender.is_probe_due(at(1000)));
        sender.probe(50, at(1000));
        assert!(!sender.is_probe_due(at(1999)));
        assert!(sender.is_probe_due(at(2000)));
        sender.credit(&credit(0, u64::MAX), at(2000));
        // Frames go out, and no credit comes for them.
        sender.begin(true, at(2000));
        for ms in (2000..3000).step_by(100) {
            sender.place(100, at(ms));
        }
        assert!(!sender.is_probe_due(at(2999)));
        assert!(sender.is_probe_due(at(3000)));
        assert!(!sender.is_stuck(at(11_999)));
        assert!(sender.is_stuck(at(12_000)));
    }

    #[test]
    fn a_receiver_that_is_silent_for_three_seconds_is_gone() {
        let (mut sender, now) = sender();
        let at = |ms| now + Duration::from_millis(ms);
        sender.credit(&credit(0, 0), at(500));
        assert!(!sender.is_void(at(3499)));
        assert!(sender.is_void(at(3500)));
        sender.credit(&credit(0, 0), at(3600));
        assert!(!sender.is_void(at(3600)));
    }

    #[test]
    fn a_loss_is_reported_once() {
        let (mut sender, now) = sender();
        let lost = Credit {
            lost: 1,
            ..Credit::default()
        };
        assert!(sender.credit(&lost, now));
        assert!(!sender.credit(&lost, now));
        assert!(!sender.credit(&Credit::default(), now));
    }
}
