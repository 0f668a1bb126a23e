// SPDX-License-Identifier: MPL-2.0

//! The producers that are found and lost, and the element messages about them.
//!
//! * `GstXmemProducerLost`: the connection to the producer was lost before the end of the stream. Fields `pool` (string),
//!   `pid` (guint, the producer's) and `reason` (string): `gone`, the producer was stopped or killed; `timed-out`, the
//!   producer disconnected this source because it blocked lossless delivery. #GstXmemSrc:on-producer-lost sets the next
//!   step.
//! * `GstXmemProducerBack`: connected again, to the same or to another producer. Fields `pool` (string) and `pid`
//!   (guint).

use std::time::Duration;

use gst::prelude::*;
use xmem_core::{
    BudgetLimit, ConnectError, ConsumerBuilder, ReceiveError,
    follow::{FollowError, Follower, Lost, OnEos, OnLost, OverBudget},
};

use super::{
    base::CAT,
    downstream,
    run::{SourceContext, Started},
    settings::{Settings, XmemSrcOnEos, XmemSrcOnProducerLost, XmemSrcOverBudget},
};

/// A warning is posted after this time without a producer.
pub(super) const WARN_AFTER: Duration = Duration::from_secs(2);

/// The longest wait for the sticky state of a stream that has ended.
const STATE_TIME: Duration = Duration::from_secs(2);

/// Makes a follower with these settings.
pub(super) fn follower(settings: &Settings, builder: ConsumerBuilder) -> Follower {
    let timeout = settings.connection_timeout;
    builder
        .follow()
        .connect_timeout((timeout > 0).then(|| Duration::from_nanos(timeout)))
        .on_eos(match settings.on_eos {
            XmemSrcOnEos::End => OnEos::End,
            XmemSrcOnEos::Wait => OnEos::Wait,
        })
        .on_lost(match settings.on_producer_lost {
            XmemSrcOnProducerLost::Wait => OnLost::Wait,
            // The element posts a message before it ends.
            XmemSrcOnProducerLost::Eos | XmemSrcOnProducerLost::Error => OnLost::Fail,
        })
        .over_budget(match settings.when_over_budget() {
            XmemSrcOverBudget::Copy => OverBudget::Copy,
            XmemSrcOverBudget::Drop => OverBudget::Drop,
        })
}

/// Called when the follower has joined a producer.
#[cold]
pub(super) fn joined(
    source: SourceContext<'_>,
    follower: &Follower,
    started: &mut Started,
    again: bool,
) {
    let Some(consumer) = follower.consumer() else {
        return;
    };
    let (settings, pid) = (source.settings, consumer.producer_pid());
    gst::info!(CAT, obj = source.element, "Connected to process {pid}");
    let limit = consumer.budget_limit();
    if let Some(asked) = settings.requested_budget()
        && limit != BudgetLimit::Asked
    {
        gst::warning!(
            CAT,
            obj = source.element,
            "Asked to hold {asked} slots, granted {}: raise {limit} on xmemsink",
            consumer.budget()
        );
    }
    if again {
        let back = gst::Structure::builder("GstXmemProducerBack")
            .field("pool", settings.pool.to_string_lossy().into_owned())
            .field("pid", pid);
        post(source.element, back.build());
    }
    source.ask_to_keep();
    started.join(consumer.has_resumed(), consumer.delivery());
}

/// Called when the producer's stream has ended and another may follow.
#[cold]
pub(super) fn stream_ended(source: SourceContext<'_>, started: &mut Started) {
    started.end(source);
    gst::info!(
        CAT,
        obj = source.element,
        "End of stream, waiting for what follows"
    );
}

/// Called when the producer is lost without an end of stream.
#[cold]
pub(super) fn lost(source: SourceContext<'_>, lost: &Lost) {
    let mut reason = "gone";
    if matches!(lost.error, ReceiveError::TimedOut) {
        gst::warning!(CAT, obj = source.element, "{}", lost.error);
        reason = "timed-out";
    }
    let policy = source.settings.on_producer_lost;
    gst::info!(
        CAT,
        obj = source.element,
        "The producer is gone: {policy:?}"
    );
    let lost = gst::Structure::builder("GstXmemProducerLost")
        .field("pool", source.settings.pool.to_string_lossy().into_owned())
        .field("pid", lost.producer_pid)
        .field("reason", reason);
    post(source.element, lost.build());
}

/// Posts why the follower has ended. Returns the flow of the streaming thread.
#[cold]
pub(super) fn ended(
    source: SourceContext<'_>,
    follower: &Follower,
    started: &mut Started,
    error: FollowError,
) -> gst::FlowError {
    let settings = source.settings;
    let (kind, text) = match error {
        FollowError::Cancelled => return gst::FlowError::Flushing,
        FollowError::End => return end_of_stream(source, follower, started),
        FollowError::Lost(gone) => {
            lost(source, &gone);
            if settings.on_producer_lost == XmemSrcOnProducerLost::Eos {
                return gst::FlowError::Eos;
            }
            let pool = &settings.pool;
            let text =
                format!("The producer of pool {pool:?} has ended, and on-producer-lost=error");
            (gst::ResourceError::Read, text)
        }
        FollowError::NoProducer(error) => {
            let text = format!("No producer before the connection-timeout: {error}");
            (gst::ResourceError::NotFound, text)
        }
        FollowError::Connect(error) => {
            let text = format!("Cannot join the pool: {error}");
            (gst::ResourceError::OpenRead, text)
        }
        FollowError::Receive(error @ ReceiveError::NoDmabuf(_)) => {
            let text = format!("With dmabuf=true, {error}");
            (gst::ResourceError::Settings, text)
        }
        error => {
            let text = format!("Cannot receive a frame: {error}");
            (gst::ResourceError::Read, text)
        }
    };
    gst::element_error!(source.element, kind, ("{text}"));
    gst::FlowError::Error
}

/// Ends the stream, because the producer's stream has ended.
fn end_of_stream(
    source: SourceContext<'_>,
    follower: &Follower,
    started: &mut Started,
) -> gst::FlowError {
    started.end(source);
    gst::info!(CAT, obj = source.element, "End of stream");
    // A source that joined after the last frame still sends the start of the stream.
    let consumer = follower.consumer();
    let sticky = consumer.and_then(|consumer| consumer.wait_sticky(Some(STATE_TIME)));
    if let Some(sticky) = sticky
        && let Err(flow) = downstream::update(source, started, &sticky, None, false)
    {
        return flow;
    }
    downstream::push_segment(source);
    gst::FlowError::Eos
}

/// Warns that there is no producer.
#[cold]
pub(super) fn warn_of_wait(source: SourceContext<'_>, follower: &Follower, error: &ConnectError) {
    let pool = &source.settings.pool;
    let Ok(path) = follower.next_join().socket_path() else {
        return;
    };
    gst::element_warning!(
        source.element,
        gst::ResourceError::NotFound,
        (
            "Waiting for a producer of pool {pool:?} at {}: {error}; {}",
            path.display(),
            xmem_core::discovery::pools_in_words(pool)
        )
    );
}

/// The caller holds no lock, because a bus handler may read properties.
fn post(src: &gst_base::BaseSrc, structure: gst::Structure) {
    // It fails only if the element has no bus.
    let _ = src.post_message(gst::message::Element::builder(structure).src(src).build());
}
