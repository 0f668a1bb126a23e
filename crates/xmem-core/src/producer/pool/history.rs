// SPDX-License-Identifier: MPL-2.0

//! The newest entries, which the producer keeps for consumers, and the rules for which of them are kept.

use std::collections::VecDeque;

use xmem_shm::abi::start_from::StartFrom;

use super::settings::{KEPT_FOR_TIME, Settings};
use crate::delivery::Delivery;

/// The number of events that are kept in addition to the frames of the history.
const KEPT_EVENTS: usize = 4;

/// Which entries are kept when the history is trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Span {
    Nothing,
    /// As many frames as the setting `history`.
    Promised,
    /// Also events, and entries within `history_time` that a consumer has not taken yet.
    Time,
}

/// An entry that is kept for consumers.
#[derive(Debug, Clone, Copy)]
pub(in crate::producer) struct Kept {
    pub(in crate::producer) slot: u32,
    pub(in crate::producer) sequence: u64,
    /// It is an event.
    pub(in crate::producer) event: bool,
    /// Its slot has a release hook or a count.
    pub(in crate::producer) is_waited_for: bool,
    /// The time when the frame is decoded, otherwise when it is presented, in nanoseconds on CLOCK_MONOTONIC. An event without
    /// a time gets that of the previous entry.
    pub(in crate::producer) time: Option<i64>,
}

/// The newest frames and the events between them. Each entry holds a reference to its slot, which the caller counts.
#[derive(Debug)]
pub(in crate::producer) struct History {
    /// Oldest first.
    entries: VecDeque<Kept>,
    /// The number of entries that are frames.
    frames: usize,
    /// The setting `history`, in frames.
    promised: usize,
    /// How much longer other frames are kept, in nanoseconds; 0 in a lossless pool.
    time: u128,
    /// There was no memory for the last region, so only the promised frames are kept.
    is_short: bool,
}

impl History {
    pub(super) fn new(settings: &Settings) -> Self {
        let is_live = settings.delivery == Delivery::Live;
        Self {
            entries: VecDeque::new(),
            frames: 0,
            promised: settings.history as usize,
            time: if is_live {
                settings.history_time.as_nanos()
            } else {
                0
            },
            is_short: false,
        }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(in crate::producer) fn iter(&self) -> impl DoubleEndedIterator<Item = &Kept> {
        self.entries.iter()
    }

    /// Adds the newest entry.
    pub(in crate::producer) fn push(&mut self, mut kept: Kept) {
        if kept.event && kept.time.is_none() {
            kept.time = self.entries.back().and_then(|before| before.time);
        }
        self.frames += usize::from(!kept.event);
        self.entries.push_back(kept);
    }

    /// Whether memory is lacking. If so, no frames are kept for `history_time`.
    pub(in crate::producer) fn set_short(&mut self, is_short: bool) {
        self.is_short = is_short;
    }

    /// The sequence at which a consumer starts. `None`: at the next entry.
    pub(in crate::producer) fn start(&self, start_from: StartFrom) -> Option<u64> {
        let first = match start_from {
            StartFrom::Next => None,
            StartFrom::Newest => self.entries.iter().rfind(|kept| !kept.event),
            StartFrom::Oldest => self.entries.front(),
        };
        first.map(|kept| kept.sequence)
    }

    /// The oldest sequence that consumers must not skip. `newest` is the newest sequence.
    pub(in crate::producer) fn oldest(&self, newest: u64) -> u64 {
        // There may be events between the kept frames.
        let frames_only = (newest + 1).saturating_sub(self.promised.max(1) as u64);
        let oldest = self.entries.front().map_or(newest, |kept| kept.sequence);
        oldest.min(frames_only)
    }

    /// Removes one entry that `span` does not keep. `is_wanted`: whether a consumer has not taken the entry with a sequence
    /// yet.
    pub(super) fn take_spare(
        &mut self,
        span: Span,
        is_wanted: impl FnOnce(u64) -> bool,
    ) -> Option<Kept> {
        let spare = self.spare(span, is_wanted)?;
        let kept = match spare {
            0 => self.entries.pop_front()?,
            _ => self.entries.remove(spare)?,
        };
        self.frames -= usize::from(!kept.event);
        Some(kept)
    }

    /// Removes some entries. Returns their slots.
    pub(super) fn take_if(&mut self, mut is_removed: impl FnMut(&Kept) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        self.entries.retain(|kept| {
            let is_removed = is_removed(kept);
            if is_removed {
                gone.push(kept.slot);
            }
            !is_removed
        });
        self.frames = self.entries.iter().filter(|kept| !kept.event).count();
        gone
    }

    /// The index of the first entry to remove. An event does not displace a frame.
    fn spare(&self, span: Span, is_wanted: impl FnOnce(u64) -> bool) -> Option<usize> {
        let (most_frames, most_events) = match (span, self.promised) {
            (Span::Nothing, _) | (_, 0) => (0, 0),
            (Span::Promised, promised) => (promised, 0),
            (Span::Time, promised) => (promised, KEPT_EVENTS),
        };
        let at = if self.frames > most_frames {
            0
        } else if self.entries.len() > self.frames + most_events {
            self.entries.iter().position(|kept| kept.event)?
        } else {
            return None;
        };
        let stays = span == Span::Time
            && is_wanted(self.entries.get(at)?.sequence)
            && self.is_within_time(at, most_frames);
        (!stays).then_some(at)
    }

    /// Whether an entry may be kept although there are already enough newer ones of its type.
    fn is_within_time(&self, at: usize, promised: usize) -> bool {
        if self.time == 0 || self.is_short || self.entries.len() > KEPT_FOR_TIME {
            return false;
        }
        let oldest = self.entries.get(at).and_then(|kept| kept.time);
        let newest = self.entries.back().and_then(|kept| kept.time);
        let is_near = oldest
            .zip(newest)
            .is_some_and(|(oldest, newest)| u128::from(newest.abs_diff(oldest)) < self.time);
        // Upstream may depend on the memory of such frames.
        let frames = self.entries.iter().rev().filter(|kept| !kept.event);
        is_near && !frames.skip(promised).any(|kept| kept.is_waited_for)
    }
}
