// SPDX-License-Identifier: MPL-2.0

//! All that is sent besides buffers, in order with the events of GstBaseSrc: changes of the producer's sticky state, segments, and
//! the header of a stream (Matroska, Ogg, Vorbis and others) before the first frame. A consumer that joins late has missed it, and
//! demuxers and some parsers do not read it from the caps (`streamheader`), where muxers and encoders also put it. multifdsink and
//! tcpserversink do the same.

use std::{ffi::OsStr, sync::Arc};

use gst::prelude::*;
use gst_base::prelude::*;
use xmem_core::{ReadLease, Sticky, key_frame};

use super::{
    base::{CAT, Correction, Outgoing},
    latency,
    run::{Header, Running, SourceContext, Started},
    settings::XmemSrcTimestampMode,
    stream::{Playback, Problem, SourceStream, Units},
};
use crate::{
    cuda,
    stream::{caps, start::Description, sticky, text},
};

/// Sends what belongs before an entry: counts missed frames, and sends changed sticky state.
pub(super) fn follow(
    source: SourceContext<'_>,
    started: &mut Started,
    lease: &ReadLease,
) -> Result<(), gst::FlowError> {
    let version = lease.info().sticky_version;
    let is_next = started.follow_sequence(source, lease.info(), lease.meta());
    // An event does not show the memory of the frames.
    let on_device =
        (!lease.meta().event).then(|| lease.is_on_device() && !source.settings.download);
    started.refresh(source.stream);
    if !started.has_sticky(version, on_device) {
        update(source, started, lease.sticky(), on_device, is_next)?;
        started.note_sticky(version);
        started.refresh(source.stream);
    }
    Ok(())
}

/// Applies changes of the producer's latency and segment. Returns what its frames are.
fn follow_playback(source: SourceContext<'_>, new: &Sticky, old: &Sticky) -> Units {
    let mode = source.settings.timestamp_mode;
    let segment = new.text(sticky::SEGMENT).and_then(sticky::parse_segment);
    let playback = Playback::new(new, segment.as_ref(), mode);
    let latency = source.latency(&playback);
    let (problem, units) = (playback.problem(), playback.units());
    let before = source.stream.replace_playback(playback);
    if let Some(problem) = problem
        && before.problem() != Some(problem)
    {
        warn_of(source, problem);
    }
    if source.latency(&before) != latency {
        gst::debug!(CAT, obj = source.element, "The latency is {latency}");
        source.latency.expect(latency);
        source.ask_to_keep();
        latency::changed(source.element);
    }
    let is_same = source.outgoing.own_segment() == segment
        && new.get(sticky::SEGMENT_EVENT) == old.get(sticky::SEGMENT_EVENT);
    if mode != XmemSrcTimestampMode::Passthrough || is_same {
        return units;
    }
    gst::debug!(CAT, obj = source.element, "Segment is {segment:?}");
    source.outgoing.set_segment(segment);
    // GstBaseSrc accepts only segments in its own format, and ends the stream at the end of a segment. So it gets an empty one,
    // and `Outgoing` replaces that before it is sent.
    let any = gst::FormattedSegment::<gst::ClockTime>::new();
    if let Err(error) = source.element.new_segment(any.upcast_ref()) {
        gst::warning!(CAT, obj = source.element, "{error}");
    }
    units
}

#[cold]
fn warn_of(source: SourceContext<'_>, problem: Problem) {
    let (what, remedy) = match problem {
        Problem::Groups => (
            "encoded frames in reverse, and decoders here play each group of frames forward, at wrong times",
            "Decode before xmemsink",
        ),
        Problem::Speed => (
            "sound at another speed, and its samples take another time here: it has gaps",
            "Put scaletempo before xmemsink",
        ),
    };
    gst::element_warning!(
        source.element,
        gst::StreamError::Format,
        (
            "The producer of pool {:?} plays {what}. {remedy}, or set timestamp-mode=passthrough",
            source.settings.pool
        )
    );
}

/// Sends the changes of the sticky state downstream. `on_device`: whether the frames are sent in device memory. `None` for an
/// event, which does not show that. `is_next`: no entry before this one was missed.
///
/// The order is that of GStreamer: start of the stream, caps, segment, others. The segment is replaced before the caps are
/// negotiated, because GstBaseSrc sends its own segment at its next opportunity.
#[inline(never)]
pub(super) fn update(
    source: SourceContext<'_>,
    started: &mut Started,
    new: &Sticky,
    on_device: Option<bool>,
    is_next: bool,
) -> Result<(), gst::FlowError> {
    let (mut old, memory_changed, shown) = source.stream.replace_sticky(new.clone(), on_device);
    // Until a frame shows its memory, the caps decide.
    let memory = shown.or(source.settings.download.then_some(false));
    let begins = announce(source, new);
    let units = follow_playback(source, new, &old);
    if begins {
        // All earlier events belong to the previous stream.
        old = Sticky::new();
        let segment = started.begin_stream(source.element, units, is_next);
        let segment = segment.map(|segment| segment.clone().upcast());
        let is_converted = source.settings.timestamp_mode != XmemSrcTimestampMode::Passthrough;
        if is_converted && (units == Units::Bytes || source.outgoing.own_segment() != segment) {
            source.outgoing.set_segment(segment);
        }
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
        source.ask_to_keep();
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
        push_segment(source);
    }
    push_sticky(source, new, &old);
    Ok(())
}

/// Posts an error if the caps cannot be used.
fn check_caps(source: SourceContext<'_>, caps: &gst::Caps) -> Result<(), gst::FlowError> {
    let pool = &source.settings.pool;
    let is_cuda = caps::is_cuda(caps);
    let is_coded = caps
        .structure(0)
        .is_some_and(|it| key_frame::is_needed(it.name()));
    if is_coded && source.settings.limits_rate() {
        gst::element_error!(
            source.element,
            gst::StreamError::Format,
            ("max-rate leaves out frames, and the encoded stream of pool {pool:?} needs all of them: set max-rate=0/1, decode \
                 behind xmemsrc, and reduce the rate there with videorate; or decode in the producer")
        );
    } else if is_cuda && !cuda::is_offered() {
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
    } else if let Some(format) = unknown_format(caps) {
        gst::element_error!(
            source.element,
            gst::CoreError::Negotiation,
            (
                "GStreamer {} does not know the format {format} of pool {pool:?}, so no converter accepts it: use a newer one here, \
                 or convert the frames before xmemsink",
                sticky::gstreamer()
            )
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

/// The format of raw video, if only another version of GStreamer knows it.
fn unknown_format(caps: &gst::Caps) -> Option<&str> {
    let raw = caps.structure(0).filter(|it| it.name() == "video/x-raw")?;
    let format = raw.get::<&str>("format").ok()?;
    (gst_video::VideoFormat::from_string(format) == gst_video::VideoFormat::Unknown)
        .then_some(format)
}

/// Posts an error about caps that an element further downstream refused, unless an error about the caps was posted.
/// GstBaseSrc's own error does not name them.
pub(super) fn report_late_refusal(
    element: &gst_base::BaseSrc,
    stream: &SourceStream,
    pool: &OsStr,
) {
    let Some(caps) = stream.caps().filter(|_| !stream.note_refusal(true)) else {
        return;
    };
    gst::element_error!(
        element,
        gst::CoreError::Negotiation,
        ("An element downstream does not accept the frames of pool {pool:?}. The element behind xmemsrc accepts the caps \
             {caps}, but fails with them, or a later one does not accept its output. Put a converter before that one, or behind \
             xmemsrc, or change the caps of the producer")
    );
}

/// Whether downstream would refuse these caps. It is queried in advance, because a refused event shows only in the flow of the
/// next buffer, and GstBaseSrc reports that without a reason.
fn is_refused(source: SourceContext<'_>, caps: &gst::Caps) -> bool {
    let peer = source.element.src_pad().peer();
    peer.is_some_and(|peer| {
        let takes = peer.query_accept_caps(caps)
            // Converters accept any memory, and check only later whether they can convert it.
            && !(caps::is_cuda(caps) && peer.query_caps(Some(caps)).is_empty());
        !takes && !peer.pad_flags().contains(gst::PadFlags::FLUSHING)
    })
}

/// Whether this is GstBaseSrc's error for caps that were refused.
pub(super) fn is_not_negotiated(message: &gst::Message) -> bool {
    let gst::MessageView::Error(error) = message.view() else {
        return false;
    };
    let flow = error
        .details()
        .and_then(|details| details.get("flow-return").ok());
    flow == Some(gst::ffi::GST_FLOW_NOT_NEGOTIATED)
}

/// Corrects the events that leave by this pad. Disconnects at the end of the stream.
pub(super) fn watch(pad: &gst::Pad, outgoing: Arc<Outgoing>, running: Arc<Running>) {
    let kinds = gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::EVENT_FLUSH;
    pad.add_probe(kinds, move |pad, info| {
        let Some(gst::PadProbeData::Event(event)) = &mut info.data else {
            return gst::PadProbeReturn::Ok;
        };
        match outgoing.correct_event(pad, event) {
            Correction::Send => {}
            Correction::Drop => return gst::PadProbeReturn::Handled,
            // The pad sends an event that it stores, and this probe sees it again.
            Correction::Replace(other) => match pad.store_sticky_event(&other) {
                Ok(_) => return gst::PadProbeReturn::Handled,
                Err(_) => *event = other,
            },
        }
        match event.type_() {
            gst::EventType::FlushStop => running.flush(),
            gst::EventType::Eos => {
                // No frames are taken after this, so a lossless producer must not wait for this source.
                running.disconnect();
                if !outgoing.has_begun()
                    && let Some(start) = pad.sticky_event::<gst::event::StreamStart>(0)
                    && let Some(peer) = pad.peer()
                {
                    peer.send_event(start.to_owned());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    });
}

/// Sends the start of the stream that this state belongs to. `false`: it was sent before.
pub(super) fn announce(source: SourceContext<'_>, new: &Sticky) -> bool {
    let stream_id = new.text(sticky::STREAM_ID).unwrap_or_default().to_owned();
    let description = Description::parse(new.text(sticky::STREAM));
    let caps = new.text(sticky::CAPS).and_then(sticky::parse_caps);
    let tags = new
        .text(sticky::TAGS)
        .and_then(|text| sticky::parse_tags(sticky::TAGS, text));
    // The same id for all streams: decodebin3 of GStreamer 1.26 ends the process if the id changes, and that of the next producer
    // is often another.
    let pool = source.settings.pool.display().to_string();
    let event = description.to_event(&pool, caps.as_ref(), tags.as_ref());
    let begins = source
        .outgoing
        .begin(event.seqnum(), stream_id, description);
    if begins {
        gst::debug!(CAT, obj = source.element, "{event:?}");
        source.element.src_pad().push_event(event);
    }
    begins
}

/// Sends the segment of the next buffer, if it was not sent. GstBaseSrc would send it only with that buffer.
pub(super) fn push_segment(source: SourceContext<'_>) {
    if !source.outgoing.has_sent_segment() {
        let event = gst::event::Segment::new(&source.outgoing.segment(source.element));
        source.element.src_pad().push_event(event);
    }
}

/// Sends a segment that applies to the next frame.
#[cold]
pub(super) fn replace_segment(
    source: SourceContext<'_>,
    segment: &gst::FormattedSegment<gst::ClockTime>,
) {
    source.outgoing.set_segment(Some(segment.clone().upcast()));
    push_segment(source);
}

/// Sends an event that belongs after the segment, before the next event or buffer.
pub(super) fn push(source: SourceContext<'_>, event: gst::Event) {
    push_segment(source);
    gst::debug!(CAT, obj = source.element, "{event:?}");
    source.element.src_pad().push_event(event);
}

/// Sends the changed sticky events that belong after the segment.
pub(super) fn push_sticky(source: SourceContext<'_>, new: &Sticky, old: &Sticky) {
    for (key, value) in new.iter() {
        if old.get(key) == Some(value) {
            continue;
        }
        let Some(text) = new.text(key) else { continue };
        let event = if [sticky::TAGS, sticky::GLOBAL_TAGS].contains(&key) {
            sticky::parse_tags(key, text).map(gst::event::Tag::new)
        } else if key.starts_with(sticky::CUSTOM) {
            text::to_bounded_structure(text).map(gst::event::CustomDownstreamSticky::new)
        } else {
            continue;
        };
        match event {
            Some(event) => push(source, event),
            None => gst::warning!(
                CAT,
                obj = source.element,
                "The producer's {key:?} cannot be parsed"
            ),
        }
    }
}

/// Any stream, packed by gdppay. It has a header as containers do, but no muxer makes it.
const PACKED: &str = "application/x-gdp";

/// Formats whose encoders and demuxers also begin the stream with the header, and whose parsers may read it only there. Opus is not
/// one of them: some of its streams contain no header, and its decoders and parsers read the caps.
const ELEMENTARY: [&str; 7] = [
    "audio/x-vorbis",
    "audio/x-speex",
    "audio/x-flac",
    "audio/x-celt",
    "video/x-theora",
    "subtitle/x-kate",
    "application/x-kate",
];

/// The largest number of parts that is read. Real headers have fewer.
const MAX_PARTS: usize = 64;

/// Whether each stream of this format begins with a header, which its caps repeat.
fn begins_with_header(caps: &gst::CapsRef) -> bool {
    let is_packed = |structure: &gst::StructureRef| structure.name() == PACKED;
    caps.structure(0).is_some_and(is_packed) || caps::begins_with_header(caps)
}

/// The header of a stream, from its caps. The caps come from another process. An elementary stream that was received from its
/// beginning has what the producer sent.
fn of_caps(caps: &gst::CapsRef, has_joined_late: bool) -> Vec<gst::Buffer> {
    let Some(structure) = caps.structure(0) else {
        return Vec::new();
    };
    let name = structure.name().as_str();
    let is_missed = has_joined_late && ELEMENTARY.contains(&name);
    if !is_missed && !begins_with_header(caps) {
        return Vec::new();
    }
    let header = structure.get::<gst::Array>("streamheader");
    header.map_or_else(
        |_| Vec::new(),
        |parts| {
            let parts = parts.iter().take(MAX_PARTS);
            parts.filter_map(|part| part.get().ok()).collect()
        },
    )
}

fn is_same(one: &gst::BufferRef, other: &gst::BufferRef) -> bool {
    one.size() == other.size()
        && one.map_readable().is_ok_and(|one| {
            other
                .map_readable()
                .is_ok_and(|other| one.as_slice() == other.as_slice())
        })
}

/// Marks a buffer as the start of a new stream, for a demuxer that still reads the previous one. flvdemux reads the offset.
fn mark_start(buffer: &mut gst::Buffer) {
    let buffer = buffer.make_mut();
    buffer.set_flags(gst::BufferFlags::DISCONT);
    buffer.set_offset(0);
}

/// Sends the stream's header before its first frame, unless that frame begins with the header. The header does not count as a
/// frame. Returns how much of it was sent with this frame. `None`: the frame is the rest of a header whose beginning was missed.
pub(super) fn push_header(
    source: SourceContext<'_>,
    first: &mut gst::Buffer,
    sent: Header,
    has_joined_late: bool,
) -> Result<Option<Header>, gst::FlowError> {
    let caps = source.stream.caps();
    let header = caps.as_ref().map(|caps| of_caps(caps, has_joined_late));
    let header = header.unwrap_or_default();
    // webmmux sends the header in two buffers, and only then the caps that repeat it.
    let is_part = (sent == Header::Begun || header.is_empty())
        && first.flags().contains(gst::BufferFlags::HEADER)
        && caps.is_some_and(|caps| begins_with_header(&caps));
    if is_part {
        let is_missed = sent == Header::Due && has_joined_late;
        return Ok((!is_missed).then_some(Header::Begun));
    }
    match header.first() {
        _ if sent == Header::Begun => {}
        Some(begin) if is_same(begin, first) => mark_start(first),
        Some(_) => {
            gst::debug!(
                CAT,
                obj = source.element,
                "Sending the header that is in the caps"
            );
            push_segment(source);
            for (number, mut part) in (0..).zip(header) {
                part.make_mut().set_flags(gst::BufferFlags::HEADER);
                if number == 0 {
                    mark_start(&mut part);
                }
                source.element.src_pad().push(part)?;
            }
        }
        None => {}
    }
    Ok(Some(Header::Sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(caps: &str) -> usize {
        gst::init().unwrap();
        let caps: gst::Caps = caps.parse().unwrap();
        of_caps(&caps, true).len()
    }

    #[test]
    fn only_formats_with_a_header_in_band_have_one() {
        let header = "streamheader=(buffer)<0102,03>";
        assert_eq!(parts(&format!("video/webm, {header}")), 2);
        assert_eq!(parts(&format!("audio/x-vorbis, {header}")), 2);
        let vorbis: gst::Caps = format!("audio/x-vorbis, {header}").parse().unwrap();
        assert_eq!(of_caps(&vorbis, false).len(), 0);
        assert_eq!(parts("video/webm"), 0);
        assert_eq!(parts(&format!("audio/x-opus, {header}")), 0);
        assert_eq!(parts("ANY"), 0);
        assert_eq!(parts("EMPTY"), 0);
    }

    #[test]
    fn an_invalid_header_is_ignored() {
        for value in [
            "(int)1",
            "(string)x",
            "(buffer)01",
            "(int)<1,2>",
            "(buffer){01}",
            "<>",
        ] {
            let caps = format!("video/webm, streamheader={value}");
            assert_eq!(parts(&caps), 0, "{caps}");
        }
        let many = vec!["00"; 1000].join(",");
        let caps = format!("video/webm, streamheader=(buffer)<{many}>");
        assert_eq!(parts(&caps), MAX_PARTS);
    }
}
