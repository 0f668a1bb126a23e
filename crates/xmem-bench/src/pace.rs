// SPDX-License-Identifier: MPL-2.0

//! When the next frame is due.

use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Pace {
    period: Duration,
    due: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(fps: u32) -> Self {
        Self {
            period: Duration::from_secs(1) / fps,
            due: None,
        }
    }

    /// Sleeps until then.
    pub(crate) fn wait(&mut self) {
        let now = Instant::now();
        let due = self.due.unwrap_or(now);
        thread::sleep(due.saturating_duration_since(now));
        // Frames that could not be made in time are left out, as a camera does.
        self.due = Some(due.max(now) + self.period);
    }
}
