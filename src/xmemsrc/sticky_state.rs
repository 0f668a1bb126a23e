// SPDX-License-Identifier: MPL-2.0

//! Sends changes of the producer's sticky state downstream.

use std::ffi::OsStr;

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::{FrameInfo, FrameMeta, ReadLease, Sticky};

use super::{
    XmemSrcTimestampMode, events,
    log::CAT,
    messages,
    source::Source,
    started::{Gap, Report, Started},
    stream::Stream,
    times::Playback,
};
use crate::{
    cuda,
    stream::{caps, event::sticky, timing},
};

/// Sends what belongs before an entry: counts missed frames, and sends changed sticky state.
pub(super) fn follow(
    source: Source<'_>,
    started: &mut Started,
    lease: &ReadLease,
) -> Result<(), gst::FlowError> {
    let version = lease.info().sticky_version;
    follow_sequence(source, started, lease.info(), lease.meta());
    // An event does not show the memory of the frames.
    let on_device =
        (!lease.meta().event).then(|| lease.is_on_device() && !source.settings.download);
    started.refresh(source.stream);
    if !started.has_sticky(version, on_device) {
        update(source, lease.sticky(), on_device)?;
        started.note_sticky(version);
        started.refresh(source.stream);
    }
    Ok(())
}

/// Moves to the sequence of an entry. Warns once if frames are missed, which otherwise only the frame rate would show.
pub(super) fn follow_sequence(
    source: Source<'_>,
    started: &mut Started,
    info: &FrameInfo,
    meta: &FrameMeta,
) {
    if let Some(gap) = started.follow_sequence(info, meta) {
        warn_of_misses(source, started, gap);
    }
}

#[cold]
fn warn_of_misses(source: Source<'_>, started: &mut Started, gap: Gap) {
    if !source.settings.newest_only && started.reports(Report::Misses) {
        // A source that is not held up takes a frame when it is published.
        let busy = timing::elapsed(gap.published_at, xmem_core::monotonic_ns());
        let why = source.latency.why_missed(gap.frames, busy);
        gst::warning!(gst::CAT_PERFORMANCE, obj = source.element, "{why}");
        gst::element_warning!(source.element, gst::StreamError::Failed, ("{why}"));
    }
}

/// Applies changes of the producer's latency and segment.
fn follow_playback(source: Source<'_>, new: &Sticky, old: &Sticky) {
    let mode = source.settings.timestamp_mode;
    let segment = new.text(sticky::SEGMENT).and_then(sticky::parse_segment);
    let playback = Playback::new(new, segment.as_ref());
    let before = source.stream.replace_playback(playback);
    let latency = source.latency(&playback);
    if source.latency(&before) != latency {
        gst::debug!(CAT, obj = source.element, "The latency is {latency}");
        source.latency.expect(latency);
        source.latency.ask(source.figures, source.stream);
        messages::latency_changed(source.element);
    }
    let is_same = source.outgoing.own_segment() == segment
        && new.get(sticky::SEGMENT_EVENT) == old.get(sticky::SEGMENT_EVENT);
    if mode != XmemSrcTimestampMode::Passthrough || is_same {
        return;
    }
    gst::debug!(CAT, obj = source.element, "Segment is {segment:?}");
    source.outgoing.set_segment(segment);
    // GstBaseSrc accepts only segments in its own format, and ends the stream at the end of a segment. So it gets an empty one,
    // and `Outgoing` replaces that before it is sent.
    let any = gst::FormattedSegment::<gst::ClockTime>::new();
    if let Err(error) = source.element.new_segment(any.upcast_ref()) {
        gst::warning!(CAT, obj = source.element, "{error}");
    }
}

/// Sends the changes of the sticky state downstream. `on_device`: whether the frames are sent in device memory. `None` for an
/// event, which does not show that.
///
/// The order is that of GStreamer: start of the stream, caps, segment, others. The segment is replaced before the caps are
/// negotiated, because GstBaseSrc sends its own segment at its next opportunity.
#[inline(never)]
pub(super) fn update(
    source: Source<'_>,
    new: &Sticky,
    on_device: Option<bool>,
) -> Result<(), gst::FlowError> {
    let (mut old, memory_changed, shown) = source.stream.replace_sticky(new.clone(), on_device);
    // Until a frame shows its memory, the caps decide.
    let memory = shown.or(source.settings.download.then_some(false));
    let begins = events::announce(source, new);
    follow_playback(source, new, &old);
    if begins {
        // All earlier events belong to the previous stream.
        old = Sticky::new();
    }
    let pad = source.element.src_pad();
    let caps = new.text(sticky::CAPS);
    if let Some(caps) = caps
        && (memory_changed || old.text(sticky::CAPS) != Some(caps))
    {
        let Some(parsed) = sticky::parse_caps(caps) else {
            gst::element_error!(
                source.element,
                gst::StreamError::Format,
                ("The producer's caps cannot be parsed: {caps:?}")
            );
            return Err(gst::FlowError::Error);
        };
        let parsed = match memory {
            Some(on_device) => caps::on_device(parsed, on_device),
            None => parsed,
        };
        gst::info!(CAT, obj = source.element, "Caps are {parsed}");
        check_caps(source, &parsed)?;
        if pad.current_caps().as_ref() == Some(&parsed) {
            // A new stream with the same caps. GstBaseSrc does not send the same caps again.
            pad.push_event(gst::event::Caps::new(&parsed));
        }
        source.stream.set_caps(parsed);
        source.latency.ask(source.figures, source.stream);
        // Sends the caps and queries downstream.
        if !source.element.negotiate() {
            return Err(if pad.pad_flags().contains(gst::PadFlags::FLUSHING) {
                gst::FlowError::Flushing
            } else {
                gst::FlowError::NotNegotiated
            });
        }
    }
    if begins {
        events::push_segment(source);
    }
    events::push_sticky(source, new, &old);
    Ok(())
}

/// Posts an error if the caps cannot be used.
fn check_caps(source: Source<'_>, caps: &gst::Caps) -> Result<(), gst::FlowError> {
    let pool = &source.settings.pool;
    let is_cuda = caps::is_cuda(caps);
    if is_cuda && !cuda::is_offered() {
        gst::element_error!(
            source.element,
            gst::CoreError::Negotiation,
            ("The frames of pool {pool:?} lie on a CUDA device. To share them there, xmemsrc needs a CUDA driver, libgstcuda of \
                 GStreamer 1.24 or later, and a plugin built with CUDA; GST_DEBUG=xmemcuda:4 shows what is missing. With a \
                 driver, download=true copies them into host memory")
        );
    } else if !is_refused(source, caps) {
        source.stream.note_refusal(false);
        return Ok(());
    } else if is_cuda {
        gst::element_error!(
            source.element,
            gst::CoreError::Negotiation,
            ("Downstream does not accept the frames of pool {pool:?}, which are on a CUDA device. The caps are {caps}; put \
                 cudaconvert, cudadownload or another element that accepts them behind xmemsrc, or set download=true for \
                 frames in host memory")
        );
    } else {
        gst::element_error!(
            source.element,
            gst::CoreError::Negotiation,
            ("Downstream does not accept the caps of pool {pool:?}: {caps}; put a converter that accepts them behind \
                 xmemsrc, or change the caps of the producer")
        );
    }
    source.stream.note_refusal(true);
    Err(gst::FlowError::NotNegotiated)
}

/// Posts an error about caps that an element further downstream refused, unless an error about the caps was posted.
/// GstBaseSrc's own error does not name them.
pub(super) fn report_late_refusal(element: &gst_base::BaseSrc, stream: &Stream, pool: &OsStr) {
    let Some(caps) = stream.caps().filter(|_| !stream.note_refusal(true)) else {
        return;
    };
    gst::element_error!(
        element,
        gst::CoreError::Negotiation,
        ("An element downstream does not accept the frames of pool {pool:?}. The element behind xmemsrc accepts the caps \
             {caps}, and a later one does not accept its output. Put a converter before that one, or change the caps of the \
             producer")
    );
}

/// Whether downstream would refuse these caps. It is queried in advance, because a refused event shows only in the flow of the
/// next buffer, and GstBaseSrc reports that without a reason.
fn is_refused(source: Source<'_>, caps: &gst::Caps) -> bool {
    let peer = source.element.src_pad().peer();
    peer.is_some_and(|peer| {
        let takes = peer.query_accept_caps(caps)
            // Converters accept any memory, and check only later whether they can convert it.
            && !(caps::is_cuda(caps) && peer.query_caps(Some(caps)).is_empty());
        !takes && !peer.pad_flags().contains(gst::PadFlags::FLUSHING)
    })
}
