// SPDX-License-Identifier: MPL-2.0

//! Errors of the pipeline that the sink is in. A source that fails, such as a camera that is unplugged, posts an error and
//! then sends EOS. The stream has not ended in that case: the producer is lost.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use gst::{glib, prelude::*};

use crate::lock;

#[derive(Debug, Default)]
pub(super) struct Failures {
    /// There was an error since the stream began.
    happened: Arc<AtomicBool>,
    watched: Mutex<Option<(gst::Bus, glib::SignalHandlerId)>>,
}

impl Failures {
    /// Notes errors from now on. An error is known before an EOS that the same thread sends after it.
    pub(super) fn watch(&self, sink: &gst::Element) {
        self.forget();
        let mut top: gst::Object = sink.clone().upcast();
        while let Some(parent) = top.parent() {
            top = parent;
        }
        let Some(bus) = top.downcast::<gst::Element>().ok().and_then(|it| it.bus()) else {
            return;
        };
        bus.enable_sync_message_emission();
        let happened = self.happened.clone();
        let handler =
            bus.connect_sync_message(Some("error"), move |_, _| happened.store(true, Relaxed));
        *lock(&self.watched) = Some((bus, handler));
    }

    /// Ends [`watch`](Self::watch).
    pub(super) fn stop(&self) {
        let watched = lock(&self.watched).take();
        if let Some((bus, handler)) = watched {
            bus.disconnect(handler);
            bus.disable_sync_message_emission();
        }
    }

    /// A stream begins.
    pub(super) fn forget(&self) {
        self.happened.store(false, Relaxed);
    }

    pub(super) fn have_happened(&self) -> bool {
        self.happened.load(Relaxed)
    }
}
