// SPDX-License-Identifier: MPL-2.0

//! Buffers and events at a pad.

use std::sync::{Arc, Mutex};

use gst::prelude::*;

/// Buffers and events at a pad, in order. `None` is a buffer.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Option<gst::Event>>>>);

impl Log {
    pub(crate) fn of(pad: &gst::Pad) -> Self {
        let log = Self::default();
        let noted = log.clone();
        let kinds = gst::PadProbeType::EVENT_DOWNSTREAM
            | gst::PadProbeType::EVENT_FLUSH
            | gst::PadProbeType::BUFFER;
        pad.add_probe(kinds, move |_, info| {
            let event = info.event().cloned();
            noted.0.lock().unwrap().push(event);
            gst::PadProbeReturn::Ok
        });
        log
    }

    pub(crate) fn events(&self) -> Vec<gst::Event> {
        self.0.lock().unwrap().iter().flatten().cloned().collect()
    }

    pub(crate) fn of_type(&self, kind: gst::EventType) -> Vec<gst::Event> {
        let mut events = self.events();
        events.retain(|event| event.type_() == kind);
        events
    }

    /// The names of the events; for custom events, the names of their structures.
    pub(crate) fn names(&self) -> Vec<String> {
        let log = self.0.lock().unwrap();
        log.iter()
            .map(|item| match item {
                None => "buffer".to_owned(),
                Some(event) if event.type_().name().starts_with("custom") => {
                    event.structure().unwrap().name().to_string()
                }
                Some(event) => event.type_().name().to_string(),
            })
            .filter(|name| name != "latency")
            .collect()
    }
}
