// SPDX-License-Identifier: MPL-2.0

//! Bringing the stream to the state that an entry of the pool belongs to.

use std::sync::Arc;

use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use xmem_core::{FrameMeta, ReadLease, Sticky};

use super::{
    XmemSrcTimestampMode,
    imp::{CAT, Started, Stop, XmemSrc},
    times::Course,
};
use crate::lock::lock;
use crate::{
    caps,
    event::sticky,
    frame::{AFTER_GAP, Format},
    timeline::Timeline,
};

impl XmemSrc {
    /// Brings the stream to where an entry belongs.
    pub(super) fn follow(&self, started: &mut Started, lease: &ReadLease) -> Result<(), Stop> {
        let meta = lease.meta();
        self.follow_sequence(started, meta);
        // An event says nothing of where frames are.
        let on_device = (!meta.event).then(|| lease.is_on_device() && !started.settings.download);
        let moved = lock(&self.stream).is_elsewhere(on_device);
        if moved || started.sticky_version != Some(meta.sticky_version) {
            self.renew(started.settings.timestamp_mode, lease.sticky(), on_device)?;
            started.sticky_version = Some(meta.sticky_version);
        }
        Ok(())
    }

    /// Notices that an entry is not the one after the last.
    pub(super) fn follow_sequence(&self, started: &mut Started, meta: &FrameMeta) {
        let missed = started.next_sequence != Some(meta.sequence);
        if missed {
            self.say_missed(started);
        }
        // Or the producer had to leave some out.
        if missed || meta.flags & AFTER_GAP != 0 {
            started.discont = true;
            started.gate.close();
        }
        started.next_sequence = meta.sequence.checked_add(1);
    }

    /// Says why frames are missed, once: nothing in the pipeline looks wrong then but its rate.
    fn say_missed(&self, started: &mut Started) {
        let is_news = started.next_sequence.is_some() && !started.settings.newest_only;
        if is_news && !std::mem::replace(&mut started.said_missed, true) {
            let why = "Frames are missed: downstream took longer over one than the producer keeps the next ones. A sink that waits \
                 for a frame's time does so too: put a queue behind this element, or have the producer raise history";
            gst::warning!(gst::CAT_PERFORMANCE, imp = self, "{why}");
            gst::element_imp_warning!(self, gst::StreamError::Failed, ("{why}"));
        }
    }

    /// Takes over what the sticky state says of the frames' times.
    fn follow_course(&self, mode: XmemSrcTimestampMode, new: &Sticky, old: &Sticky) {
        let segment = new.text(sticky::SEGMENT).and_then(sticky::parse_segment);
        let course = Course {
            timeline: Timeline::parse(new.text(sticky::TIMELINE)),
            speed: segment.as_ref().map_or(1.0, |segment| segment.rate().abs()),
            may_reorder: new.text(sticky::CAPS).is_some_and(is_encoded_video),
        };
        let before = std::mem::replace(&mut lock(&self.stream).course, course);
        let latency = course.latency(mode);
        if before.latency(mode) != latency {
            gst::debug!(CAT, imp = self, "The producer's latency is {latency}");
            self.say_latency_changed();
        }
        let is_same = self.outgoing.segment() == segment
            && new.get(sticky::SEGMENT_EVENT) == old.get(sticky::SEGMENT_EVENT);
        if mode != XmemSrcTimestampMode::Passthrough || is_same {
            return;
        }
        gst::debug!(CAT, imp = self, "Segment is {segment:?}");
        self.outgoing.set_segment(segment);
        // It leaves, also if it is one that was there before.
        lock(&self.sent).segment = None;
        // GstBaseSrc takes only segments of its own format, and ends the stream where one ends. It sends this one before the
        // frame, and ours leaves in its place.
        let any = gst::FormattedSegment::<gst::ClockTime>::new();
        if let Err(error) = self.obj().new_segment(any.upcast_ref()) {
            gst::warning!(CAT, imp = self, "{error}");
        }
    }

    /// Sends downstream what is new in the sticky state. `on_device`: where frames are now handed on; `None`: no frame says so.
    pub(super) fn renew(
        &self,
        mode: XmemSrcTimestampMode,
        new: &Sticky,
        on_device: Option<bool>,
    ) -> Result<(), Stop> {
        let download = lock(&self.settings).download;
        let (mut old, moved) = {
            let mut stream = lock(&self.stream);
            let moved = stream.is_elsewhere(on_device);
            stream.on_device = on_device.or(stream.on_device);
            (std::mem::replace(&mut stream.sticky, new.clone()), moved)
        };
        // As long as no frame says so, the caps do.
        let on_device = lock(&self.stream).on_device.or(download.then_some(false));
        let begins = self.announce(new);
        self.follow_course(mode, new, &old);
        if begins {
            // All that was said belongs to the stream before.
            old = Sticky::new();
        }
        let pad = self.obj().src_pad().clone();
        let caps = new.text(sticky::CAPS);
        if let Some(caps) = caps
            && (moved || old.text(sticky::CAPS) != Some(caps))
        {
            let Some(parsed) = sticky::parse_caps(caps) else {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ("The producer's caps make no sense: {caps:?}")
                );
                return Err(Stop::Flow(gst::FlowError::Error));
            };
            let parsed = match on_device {
                Some(on_device) => caps::on_device(parsed, on_device),
                None => parsed,
            };
            gst::info!(CAT, imp = self, "Caps are {parsed}");
            self.check_caps(&parsed)?;
            if pad.current_caps().as_ref() == Some(&parsed) {
                // A new stream with the same caps; GstBaseSrc says them once only.
                pad.push_event(gst::event::Caps::new(&parsed));
            }
            {
                let mut stream = lock(&self.stream);
                stream.format = Arc::new(Format::from_caps(&parsed));
                stream.caps = Some(parsed);
                stream.video_meta = false;
            }
            // Sets the caps and asks downstream what it can read.
            if !self.obj().negotiate() {
                let flushing = self
                    .obj()
                    .src_pad()
                    .pad_flags()
                    .contains(gst::PadFlags::FLUSHING);
                return Err(Stop::Flow(if flushing {
                    gst::FlowError::Flushing
                } else {
                    gst::FlowError::NotNegotiated
                }));
            }
        }
        if begins {
            self.push_segment();
        }
        self.push_sticky(new, &old);
        Ok(())
    }

    /// Says why the stream cannot go on with these caps, if it cannot.
    fn check_caps(&self, caps: &gst::Caps) -> Result<(), Stop> {
        let pool = lock(&self.settings).pool.clone();
        let is_cuda = caps::is_cuda(caps);
        if is_cuda && !caps::has_cuda() {
            gst::element_imp_error!(
                self,
                gst::CoreError::Negotiation,
                ("The frames of pool {pool:?} lie on a CUDA device. Handing them on where they lie takes a driver, \
                     libgstcuda of GStreamer 1.24 or later, and a plugin built with CUDA; GST_DEBUG=xmemcuda:4 says what is \
                     missing. With a driver, download=true gives them in host memory")
            );
        } else if !self.is_refused(caps) {
            lock(&self.stream).said_refused = false;
            return Ok(());
        } else if is_cuda {
            gst::element_imp_error!(
                self,
                gst::CoreError::Negotiation,
                ("Downstream does not take what is in pool {pool:?}: frames on a CUDA device. The caps are {caps}; put \
                     cudaconvert, cudadownload or another element that takes them behind xmemsrc, or set download=true for \
                     frames in host memory")
            );
        } else {
            gst::element_imp_error!(
                self,
                gst::CoreError::Negotiation,
                ("Downstream does not take what is in pool {pool:?}. The producer's caps are {caps}; put a converter that \
                     takes them behind xmemsrc, or have the producer make others")
            );
        }
        lock(&self.stream).said_refused = true;
        Err(Stop::Flow(gst::FlowError::NotNegotiated))
    }

    /// Says what it was that was refused behind an element that took it at first, as long as it is not known to the application.
    pub(super) fn say_refused_later(&self) {
        let caps = {
            let mut stream = lock(&self.stream);
            if std::mem::replace(&mut stream.said_refused, true) {
                return;
            }
            stream.caps.clone()
        };
        let Some(caps) = caps else { return };
        let pool = lock(&self.settings).pool.clone();
        gst::element_imp_error!(
            self,
            gst::CoreError::Negotiation,
            ("Something downstream does not take what is in pool {pool:?}. The producer's caps are {caps}; the element \
                 behind xmemsrc takes them, and one further on does not take what becomes of them. Put a converter before that \
                 one, or have the producer make others")
        );
    }

    /// Whether downstream would refuse these caps. Sending them does not tell: that they were refused comes back only
    /// as the flow of the next buffer, which the base class reports without a reason.
    fn is_refused(&self, caps: &gst::Caps) -> bool {
        let peer = self.obj().src_pad().peer();
        peer.is_some_and(|peer| {
            let takes = peer.query_accept_caps(caps)
                // Converters accept any memory and look only later whether they can do anything with it.
                && !(caps::is_cuda(caps) && peer.query_caps(Some(caps)).is_empty());
            !takes && !peer.pad_flags().contains(gst::PadFlags::FLUSHING)
        })
    }

    pub(super) fn say_latency_changed(&self) {
        let obj = self.obj();
        // The application has the pipeline ask for it then.
        let _ = obj.post_message(gst::message::Latency::builder().src(&*obj).build());
    }
}

fn is_encoded_video(caps: &str) -> bool {
    caps.starts_with("video/") && !caps.starts_with("video/x-raw")
}
