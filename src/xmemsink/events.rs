// SPDX-License-Identifier: MPL-2.0

//! Events that stand between two frames, and those that cannot travel.

use std::collections::BTreeSet;

use gst::subclass::prelude::*;
use xmem_core::{AcquireError, Canceller, EventError, FrameMeta, PublishError};

use super::{
    base::{self, Data},
    imp::XmemSink,
    log::CAT,
    started::Started,
};
use crate::event::downstream::{self, Packed};
use crate::lock::lock;

/// Kinds of events that are remembered to have been reported.
const MOST_SAID: usize = 64;

/// What became of events.
#[derive(Debug, Default, Clone)]
pub(super) struct Figures {
    /// Handed over.
    pub(super) shared: u64,
    /// Given up.
    pub(super) dropped: u64,
    said: BTreeSet<String>,
}

impl XmemSink {
    /// Publishes an event that stands between two frames. `None`: it is none of these. `Some(false)`: the stream is being
    /// stopped.
    pub(super) fn share_event(&self, event: &gst::Event) -> Option<bool> {
        let packed = match downstream::pack(event)? {
            Ok(packed) => packed,
            Err(reason) => {
                self.give_up(event, reason);
                return Some(true);
            }
        };
        let Some(started) = self.started() else {
            return Some(false);
        };
        let Packed {
            attachments,
            when,
            flags,
        } = packed;
        let mut meta = FrameMeta {
            producer: started.program,
            flags,
            attachments,
            ..FrameMeta::default()
        };
        // Other events come from any thread, and have no time.
        let waits = event.is_serialized();
        if waits {
            if !self.wait_until_due(event) {
                return Some(false);
            }
            meta.pts = when.pts().map(gst::ClockTime::nseconds);
            meta.duration = when.duration().map(gst::ClockTime::nseconds);
        }
        loop {
            if waits {
                let Ok(timeline) = self.make_way(&started, Data::Event(event)) else {
                    return Some(false);
                };
                meta.timestamp = self.stamps(&timeline, &when).presentation;
            }
            if let Some(goes_on) = self.publish_event(&started, event, &meta) {
                return Some(goes_on);
            }
        }
    }

    /// Gives the pool what is new in the sticky state although no frame comes, before the end of the stream.
    pub(super) fn share_rest(&self, started: &Started, event: &gst::EventRef) -> bool {
        if !std::mem::take(&mut lock(&self.stream).sticky_is_untold) {
            return true;
        }
        if started.is_lossless() {
            let room = |cancel: &Canceller| started.producer.wait_for_room(cancel);
            if self.wait(Data::Event(event), room).is_err() {
                return false;
            }
        }
        loop {
            if let Some(goes_on) = self.publish_event(started, event, &FrameMeta::default()) {
                return goes_on;
            }
        }
    }

    /// A gap is handed over when it is due, as the frame that it stands for would be.
    fn wait_until_due(&self, event: &gst::Event) -> bool {
        if event.type_() != gst::EventType::Gap {
            return true;
        }
        if self.hands_over_at_once() {
            return base::preroll(&self.obj(), Data::Event(event)).is_ok();
        }
        gst_base::subclass::prelude::BaseSinkImplExt::parent_event(self, event.clone())
    }

    /// `Some(false)`: the stream is being stopped. `None`: a wait was called off. After a pause the event has another time.
    fn publish_event(
        &self,
        started: &Started,
        event: &gst::EventRef,
        meta: &FrameMeta,
    ) -> Option<bool> {
        // Other events come from any thread, and none of those may wait.
        let waits = started.is_lossless() && event.is_serialized();
        let attempt = |cancel: &Canceller| {
            if waits {
                started
                    .producer
                    .publish_event_wait(meta.clone(), None, cancel)
            } else {
                started.producer.publish_event(meta.clone())
            }
        };
        let was_called_off =
            |error: &EventError| matches!(error, EventError::Acquire(AcquireError::Cancelled));
        let result = if waits {
            let tried =
                self.interrupts
                    .try_once(&self.obj(), Data::Event(event), attempt, was_called_off);
            match tried {
                Ok(tried) => tried?,
                Err(_) => return Some(false),
            }
        } else {
            attempt(self.interrupts.canceller())
        };
        Some(match result {
            Ok(_) => {
                gst::debug!(CAT, imp = self, "Shared {event:?}");
                lock(&self.stream).sticky_is_untold = false;
                if !meta.attachments.is_empty() {
                    lock(&self.events).shared += 1;
                }
                true
            }
            Err(
                EventError::Acquire(AcquireError::Closed)
                | EventError::Publish(PublishError::Closed),
            ) => false,
            Err(error) => {
                self.give_up(event, &error.to_string());
                true
            }
        })
    }

    /// Counts an event that consumers do not get, and names it the first time.
    pub(super) fn give_up(&self, event: &gst::EventRef, reason: &str) {
        let name = match event.structure() {
            Some(structure) if event.type_().name().starts_with("custom") => {
                format!("{} {}", event.type_().name(), structure.name())
            }
            _ => event.type_().name().to_string(),
        };
        let is_new = {
            let mut figures = lock(&self.events);
            figures.dropped += 1;
            figures.said.len() < MOST_SAID && figures.said.insert(name.clone())
        };
        if is_new {
            gst::warning!(
                CAT,
                imp = self,
                "Consumers do not get the event {name:?}: {reason}"
            );
        }
    }
}
