// SPDX-License-Identifier: MPL-2.0

//! What a frame or an event waits for before it gets into the pool.

use std::sync::Mutex;

use xmem_core::{Canceller, WaitError};

use super::{
    base::Data, log::CAT, settings::Settings, started::Started, stream::Stream, times::Times,
    waiting::Interrupts,
};
use crate::{lock, timeline::Timeline};

/// A started sink, as its streaming thread sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) sink: &'a gst_base::BaseSink,
    pub(super) started: &'a Started,
    /// As they are now: some can be changed while frames flow.
    pub(super) settings: &'a Mutex<Settings>,
    pub(super) stream: &'a Stream,
    pub(super) times: &'a Times,
    pub(super) interrupts: &'a Interrupts,
}

impl Way<'_> {
    /// Waits until something may be put into the pool, and gives the pool the sticky state that it belongs to.
    pub(super) fn clear(&self, data: Data<'_>) -> Result<Timeline, gst::FlowError> {
        let producer = &self.started.producer;
        if self.started.settings.wait_for_connection && producer.num_consumers() == 0 {
            gst::debug!(CAT, obj = self.sink, "Waiting for a consumer");
            self.wait(data, |cancel| producer.wait_for_consumers(1, None, cancel))?;
        }
        if self.started.is_lossless() {
            self.wait_for_room(data)?;
        }
        // Only now, since the pipeline may have been paused while this waited.
        let pace = lock(self.settings).pace;
        let timeline = self.times.timeline(self.sink, pace);
        self.stream.note_timeline(timeline);
        self.stream.share(self.sink, producer)?;
        Ok(timeline)
    }

    /// Waits until lossless consumers have room for one more frame.
    pub(super) fn wait_for_room(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        self.wait(data, |cancel| {
            self.started.producer.wait_for_room(None, cancel)
        })
    }

    /// Waits until lossless consumers have got all frames.
    pub(super) fn drain(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        gst::debug!(
            CAT,
            obj = self.sink,
            "Waiting until consumers have got all frames"
        );
        self.wait(data, |cancel| self.started.producer.drain(None, cancel))
    }

    fn wait(
        &self,
        data: Data<'_>,
        wait: impl Fn(&Canceller) -> Result<(), WaitError>,
    ) -> Result<(), gst::FlowError> {
        let was_called_off = |error: &WaitError| *error == WaitError::Cancelled;
        // All else that can end these waits is that the pool is closed.
        self.interrupts
            .wait(self.sink, data, wait, was_called_off)?
            .map_err(|_| gst::FlowError::Flushing)
    }
}
