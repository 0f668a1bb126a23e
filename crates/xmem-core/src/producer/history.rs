// SPDX-License-Identifier: MPL-2.0

//! The newest entries, which the producer keeps for consumers: which of them stay.

use super::pool::Pool;
use super::state::{Effects, State};

/// Events that are kept besides the frames of the history.
const KEPT_EVENTS: usize = 4;
/// Entries that are kept for `history_time`, at most. The smallest ring has as many.
const KEPT_FOR_TIME: usize = 64;

/// What stays of the history when it is trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    Nothing,
    /// As many frames as are promised a slot.
    Promised,
    /// Besides, events, and what is kept for `history_time`.
    Time,
}

impl Pool {
    /// Takes out the entries that are too old.
    pub(super) fn trim_history(&self, state: &mut State, span: Span, effects: &mut Effects) {
        while self.forget_spare(state, span, effects) {}
    }

    /// Takes out one entry that is beyond what is to stay. `false`: there is none.
    pub(super) fn forget_spare(
        &self,
        state: &mut State,
        span: Span,
        effects: &mut Effects,
    ) -> bool {
        let spare = self.spare(state, span);
        let Some(old) = spare.and_then(|at| state.history.remove(at)) else {
            return false;
        };
        state.dereference(&self.control, old.slot, self.lossless(), effects);
        true
    }

    /// The place of the first entry to go. An event pushes no frame out.
    fn spare(&self, state: &State, span: Span) -> Option<usize> {
        let (most_frames, most_events) = match (span, self.settings.history as usize) {
            (Span::Nothing, _) | (_, 0) => (0, 0),
            (Span::Promised, history) => (history, 0),
            (Span::Time, history) => (history, KEPT_EVENTS),
        };
        let history = &state.history;
        let frames = history.iter().filter(|kept| !kept.event).count();
        let at = if frames > most_frames {
            0
        } else if history.len() > frames + most_events {
            history.iter().position(|kept| kept.event)?
        } else {
            return None;
        };
        let stays = span == Span::Time && self.is_kept_for_time(state, at, most_frames);
        (!stays).then_some(at)
    }

    /// Whether an entry is kept although there are as many newer ones of its kind as are promised.
    fn is_kept_for_time(&self, state: &State, at: usize, promised: usize) -> bool {
        let time = self.settings.history_time.as_nanos();
        let history = &state.history;
        if time == 0 || self.lossless() || state.is_short || history.len() > KEPT_FOR_TIME {
            return false;
        }
        let oldest = history.get(at).and_then(|kept| kept.time);
        let newest = history.back().and_then(|kept| kept.time);
        let is_near = oldest
            .zip(newest)
            .is_some_and(|(oldest, newest)| u128::from(newest.abs_diff(oldest)) < time);
        // What such frames lie in may be all that upstream has.
        let frames = history.iter().rev().filter(|kept| !kept.event);
        is_near && !frames.skip(promised).any(|kept| kept.is_waited_for)
    }
}
