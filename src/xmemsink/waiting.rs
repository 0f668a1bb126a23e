// SPDX-License-Identifier: MPL-2.0

//! Waits in the streaming thread, for a consumer or a slot, that do not block a change of state.
//!
//! The streaming thread holds the preroll lock, and a change of state needs it too. GstBaseSink calls `unlock` before a pause,
//! a flush and a stop. It does not in one case: it can let a buffer through although the pipeline was paused again meanwhile,
//! and then calls `unlock` only when the pipeline plays.

use std::sync::Mutex;

use xmem_core::Canceller;

use super::base::{self, Data};
use crate::lock;

/// Why waits are forbidden.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reason {
    /// Between `unlock` and `unlock_stop`.
    Unlocked,
    /// The state is being changed to PLAYING.
    Resuming,
}

/// Cancels waits, and records the reasons.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    reasons: Mutex<(bool, bool)>,
    canceller: Canceller,
}

impl Interrupts {
    /// Sets or clears a reason. Waits are cancelled while a reason is set.
    pub(super) fn set(&self, reason: Reason, is_so: bool) {
        let mut reasons = lock(&self.reasons);
        match reason {
            Reason::Unlocked => reasons.0 = is_so,
            Reason::Resuming => reasons.1 = is_so,
        }
        // Under the lock, so that the last call sets the final state.
        if reasons.0 || reasons.1 {
            self.canceller.cancel();
        } else {
            self.canceller.reset();
        }
    }

    pub(super) fn canceller(&self) -> &Canceller {
        &self.canceller
    }

    /// Repeats an attempt that may wait, until it ends without being cancelled.
    pub(super) fn wait<T, E>(
        &self,
        sink: &gst_base::BaseSink,
        data: Data<'_>,
        attempt: impl Fn(&Canceller) -> Result<T, E>,
        is_cancelled: impl Fn(&E) -> bool,
    ) -> Result<Result<T, E>, gst::FlowError> {
        loop {
            let tried = self.try_once(sink, data, &attempt, &is_cancelled)?;
            if let Some(result) = tried {
                return Ok(result);
            }
        }
    }

    /// Tries once. For attempts that need new preparation after a pause of the pipeline. `None`: the wait was cancelled; try
    /// again.
    pub(super) fn try_once<T, E>(
        &self,
        sink: &gst_base::BaseSink,
        data: Data<'_>,
        attempt: impl Fn(&Canceller) -> Result<T, E>,
        is_cancelled: impl Fn(&E) -> bool,
    ) -> Result<Option<Result<T, E>>, gst::FlowError> {
        base::preroll(sink, data)?;
        match attempt(&self.canceller) {
            Err(error) if is_cancelled(&error) => {
                while self.canceller.is_cancelled() {
                    base::yield_preroll_lock(sink);
                }
                Ok(None)
            }
            result => Ok(Some(result)),
        }
    }
}
