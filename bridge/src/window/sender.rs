// SPDX-License-Identifier: MPL-2.0

//! The sender's side of the window.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::pace::Pace;
use super::{PROBE_AFTER, SILENCE, STUCK, WINDOW, span};
use crate::wire::{Credit, Ids, Place};

/// The state of the sent stream, and what the receiver has acknowledged.
#[derive(Debug)]
pub struct Sender {
    ids: Ids,
    position: u64,
    acknowledged: u64,
    /// The last item that was begun.
    item: u64,
    /// The last item that was sent completely or given up.
    finished: u64,
    /// The frames in flight, each with the time at which it was begun.
    open: VecDeque<(u64, Instant)>,
    lost: u64,
    /// The transfer time of the last frame.
    transfer: Duration,
    pace: Pace,
    /// The frame interval.
    period: Duration,
    /// The arrival of the receiver's last message.
    heard: Instant,
    /// The last time at which the acknowledged position increased, or a message was sent while nothing was in flight.
    progressed: Instant,
    /// The time of the last message.
    sent: Instant,
    /// The time of the last probe.
    probed: Instant,
}

impl Sender {
    /// Starts a stream.
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
            pace: Pace::new(now),
            period: Duration::MAX,
            heard: now,
            progressed: now,
            sent: now,
            probed: now,
        }
    }

    /// Notes that a message of the receiver arrived at this time.
    pub fn hear(&mut self, heard: Instant) {
        self.heard = self.heard.max(heard);
    }

    /// Handles a credit that arrived at this time. Returns whether it reports a new loss.
    pub fn credit(&mut self, credit: &Credit, heard: Instant) -> bool {
        self.hear(heard);
        // Do not trust the position: the receiver cannot have more than was sent. A late credit with a lower position has no
        // effect.
        let acknowledged = credit.position.min(self.position);
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            self.progressed = self.progressed.max(heard);
        }
        while let Some((item, begun)) = self.open.front()
            && *item <= credit.items
        {
            self.transfer = heard.saturating_duration_since(*begun);
            self.pace.note(*begun, heard, self.period);
            self.open.pop_front();
        }
        let is_worse = credit.lost > self.lost;
        self.lost = self.lost.max(credit.lost);
        is_worse
    }

    /// The number of frames in flight.
    pub fn under_way(&self) -> usize {
        self.open.len()
    }

    /// The time between the beginning of the last frame and its credit.
    pub fn transfer(&self) -> Duration {
        self.transfer
    }

    /// Sets the frame interval.
    pub fn set_period(&mut self, period: Duration) {
        self.period = period;
    }

    /// The number of frames that may be in flight if a frame that waits on the route is worth less than a newer one.
    pub fn limit(&self) -> usize {
        self.pace.limit()
    }

    /// Whether a message of this length may be sent now.
    pub fn has_room(&self, len: usize) -> bool {
        let end = self.span(len).end;
        end.saturating_sub(self.acknowledged) <= WINDOW
    }

    /// Whether all messages before this position have arrived at the receiver, or the receiver has detected their loss.
    pub fn is_acknowledged(&self, position: u64) -> bool {
        self.acknowledged >= position
    }

    /// Begins an item. Its first message follows.
    pub fn begin(&mut self, is_frame: bool, now: Instant) {
        self.item += 1;
        if is_frame {
            self.open.push_back((self.item, now));
        }
    }

    /// Returns the place of the next message of the item, which has `len` bytes, and counts the message as sent.
    pub fn place(&mut self, len: usize, now: Instant) -> Place {
        self.count(self.item, len, now)
    }

    /// Ends the item. It has been sent or given up.
    pub fn finish(&mut self) {
        self.finished = self.item;
    }

    /// Returns the place of a probe, which has `len` bytes, and counts the probe as sent.
    pub fn probe(&mut self, len: usize, now: Instant) -> Place {
        self.probed = now;
        self.count(self.finished, len, now)
    }

    fn span(&self, len: usize) -> Range<u64> {
        // No stream is long enough to overflow a position.
        span(self.position, len).unwrap_or(u64::MAX..u64::MAX)
    }

    fn count(&mut self, item: u64, len: usize, now: Instant) -> Place {
        if self.position == self.acknowledged {
            // Nothing was in flight, so the time without progress begins now.
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

    /// The position after the last message.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn since_progress(&self, now: Instant) -> Duration {
        if self.position == self.acknowledged {
            return Duration::ZERO;
        }
        now.saturating_duration_since(self.progressed)
    }

    /// Whether a probe is due.
    pub fn is_probe_due(&self, now: Instant) -> bool {
        let since = |then| now.saturating_duration_since(then);
        let is_quiet = since(self.sent) >= PROBE_AFTER || self.since_progress(now) >= PROBE_AFTER;
        is_quiet && since(self.probed) >= PROBE_AFTER
    }

    /// Whether the receiver counts as disconnected.
    pub fn is_void(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= SILENCE
    }

    /// Whether the receiver has acknowledged nothing for [`STUCK`].
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.since_progress(now) >= STUCK
    }

    /// Forgets the frames in flight, because the receiver is disconnected. If it comes back, a probe makes it acknowledge the rest.
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
        // Duplicate, late and impossible credits.
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
        // Frames are sent, and no credit arrives.
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
