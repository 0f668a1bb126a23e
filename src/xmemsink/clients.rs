// SPDX-License-Identifier: MPL-2.0

//! Signals and messages for consumers that connect and disconnect.

use std::sync::{Arc, LazyLock, OnceLock};

use gst::{glib, prelude::*};
use xmem_core::{ConsumerEvent, Departure, key_frame::KeyFrame};

use super::{log::CAT, messages, requests::Requests, settings::PROP_NUM_CLIENTS};
use crate::stream::stats;

const SIGNAL_CONNECTED: &str = "client-connected";
const SIGNAL_DISCONNECTED: &str = "client-disconnected";

pub(super) fn signals() -> &'static [glib::subclass::Signal] {
    static SIGNALS: LazyLock<Vec<glib::subclass::Signal>> = LazyLock::new(|| {
        vec![
            /**
             * GstXmemSink::client-connected:
             * @client: an `application/x-xmem-client` as in #GstXmemSink:stats
             *
             * A consumer has connected. Called on the pool's own thread, so the handler must return soon.
             */
            glib::subclass::Signal::builder(SIGNAL_CONNECTED)
                .param_types([gst::Structure::static_type()])
                .build(),
            /**
             * GstXmemSink::client-disconnected:
             * @client: an `application/x-xmem-client` as in #GstXmemSink:stats, with its last statistics and a field
             * `reason` (string): `left`, `died`, `cut-off`, `timed-out` or `closed`
             *
             * A consumer has disconnected. Called on the pool's own thread, so the handler must return soon.
             */
            glib::subclass::Signal::builder(SIGNAL_DISCONNECTED)
                .param_types([gst::Structure::static_type()])
                .build(),
        ]
    });
    SIGNALS.as_ref()
}

/// The pool's callback for events of its consumers. It blocks until the sink is started.
pub(super) fn handler(
    sink: &gst_base::BaseSink,
    requests: Arc<Requests>,
    is_started: Arc<OnceLock<()>>,
) -> impl Fn(ConsumerEvent) + Send + Sync + 'static {
    let sink = sink.downgrade();
    move |event| {
        is_started.wait();
        let Some(sink) = sink.upgrade() else { return };
        match event {
            ConsumerEvent::Connected(client) => {
                gst::info!(CAT, obj = sink, "Consumer connected: {client:?}");
                sink.emit_by_name::<()>(SIGNAL_CONNECTED, &[&stats::of_client(&client)]);
            }
            ConsumerEvent::Disconnected { consumer, reason } => {
                gst::info!(CAT, obj = sink, "Consumer gone ({reason:?}): {consumer:?}");
                let mut client = stats::of_client(&consumer);
                client.set("reason", word(reason));
                sink.emit_by_name::<()>(SIGNAL_DISCONNECTED, &[&client]);
                messages::dropped(&sink, &consumer, reason, word(reason));
            }
            ConsumerEvent::Request { name, data, .. } => {
                match KeyFrame::decode(&name, &data) {
                    Some(request) => requests.add(&sink, request),
                    None => gst::debug!(CAT, obj = sink, "Unknown request {name:?}"),
                }
                return;
            }
            ConsumerEvent::BudgetsCut { .. }
            | ConsumerEvent::CannotGrow(_)
            | ConsumerEvent::HoldsUp(_) => {
                messages::warn(&sink, &event);
                return;
            }
            _ => {}
        }
        sink.notify(PROP_NUM_CLIENTS);
    }
}

fn word(reason: Departure) -> &'static str {
    match reason {
        Departure::Left => "left",
        Departure::Died => "died",
        Departure::CutOff => "cut-off",
        Departure::TimedOut => "timed-out",
        Departure::Closed => "closed",
        _ => "other",
    }
}
