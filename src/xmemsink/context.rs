// SPDX-License-Identifier: MPL-2.0

//! What a frame or an event must wait for before it is published.

use xmem_core::{Canceller, WaitError};

use super::{
    base::Data,
    log::CAT,
    started::Started,
    stream::Stream,
    times::{TimeMapping, Times},
    waiting::Interrupts,
};

/// The parts of a started sink that its streaming thread uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinkContext<'a> {
    pub(super) sink: &'a gst_base::BaseSink,
    pub(super) started: &'a Started,
    pub(super) stream: &'a Stream,
    pub(super) times: &'a Times,
    pub(super) interrupts: &'a Interrupts,
}

impl SinkContext<'_> {
    /// Waits until a frame or event may be published, then gives the pool the present sticky state.
    pub(super) fn prepare(&self, data: Data<'_>) -> Result<TimeMapping, gst::FlowError> {
        let producer = &self.started.producer;
        if self.started.settings.wait_for_connection && producer.num_consumers() == 0 {
            self.wait_for_consumer(data)?;
        }
        if self.started.is_lossless() {
            self.wait_for_room(data)?;
        }
        // After the waits, because the pipeline may have been paused meanwhile.
        let mapping = self.times.mapping(self.sink);
        self.stream
            .share(self.sink, producer, Some(mapping.timeline))?;
        Ok(mapping)
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

    /// Waits until lossless consumers have taken all frames.
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
        let is_cancelled = |error: &WaitError| *error == WaitError::Cancelled;
        // The only other error is a closed pool.
        self.interrupts
            .wait(self.sink, data, wait, is_cancelled)?
            .map_err(|_| gst::FlowError::Flushing)
    }
}
