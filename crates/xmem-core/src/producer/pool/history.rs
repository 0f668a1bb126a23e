// SPDX-License-Identifier: MPL-2.0

//! The newest entries, which the producer keeps for consumers, and the rules for which of them are kept.

use std::collections::VecDeque;

use xmem_shm::abi::wire::StartFrom;

use super::settings::{KEPT_BYTES, KEPT_FOR_TIME, Settings};

/// The number of events that are kept in addition to the frames of the history.
const KEPT_EVENTS: usize = 4;

/// Which entries are kept when the history is trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Span {
    Nothing,
    /// As many frames as the setting `history`.
    Promised,
    /// Also events, and entries that a consumer has not taken yet and that are kept for it.
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
    pub(in crate::producer) published_at: i64,
    /// The size of its slot.
    pub(in crate::producer) bytes: u64,
}

/// The newest frames and the events between them. Each entry holds a reference to its slot, which the caller counts.
#[derive(Debug, Default)]
pub(in crate::producer) struct History {
    /// Oldest first.
    entries: VecDeque<Kept>,
    /// The number of entries that are frames.
    frames: usize,
    /// The setting `history`, in frames.
    promised: usize,
    /// Other frames are kept for consumers that have not taken them. Not in a lossless pool.
    keeps_for_time: bool,
    /// The size of the slots of all entries.
    bytes: u64,
    /// The number of entries that are waited for.
    waited_for: usize,
    /// There was no memory for the last region, so only the promised frames are kept.
    is_short: bool,
}

impl History {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            promised: settings.history as usize,
            keeps_for_time: settings.keep_for() > 0,
            ..Self::default()
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
    pub(in crate::producer) fn push(&mut self, kept: Kept) {
        self.frames += usize::from(!kept.event);
        self.waited_for += usize::from(kept.is_waited_for);
        self.bytes += kept.bytes;
        self.entries.push_back(kept);
    }

    /// Subtracts an entry that was removed.
    fn subtract(&mut self, kept: &Kept) {
        self.frames -= usize::from(!kept.event);
        self.waited_for -= usize::from(kept.is_waited_for);
        self.bytes -= kept.bytes;
    }

    /// Whether memory is lacking. If so, only the promised frames are kept.
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

    /// Removes one entry that `span` does not keep. `is_wanted`: whether the entry with a sequence is kept for a consumer that
    /// has not taken it yet, this many nanoseconds after it was published.
    pub(super) fn take_spare(
        &mut self,
        span: Span,
        is_wanted: impl FnOnce(u64, u64) -> bool,
    ) -> Option<Kept> {
        let spare = self.spare(span, is_wanted)?;
        let kept = match spare {
            0 => self.entries.pop_front()?,
            _ => self.entries.remove(spare)?,
        };
        self.subtract(&kept);
        Some(kept)
    }

    /// Removes some entries. Returns their slots.
    pub(super) fn take_if(&mut self, mut is_removed: impl FnMut(&Kept) -> bool) -> Vec<u32> {
        let mut gone = Vec::new();
        self.entries.retain(|kept| {
            let is_removed = is_removed(kept);
            if is_removed {
                gone.push(*kept);
            }
            !is_removed
        });
        gone.iter().for_each(|kept| self.subtract(kept));
        gone.iter().map(|kept| kept.slot).collect()
    }

    /// The index of the first entry to remove. An event does not displace a frame.
    fn spare(&self, span: Span, is_wanted: impl FnOnce(u64, u64) -> bool) -> Option<usize> {
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
        let (oldest, newest) = (self.entries.get(at)?, self.entries.back()?);
        let age = newest.published_at.abs_diff(oldest.published_at);
        let stays = span == Span::Time
            && self.keeps_for_time
            && is_wanted(oldest.sequence, age)
            && self.has_room(most_frames);
        (!stays).then_some(at)
    }

    /// Whether entries may be kept although there are already enough newer ones of their type.
    fn has_room(&self, promised: usize) -> bool {
        if self.is_short || self.entries.len() > KEPT_FOR_TIME || self.bytes > KEPT_BYTES {
            return false;
        }
        // Upstream may depend on the memory of such frames.
        let frames = self.entries.iter().rev().filter(|kept| !kept.event);
        self.waited_for == 0 || !frames.skip(promised).any(|kept| kept.is_waited_for)
    }
}
