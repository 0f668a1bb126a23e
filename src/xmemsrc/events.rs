// SPDX-License-Identifier: MPL-2.0

//! Events that this source sends by itself, in their order with those of GstBaseSrc, and requests upstream.

use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use xmem_core::{FrameMeta, ReadLease, Sticky};

use super::{
    XmemSrc,
    imp::{self, CAT, Started, Stop},
};
use crate::lock::lock;
use crate::{
    event::{
        downstream,
        key_frame::{self, KeyFrame},
        sticky, text,
    },
    stream::Description,
};

/// What has left the element.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// The start of the stream that is out. `None`: GstBaseSrc's own waits for what the producer says.
    start: Option<Start>,
    pub(super) segment: Option<(gst::Seqnum, gst::Segment)>,
    /// The application's end of the stream, which is not out yet.
    pub(super) eos: Option<gst::Event>,
}

#[derive(Debug)]
struct Start {
    seqnum: gst::Seqnum,
    stream_id: String,
    description: Description,
}

/// Looks at every event that leaves.
pub(super) fn watch(src: &XmemSrc) {
    let weak = src.downgrade();
    let kinds = gst::PadProbeType::EVENT_DOWNSTREAM | gst::PadProbeType::EVENT_FLUSH;
    src.src_pad().add_probe(kinds, move |pad, info| {
        match (weak.upgrade(), &mut info.data) {
            (Some(src), Some(gst::PadProbeData::Event(event))) => {
                let imp = src.imp();
                imp.outgoing.mend_event(event);
                if event.type_() == gst::EventType::Eos
                    && let Some(eos) = lock(&imp.sent).eos.take()
                {
                    *event = eos;
                }
                imp.on_leaving(pad, event)
            }
            _ => gst::PadProbeReturn::Ok,
        }
    });
}

impl imp::XmemSrc {
    fn on_leaving(&self, pad: &gst::Pad, event: &gst::EventRef) -> gst::PadProbeReturn {
        match event.view() {
            gst::EventView::StreamStart(_) => {
                let mut sent = lock(&self.sent);
                let start = sent.start.as_ref().map(|start| start.seqnum);
                if start != Some(event.seqnum()) {
                    // GstBaseSrc begins a stream before there is a producer.
                    return gst::PadProbeReturn::Handled;
                }
                sent.segment = None;
            }
            gst::EventView::Segment(event) => {
                let seqnum = event.seqnum();
                let mut sent = lock(&self.sent);
                if let Some((last, segment)) = &mut sent.segment
                    && segment == event.segment()
                    && *last != seqnum
                {
                    // GstBaseSrc sends it with the first buffer, also when we had to be faster. The one that it sent is
                    // sent again when the pad is linked to another.
                    *last = seqnum;
                    return gst::PadProbeReturn::Handled;
                }
                sent.segment = Some((seqnum, event.segment().clone()));
            }
            gst::EventView::FlushStart(_) => lock(&self.sent).eos = None,
            gst::EventView::FlushStop(_) => {
                lock(&self.sent).segment = None;
                self.flushed();
            }
            gst::EventView::Eos(_) => {
                // Nobody takes frames any more, and a lossless producer must not wait for us.
                self.leave();
                let never_began = lock(&self.sent).start.is_none();
                if never_began
                    && let Some(start) = pad.sticky_event::<gst::event::StreamStart>(0)
                    && let Some(peer) = pad.peer()
                {
                    peer.send_event(start.to_owned());
                }
            }
            _ => {}
        }
        gst::PadProbeReturn::Ok
    }

    /// Sends the start of the stream that this state belongs to. `false`: it is out already.
    pub(super) fn announce(&self, new: &Sticky) -> bool {
        let pool = lock(&self.settings).pool.clone();
        let stream_id = new.text(sticky::STREAM_ID).unwrap_or_default();
        let stream_id = format!("{}/{stream_id}", pool.display());
        let description = Description::parse(new.text(sticky::STREAM));
        let caps = new.text(sticky::CAPS).and_then(sticky::parse_caps);
        let tags = new
            .text(sticky::TAGS)
            .and_then(|text| sticky::parse_tags(sticky::TAGS, text));
        let event = description.to_event(&stream_id, caps.as_ref(), tags.as_ref());
        {
            let mut sent = lock(&self.sent);
            let is_out = sent.start.as_ref().is_some_and(|start| {
                (&start.stream_id, &start.description) == (&stream_id, &description)
            });
            if is_out {
                return false;
            }
            sent.start = Some(Start {
                seqnum: event.seqnum(),
                stream_id,
                description,
            });
        }
        gst::debug!(CAT, imp = self, "{event:?}");
        self.obj().src_pad().push_event(event);
        true
    }

    /// Sends the segment that what comes next belongs to, if it is not out. GstBaseSrc would send it with the next buffer.
    pub(super) fn push_segment(&self) {
        let segment = self.outgoing.segment();
        let is_out = match (&lock(&self.sent).segment, &segment) {
            (None, _) => false,
            // GstBaseSrc notes its position in its own.
            (Some(_), None) => true,
            (Some((_, out)), Some(segment)) => out == segment,
        };
        if !is_out {
            let segment = segment.unwrap_or_else(|| self.obj().segment());
            let event = gst::event::Segment::new(&segment);
            self.obj().src_pad().push_event(event);
        }
    }

    /// Sends an event that comes after the segment, before whatever comes next.
    pub(super) fn push(&self, event: gst::Event) {
        self.push_segment();
        gst::debug!(CAT, imp = self, "{event:?}");
        self.obj().src_pad().push_event(event);
    }

    /// Sends downstream what is new of the sticky events that come after the segment.
    pub(super) fn push_sticky(&self, new: &Sticky, old: &Sticky) {
        for (key, value) in new.iter() {
            if old.get(key) == Some(value) {
                continue;
            }
            let Some(text) = new.text(key) else { continue };
            let event = if [sticky::TAGS, sticky::GLOBAL_TAGS].contains(&key) {
                sticky::parse_tags(key, text).map(gst::event::Tag::new)
            } else if key.starts_with(sticky::CUSTOM) {
                text::to_structure(text).map(gst::event::CustomDownstreamSticky::new)
            } else {
                continue;
            };
            match event {
                Some(event) => self.push(event),
                None => gst::warning!(CAT, imp = self, "The producer's {key:?} makes no sense"),
            }
        }
    }

    /// Sends on what stands between two frames.
    pub(super) fn pass(&self, started: &mut Started, lease: &ReadLease) -> Result<(), Stop> {
        self.follow(started, lease)?;
        let meta = lease.meta();
        if meta.attachments.is_empty() {
            // It only brought the sticky state along.
            return Ok(());
        }
        let times = self.stamp(started, meta);
        let segment = self.outgoing.segment();
        let segment = segment.unwrap_or_else(|| self.obj().segment());
        match downstream::unpack(meta, times.pts, times.duration, segment.downcast_ref()) {
            Some(event) => self.push(event),
            None => gst::debug!(
                CAT,
                imp = self,
                "Nothing is known of {:?}",
                meta.attachments
            ),
        }
        Ok(())
    }

    /// Whether a frame can be decoded, as far as its flags say. Asks for a key frame if not.
    pub(super) fn is_decodable(&self, started: &mut Started, meta: &FrameMeta) -> bool {
        let flags = gst::BufferFlags::from_bits_truncate(meta.flags);
        if !started.settings.wait_for_keyframe
            || started.gate.lets_pass(flags)
            || self.is_each_for_itself()
        {
            return true;
        }
        gst::log!(CAT, imp = self, "Waiting for a key frame");
        if started.gate.asks() {
            self.request(KeyFrame::NOW);
        }
        started.gate.keep_back();
        self.say_keyless(started, false);
        false
    }

    /// Says that there is no key frame: nothing comes then, and nothing else says why.
    pub(super) fn say_keyless(&self, started: &mut Started, is_over: bool) {
        if started.gate.says(is_over) {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Decode,
                (
                    "No key frame comes from pool {:?}. Frames are given up as long as there is none: set \
                     wait-for-keyframe=false if each stands for itself, or have the encoder make key frames more often",
                    started.settings.pool
                )
            );
        }
    }

    /// Whether the frames need no others to be decoded, whatever their flags say. GstVideoEncoder marks as DELTA_UNIT what
    /// the encoder does not call a sync point, and encoders of pictures, such as pngenc, call none so.
    fn is_each_for_itself(&self) -> bool {
        let caps = lock(&self.stream).caps.clone();
        let structure = caps.as_ref().and_then(|caps| caps.structure(0));
        structure.is_some_and(|structure| {
            let name = structure.name().as_str();
            name.ends_with("/x-raw")
                || name.starts_with("image/")
                || name == "application/x-yuv4mpeg"
        })
    }

    /// Asks the producer for a key frame. `false`: there is none, or it does not listen.
    pub(super) fn request(&self, key_frame: KeyFrame) -> bool {
        let connection = lock(&self.counted).connection.clone();
        let Some(connection) = connection else {
            return false;
        };
        match connection.request(key_frame::NAME, &key_frame.encode()) {
            Ok(()) => true,
            Err(error) => {
                gst::debug!(CAT, imp = self, "Cannot ask for {key_frame:?}: {error}");
                false
            }
        }
    }
}
