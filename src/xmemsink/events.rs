// SPDX-License-Identifier: MPL-2.0

//! Events between two frames, and events that cannot be published.

use std::collections::BTreeSet;
use std::sync::Mutex;

use xmem_core::{AcquireError, Canceller, EventError, FrameMeta, PublishError};

use super::{base::Data, context::SinkContext, log::CAT};
use crate::lock;
use crate::stream::event::downstream::Packed;

/// At most this many names of dropped events are remembered, so that each is reported once.
const MAX_REPORTED: usize = 64;

/// The figures of published and dropped events.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    shared: u64,
    dropped: u64,
    reported: BTreeSet<String>,
}

impl Events {
    /// Starts a new run.
    pub(super) fn reset(&self) {
        *lock(&self.0) = State::default();
    }

    /// How many events were published, and how many were dropped.
    pub(super) fn figures(&self) -> (u64, u64) {
        let state = lock(&self.0);
        (state.shared, state.dropped)
    }

    /// Publishes an event between two frames. `false`: the stream is being stopped.
    pub(super) fn share(
        &self,
        ctx: SinkContext<'_>,
        event: &gst::EventRef,
        packed: Packed,
    ) -> bool {
        let Packed {
            attachments,
            when,
            flags,
        } = packed;
        let mut meta = FrameMeta {
            flags,
            attachments,
            ..FrameMeta::default()
        };
        meta.producer = ctx.started.program;
        // Out-of-band events have no time, and any thread sends them.
        let waits = event.is_serialized();
        if waits {
            meta.pts = when.pts().map(gst::ClockTime::nseconds);
            meta.duration = when.duration().map(gst::ClockTime::nseconds);
        }
        loop {
            if waits {
                let Ok(mapping) = ctx.prepare(Data::Event(event)) else {
                    return false;
                };
                meta.timestamp = mapping.stamps(ctx.sink, &when).presentation;
            }
            if let Some(continues) = self.publish(ctx, event, &meta) {
                return continues;
            }
        }
    }

    /// Publishes the changed sticky state without a frame, before the end of the stream. `false`: the stream is being stopped.
    pub(super) fn share_sticky(&self, ctx: SinkContext<'_>, event: &gst::EventRef) -> bool {
        if !ctx.stream.note_sticky_delivered() {
            return true;
        }
        if ctx.started.is_lossless() && ctx.wait_for_room(Data::Event(event)).is_err() {
            return false;
        }
        loop {
            if let Some(continues) = self.publish(ctx, event, &FrameMeta::default()) {
                return continues;
            }
        }
    }

    /// Tries once. `Some(false)`: the stream is being stopped. `None`: a wait was cancelled, and after a pause the event has
    /// another time.
    fn publish(
        &self,
        ctx: SinkContext<'_>,
        event: &gst::EventRef,
        meta: &FrameMeta,
    ) -> Option<bool> {
        let producer = &ctx.started.producer;
        // Any thread may send an out-of-band event, and it must not block there.
        let waits = ctx.started.is_lossless() && event.is_serialized();
        let attempt = |cancel: &Canceller| {
            if waits {
                producer.publish_event_wait(meta.clone(), None, cancel)
            } else {
                producer.publish_event(meta.clone())
            }
        };
        let is_cancelled =
            |error: &EventError| matches!(error, EventError::Acquire(AcquireError::Cancelled));
        let result = if waits {
            let data = Data::Event(event);
            let tried = ctx
                .interrupts
                .try_once(ctx.sink, data, attempt, is_cancelled);
            match tried {
                Ok(tried) => tried?,
                Err(_) => return Some(false),
            }
        } else {
            attempt(ctx.interrupts.canceller())
        };
        Some(match result {
            Ok(_) => {
                gst::debug!(CAT, obj = ctx.sink, "Shared {event:?}");
                ctx.stream.note_sticky_delivered();
                if !meta.attachments.is_empty() {
                    lock(&self.0).shared += 1;
                }
                true
            }
            Err(
                EventError::Acquire(AcquireError::Closed)
                | EventError::Publish(PublishError::Closed),
            ) => false,
            Err(error) => {
                self.note_dropped(ctx.sink, event, &error.to_string());
                true
            }
        })
    }

    /// Counts an event that consumers do not get. Logs each name once.
    pub(super) fn note_dropped(
        &self,
        sink: &gst_base::BaseSink,
        event: &gst::EventRef,
        reason: &str,
    ) {
        let name = match event.structure() {
            Some(structure) if event.type_().name().starts_with("custom") => {
                format!("{} {}", event.type_().name(), structure.name())
            }
            _ => event.type_().name().to_string(),
        };
        let is_new = {
            let mut state = lock(&self.0);
            state.dropped += 1;
            state.reported.len() < MAX_REPORTED && state.reported.insert(name.clone())
        };
        if is_new {
            gst::warning!(
                CAT,
                obj = sink,
                "Consumers do not get the event {name:?}: {reason}"
            );
        }
    }
}
