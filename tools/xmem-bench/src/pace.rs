// SPDX-License-Identifier: MPL-2.0

//! Paces the frames of the producer.

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

    /// Waits until the next frame is due. `is_polled`: does not sleep.
    pub(crate) fn wait(&mut self, is_polled: bool) {
        let now = Instant::now();
        let due = self.due.unwrap_or(now);
        if is_polled {
            while Instant::now() < due {
                std::hint::spin_loop();
            }
        } else {
            thread::sleep(due.saturating_duration_since(now));
        }
        // Frames that are overdue are skipped, as a camera does.
        self.due = Some(due.max(now) + self.period);
    }
}
