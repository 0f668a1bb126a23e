// SPDX-License-Identifier: MPL-2.0

//! From an entry of the pool to a buffer that leaves the element.

use gst::subclass::prelude::*;
use xmem_core::{BudgetLimit, Consumer, FrameMeta, ReadLease, ReceiveError};

use super::{
    XmemSrcOverBudget,
    delivery::{Converter, Nonsense, Way},
    imp::{CAT, Started, Stop, XmemSrc},
    messages::Loss,
    times::Times,
};
use crate::{frame::Memory, lock::lock};

/// What becomes of a received frame.
pub(super) enum Received {
    Buffer(gst::Buffer, Way),
    Dropped,
    /// It was waited for when the element had to stop. Only frames in device memory are.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code))]
    CalledOff,
    /// The key frame that it needs is missing.
    Undecodable,
}

impl XmemSrc {
    /// Waits for a frame. `None`: there was one, and it was dropped.
    pub(super) fn receive(
        &self,
        started: &mut Started,
        consumer: &mut Consumer,
    ) -> Result<Option<gst::Buffer>, Stop> {
        match consumer.receive(None) {
            Ok(lease) if lease.meta().event => self.pass(started, &lease).map(|()| None),
            // It was given to be let go of soon, which downstream promises nobody.
            Ok(lease)
                if consumer.budget() == 0
                    && started.settings.over_budget == XmemSrcOverBudget::Copy =>
            {
                self.warn_of_budget(started, consumer);
                let received = self.receive_over_budget(started, &lease)?;
                drop(lease);
                received.map_or(Ok(None), |received| {
                    self.deliver(started, consumer, received)
                })
            }
            Ok(lease) => {
                self.follow(started, &lease)?;
                if !self.is_decodable(started, lease.meta()) {
                    return self.deliver(started, consumer, Received::Undecodable);
                }
                if lease.is_on_device() {
                    let received = self.receive_device(started, &lease, false)?;
                    drop(lease);
                    return self.deliver(started, consumer, received);
                }
                let times = self.stamp(started, lease.meta());
                let received =
                    self.convert(times, |converter| converter.in_place(lease, &self.tally))?;
                self.deliver(started, consumer, received)
            }
            Err(ReceiveError::OverBudget { budget }) => {
                gst::log!(CAT, imp = self, "All {budget} slots of the budget are held");
                self.warn_of_budget(started, consumer);
                let received = consumer
                    .receive_with(None, |lease| self.receive_over_budget(started, lease))
                    .map_err(|error| self.failed(error))??;
                received.map_or(Ok(None), |received| {
                    self.deliver(started, consumer, received)
                })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Warns once that the producer lets this source hold fewer slots than it asked for, when those are used up.
    fn warn_of_budget(&self, started: &mut Started, consumer: &Consumer) {
        let (budget, limit) = (consumer.budget(), consumer.budget_limit());
        if limit == BudgetLimit::Asked || std::mem::replace(&mut started.said_budget, true) {
            return;
        }
        let settings = &started.settings;
        let outcome = match settings.over_budget {
            XmemSrcOverBudget::Copy => "copied",
            XmemSrcOverBudget::Drop => "dropped",
        };
        gst::element_imp_warning!(
            self,
            gst::ResourceError::NoSpaceLeft,
            (
                "Frames of pool {:?} are {outcome}: downstream may hold {budget} at once. Raise {limit} on xmemsink",
                settings.pool
            )
        );
    }

    /// What becomes of an entry that cannot be held. `None`: it was no frame.
    fn receive_over_budget(
        &self,
        started: &mut Started,
        lease: &ReadLease,
    ) -> Result<Option<Received>, Stop> {
        if lease.meta().event {
            return self.pass(started, lease).map(|()| None);
        }
        if started.settings.over_budget == XmemSrcOverBudget::Drop {
            self.follow_sequence(started, lease.meta());
            return Ok(Some(self.give_up(started, "over-budget=drop")));
        }
        self.follow(started, lease)?;
        if !self.is_decodable(started, lease.meta()) {
            return Ok(Some(Received::Undecodable));
        }
        if lock(&self.stream).format.memory == Memory::Dmabuf {
            return Ok(Some(
                self.give_up(started, "no copy of a DMA buffer is one"),
            ));
        }
        if lease.is_on_device() {
            return self.receive_device(started, lease, true).map(Some);
        }
        let times = self.stamp(started, lease.meta());
        self.convert(times, |converter| converter.copied(lease))
            .map(Some)
    }

    #[cfg(not(feature = "cuda"))]
    fn receive_device(
        &self,
        _started: &mut Started,
        _lease: &ReadLease,
        _over_budget: bool,
    ) -> Result<Received, Stop> {
        gst::element_imp_error!(
            self,
            gst::StreamError::Format,
            ("The pool's frames lie on a CUDA device, and this plugin was built without CUDA: have the producer download them")
        );
        Err(Stop::Flow(gst::FlowError::Error))
    }

    fn failed(&self, error: ReceiveError) -> Stop {
        match error {
            ReceiveError::Cancelled => Stop::Flow(gst::FlowError::Flushing),
            ReceiveError::Eos => Stop::Over,
            ReceiveError::ProducerLost => Stop::Lost(Loss::Gone),
            // The producer goes on without us; we may join again.
            ReceiveError::TimedOut => {
                gst::warning!(CAT, imp = self, "{error}");
                Stop::Lost(Loss::TimedOut)
            }
            error => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Read,
                    ("Cannot receive a frame: {error}")
                );
                Stop::Flow(gst::FlowError::Error)
            }
        }
    }

    pub(super) fn convert(
        &self,
        times: Times,
        convert: impl FnOnce(&Converter<'_>) -> Result<(gst::Buffer, Way), Nonsense>,
    ) -> Result<Received, Stop> {
        let (format, any_layout) = {
            let stream = lock(&self.stream);
            // What lies in other memory than the host's stays there, whatever downstream says.
            let any_layout = stream.video_meta || stream.format.memory != Memory::Any;
            (stream.format.clone(), any_layout)
        };
        let converter = Converter {
            format: &format,
            any_layout,
            times,
            losses: &self.losses,
        };
        let converted = convert(&converter);
        self.name_losses();
        match converted {
            Ok((buffer, way)) => Ok(Received::Buffer(buffer, way)),
            Err(Nonsense(reason)) => {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ("The producer describes a frame that cannot be: {reason}")
                );
                Err(Stop::Flow(gst::FlowError::Error))
            }
        }
    }

    /// Says which metas are left out, once for each name.
    fn name_losses(&self) {
        for (name, why) in self.losses.news() {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("Frames come without their {name}: {why}. See the field dropped-metas of stats")
            );
        }
    }

    /// Counts the frame and finishes it.
    fn deliver(
        &self,
        started: &mut Started,
        consumer: &Consumer,
        received: Received,
    ) -> Result<Option<gst::Buffer>, Stop> {
        // The producer is told first: who sees a figure here finds it there too.
        let (mut buffer, way) = match received {
            Received::Buffer(buffer, way) => (buffer, way),
            Received::Dropped | Received::CalledOff => {
                // What comes next has it behind itself, as with one that was missed.
                started.discont = true;
                started.gate.close();
                consumer.note_dropped();
                lock(&self.counted).figures.dropped += 1;
                return match received {
                    Received::CalledOff => Err(Stop::Flow(gst::FlowError::Flushing)),
                    _ => Ok(None),
                };
            }
            Received::Undecodable => {
                consumer.note_dropped();
                lock(&self.counted).figures.undecodable += 1;
                return Ok(None);
            }
        };
        if way == Way::InPlace {
            lock(&self.counted).figures.zero_copy += 1;
        } else {
            consumer.note_copied();
            lock(&self.counted).figures.copied += 1;
            if !std::mem::replace(&mut started.said_copied, true) {
                let reason = match way {
                    Way::OverBudget => "downstream holds as many as it may: see max-held",
                    #[cfg(feature = "cuda")]
                    Way::Downloaded => "they lie on a CUDA device, and download is set",
                    _ if lock(&self.stream).is_cuda() => {
                        "their planes do not lie as GStreamer's CUDA elements expect"
                    }
                    _ => "downstream cannot read their layout, since it does not know GstVideoMeta",
                };
                gst::warning!(
                    gst::CAT_PERFORMANCE,
                    imp = self,
                    "Frames are copied: {reason}"
                );
            }
        }
        if std::mem::take(&mut started.discont) {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        gst::trace!(CAT, imp = self, "{way:?} {buffer:?}");
        Ok(Some(buffer))
    }

    /// Drops a frame that cannot be held, and says why once: the frames' sequence has gaps then, and nothing else looks wrong.
    fn give_up(&self, started: &mut Started, why: &str) -> Received {
        if !std::mem::replace(&mut started.said_dropped, true) {
            gst::warning!(
                gst::CAT_PERFORMANCE,
                imp = self,
                "Frames are dropped: downstream holds as many as max-held allows, and {why}"
            );
        }
        Received::Dropped
    }

    pub(super) fn stamp(&self, started: &mut Started, meta: &FrameMeta) -> Times {
        let course = lock(&self.stream).course;
        started.stamper.stamp(&self.obj(), meta, &course)
    }
}
