// SPDX-License-Identifier: MPL-2.0

//! The waits of a frame or an event before it gets into the pool.

use xmem_core::{Canceller, WaitError};

use super::{
    base::Data,
    log::CAT,
    started::Started,
    stream::Stream,
    times::{Now, Times},
    waiting::Interrupts,
};

/// A started sink, for its streaming thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) sink: &'a gst_base::BaseSink,
    pub(super) started: &'a Started,
    pub(super) stream: &'a Stream,
    pub(super) times: &'a Times,
    pub(super) interrupts: &'a Interrupts,
}

impl Way<'_> {
    /// Waits until something may be put into the pool, and gives the pool the sticky state that it belongs to.
    pub(super) fn clear(&self, data: Data<'_>) -> Result<Now, gst::FlowError> {
        let producer = &self.started.producer;
        if self.started.settings.wait_for_connection && producer.num_consumers() == 0 {
            self.wait_for_consumer(data)?;
        }
        if self.started.is_lossless() {
            self.wait_for_room(data)?;
        }
        // Only now, since the pipeline may have been paused while this waited.
        let now = self.times.now(self.sink);
        self.stream.share(self.sink, producer, Some(now.timeline))?;
        Ok(now)
    }

    #[cold]
    fn wait_for_consumer(&self, data: Data<'_>) -> Result<(), gst::FlowError> {
        gst::debug!(CAT, obj = self.sink, "Waiting for a consumer");
        self.wait(data, |cancel| {
            self.started.producer.wait_for_consumers(1, None, cancel)
        })
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
        // The only other error here is a closed pool.
        self.interrupts
            .wait(self.sink, data, wait, was_called_off)?
            .map_err(|_| gst::FlowError::Flushing)
    }
}
