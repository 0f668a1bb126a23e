// SPDX-License-Identifier: MPL-2.0

//! Events between two frames, and events that cannot be published.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use xmem_core::{AcquireError, Canceller, EventError, FrameFlags, FrameMeta, PublishError, Wait};

use super::{
    base::{CAT, Data},
    stream::UNSHARED,
    when::SinkContext,
};
use crate::{
    lock,
    stream::event::{self, Packed},
};

/// At most this many names of dropped events are remembered, so that each is reported once.
const MAX_REPORTED: usize = 64;
/// At most this many events are deferred in a pause.
const MAX_DEFERRED: usize = 64;

/// The counts of published and dropped events, and the events that a pause defers.
#[derive(Debug, Default)]
pub(super) struct Events {
    state: Mutex<State>,
    /// Checked for each frame. Relaxed: only the streaming thread reads it.
    has_deferred: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    shared: u64,
    dropped: u64,
    reported: BTreeSet<String>,
    /// Published before the next frame.
    deferred: VecDeque<gst::Event>,
}

impl Events {
    /// Starts a new run.
    pub(super) fn reset(&self) {
        *lock(&self.state) = State::default();
        self.has_deferred.store(false, Relaxed);
    }

    /// Keeps an event of a pause until the next frame.
    #[cold]
    pub(super) fn defer(&self, sink: &gst_base::BaseSink, event: &gst::Event) {
        let is_kept = {
            let deferred = &mut lock(&self.state).deferred;
            let has_room = deferred.len() < MAX_DEFERRED;
            if has_room {
                deferred.push_back(event.clone());
            }
            has_room
        };
        if is_kept {
            self.has_deferred.store(true, Relaxed);
        } else {
            self.note_dropped(
                sink,
                event,
                "too many arrived while the pipeline was paused",
            );
        }
    }

    /// Discards the deferred events.
    pub(super) fn discard_deferred(&self) {
        self.has_deferred.store(false, Relaxed);
        let deferred = std::mem::take(&mut lock(&self.state).deferred);
        drop(deferred);
    }

    /// Publishes the deferred events. `Err`: as of [`share`](Self::share).
    #[inline]
    pub(super) fn share_deferred(
        &self,
        ctx: SinkContext<'_>,
        is_deferrable: bool,
    ) -> Result<(), gst::FlowError> {
        if self.has_deferred.load(Relaxed) {
            self.share_each_deferred(ctx, is_deferrable)
        } else {
            Ok(())
        }
    }

    #[cold]
    fn share_each_deferred(
        &self,
        ctx: SinkContext<'_>,
        is_deferrable: bool,
    ) -> Result<(), gst::FlowError> {
        loop {
            let first = lock(&self.state).deferred.front().cloned();
            let Some(event) = first else {
                self.has_deferred.store(false, Relaxed);
                return Ok(());
            };
            if let Some(Ok(packed)) = event::pack(&event) {
                self.send(ctx, &event, packed, is_deferrable)?;
            }
            lock(&self.state).deferred.pop_front();
        }
    }

    /// How many events were published, and how many were dropped.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.shared, state.dropped)
    }

    /// Publishes an event between two frames. `Err`: the stream is being stopped, or it is paused and the event is deferrable.
    pub(super) fn send(
        &self,
        ctx: SinkContext<'_>,
        event: &gst::EventRef,
        packed: Packed,
        is_deferrable: bool,
    ) -> Result<(), gst::FlowError> {
        let data = if is_deferrable {
            Data::DeferrableEvent(event)
        } else {
            Data::Event(event)
        };
        let Packed {
            attachments,
            when,
            flags,
        } = packed;
        let mut meta = FrameMeta::default()
            .flags(FrameFlags::from_bits(flags))
            .attachments(attachments);
        meta.layout_mut().producer = ctx.started.program;
        // Out-of-band events have no time, and any thread sends them.
        let waits = event.is_serialized();
        if waits {
            meta.pts = when.pts().map(gst::ClockTime::nseconds);
            meta.duration = when.duration().map(gst::ClockTime::nseconds);
        }
        loop {
            if waits {
                let mapping = match ctx.prepare(data) {
                    Err(UNSHARED) => {
                        self.note_dropped(ctx.sink, event, "the stream's state is not shared yet");
                        return Ok(());
                    }
                    mapping => mapping?,
                };
                meta.timestamp = mapping.stamps(ctx.sink, &when).presentation;
            }
            if self.publish(ctx, data, event, &meta)? {
                return Ok(());
            }
        }
    }

    /// Publishes the changed sticky state without a frame, before the end of the stream. `false`: the stream is being stopped.
    pub(super) fn share_sticky(&self, ctx: SinkContext<'_>, event: &gst::EventRef) -> bool {
        if !ctx.stream.note_sticky_delivered() {
            return true;
        }
        let data = Data::Event(event);
        if ctx.started.is_lossless() && ctx.wait_for_room(data).is_err() {
            return false;
        }
        loop {
            match self.publish(ctx, data, event, &FrameMeta::default()) {
                Ok(false) => {}
                result => return result.is_ok(),
            }
        }
    }

    /// Tries once. `false`: a wait was cancelled, and after a pause the event has another time.
    fn publish(
        &self,
        ctx: SinkContext<'_>,
        data: Data<'_>,
        event: &gst::EventRef,
        meta: &FrameMeta,
    ) -> Result<bool, gst::FlowError> {
        let producer = &ctx.started.producer;
        // Any thread may send an out-of-band event, and it must not block there.
        let waits = ctx.started.is_lossless() && event.is_serialized();
        let attempt = |cancel: &Canceller| {
            if waits {
                producer.publish_event_wait(meta.clone(), Wait::FOREVER.unless(cancel))
            } else {
                producer.publish_event(meta.clone())
            }
        };
        let is_cancelled =
            |error: &EventError| matches!(error, EventError::Acquire(AcquireError::Cancelled));
        let Some(result) = ctx.try_once(data, waits, attempt, is_cancelled)? else {
            return Ok(false);
        };
        match result {
            Ok(_) => {
                gst::debug!(CAT, obj = ctx.sink, "Shared {event:?}");
                ctx.stream.note_sticky_delivered();
                if !meta.attachments.is_empty() {
                    lock(&self.state).shared += 1;
                }
            }
            Err(
                EventError::Acquire(AcquireError::Closed)
                | EventError::Publish(PublishError::Closed),
            ) => return Err(gst::FlowError::Flushing),
            Err(error) => self.note_dropped(ctx.sink, event, &error.to_string()),
        }
        Ok(true)
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
            let mut state = lock(&self.state);
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
