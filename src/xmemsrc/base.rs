// SPDX-License-Identifier: MPL-2.0

//! GstBaseSrc without the bindings: the virtual function that it calls for each frame, and corrections of the events that it sends.

#![allow(unsafe_code)] // fills a class structure with C function pointers

use std::{
    ptr,
    sync::LazyLock,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use gst::{
    glib::{self, prelude::*, subclass::prelude::*, translate::*},
    prelude::*,
};
use gst_base::{
    ffi::{GstBaseSrc, GstBaseSrcClass},
    prelude::*,
    subclass::prelude::*,
};

use crate::{debug_category, lock, stream::start::Description, unwind};

pub(super) static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmemsrc", "Takes buffers out of a shared pool"));

/// A source that creates one buffer after another.
pub(super) trait Create: BaseSrcImpl
where
    Self::Type: IsA<gst_base::BaseSrc>,
{
    /// Creates the next buffer.
    fn next_buffer(&self) -> Result<gst::Buffer, gst::FlowError>;
}

/// Puts the functions into the class.
pub(super) fn init<T: Create>(class: &mut T::Class)
where
    T::Type: IsA<gst_base::BaseSrc>,
{
    let class: *mut GstBaseSrcClass = ptr::from_mut(class).cast();
    // SAFETY: the class is being initialised, so no other thread uses it. It begins with its parent's structure,
    // GstBaseSrcClass.
    unsafe {
        let parent = glib::gobject_ffi::g_type_class_peek_parent(class.cast());
        (*class).get_times = (*parent.cast::<GstBaseSrcClass>()).get_times;
        (*class).create = Some(create::<T>);
    }
}

/// `GstBaseSrcClass::create`.
unsafe extern "C" fn create<T: Create>(
    element: *mut GstBaseSrc,
    _offset: u64,
    _length: u32,
    buffer: *mut gst::ffi::GstBuffer,
) -> gst::ffi::GstFlowReturn
where
    T::Type: IsA<gst_base::BaseSrc>,
{
    // SAFETY: GstBaseSrc calls this with an instance of this class.
    let imp = unsafe { &*element.cast::<T::Instance>() }.imp();
    // The bindings declare the pointer to a buffer pointer as a pointer to a buffer.
    let place: *mut *mut gst::ffi::GstBuffer = buffer.cast();
    match unwind::catch(imp, || imp.next_buffer()) {
        Ok(buffer) => {
            // SAFETY: GstBaseSrc passes a valid pointer to an empty buffer pointer. Only pads in pull mode fill it in advance,
            // and this element has none.
            unsafe { *place = buffer.into_glib_ptr() };
            gst::ffi::GST_FLOW_OK
        }
        Err(flow) => gst::FlowReturn::from_error(flow).into_glib(),
    }
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    state: Mutex<State>,
    /// A probe corrects each buffer. It is added for the first frame that needs it, because it costs time and most streams
    /// never do.
    is_watching: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The start of the stream that was sent. `None`: none was sent. GstBaseSrc's own is held back until there is a producer.
    start: Option<Start>,
    /// The segment that was sent, with its number.
    sent: Option<(gst::Seqnum, gst::Segment)>,
    /// Replaces GstBaseSrc's segment.
    segment: Option<gst::Segment>,
    /// The next segment event only corrects what the pad stores. It is not sent.
    skips_segment: bool,
    /// The application's EOS that was not sent yet.
    eos: Option<gst::Event>,
    /// The DTS of the frame that is being sent, if that frame has no PTS.
    without_pts: Option<Option<gst::ClockTime>>,
}

/// What happens to an event.
#[derive(Debug)]
pub(super) enum Correction {
    Send,
    Drop,
    /// The pad stores this event in place of the other and sends it.
    Replace(gst::Event),
}

#[derive(Debug)]
struct Start {
    seqnum: gst::Seqnum,
    /// The producer's.
    stream_id: String,
    description: Description,
}

impl State {
    /// `offset` is that of the pad. GStreamer adds it to the event that is sent, not to the stored one.
    fn correct_segment(&mut self, event: &gst::Event, offset: i64) -> Correction {
        let (seqnum, gst::EventView::Segment(view)) = (event.seqnum(), event.view()) else {
            return Correction::Send;
        };
        let own = self.segment.as_ref();
        let segment = own.unwrap_or_else(|| view.segment()).clone();
        let mut moved = segment.clone();
        let is_moved =
            offset != 0 && moved.offset_running_time(offset).is_ok() && moved == *view.segment();
        let is_right = is_moved || segment == *view.segment();
        // GstBaseSrc sends the segment with the first buffer even if this element already sent it. That repetition is left out,
        // unless it is the same event, which GStreamer sends again when the pad is linked again. An event with an offset has a
        // new number.
        let before = self.sent.replace((seqnum, segment.clone()));
        let is_repeated =
            !is_moved && before.is_some_and(|(number, sent)| sent == segment && number != seqnum);
        if !is_right {
            self.skips_segment = is_repeated;
            let event = gst::event::Segment::builder(&segment);
            return Correction::Replace(event.seqnum(seqnum).build());
        }
        if std::mem::take(&mut self.skips_segment) || is_repeated {
            Correction::Drop
        } else {
            Correction::Send
        }
    }
}

impl Outgoing {
    /// Starts a new run.
    pub(super) fn reset(&self) {
        let before = std::mem::take(&mut *lock(&self.state));
        drop(before);
    }

    /// Sends a frame with its own times. GstBaseSrc changes the times only of frames without a PTS. With do-timestamp,
    /// GstBaseSrc sets the missing times.
    pub(super) fn keep_times(
        self: &Arc<Self>,
        element: &gst_base::BaseSrc,
        buffer: &gst::BufferRef,
    ) {
        let needs_none = buffer.pts().is_some() && !self.is_watching.load(Ordering::Relaxed);
        if needs_none || element.does_timestamp() {
            return;
        }
        self.watch(element, buffer);
    }

    /// Makes a probe correct this buffer, and each later one.
    #[cold]
    fn watch(self: &Arc<Self>, element: &gst_base::BaseSrc, buffer: &gst::BufferRef) {
        lock(&self.state).without_pts = buffer.pts().is_none().then(|| buffer.dts());
        if !self.is_watching.swap(true, Ordering::Relaxed) {
            let outgoing = self.clone();
            let pad = element.src_pad();
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
                if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data {
                    outgoing.correct_buffer(buffer);
                }
                gst::PadProbeReturn::Ok
            });
        }
    }

    fn correct_buffer(&self, buffer: &mut gst::Buffer) {
        let Some(dts) = lock(&self.state).without_pts.take() else {
            return;
        };
        if (buffer.pts(), buffer.dts()) != (None, dts) {
            let buffer = buffer.make_mut();
            buffer.set_pts(None);
            buffer.set_dts(dts);
        }
    }

    /// Corrects and records an event that GstBaseSrc or this element sends.
    pub(super) fn correct_event(&self, pad: &gst::Pad, event: &mut gst::Event) -> Correction {
        let offset = pad.offset();
        let mut state = lock(&self.state);
        match event.type_() {
            // GstBaseSrc starts a stream before there is a producer. The segment before a later one still applies.
            gst::EventType::StreamStart => {
                let own = state.start.as_ref().map(|start| start.seqnum);
                if own != Some(event.seqnum()) {
                    return Correction::Drop;
                }
            }
            gst::EventType::Segment => return state.correct_segment(event, offset),
            gst::EventType::FlushStart => state.eos = None,
            gst::EventType::FlushStop => {
                state.sent = None;
                state.skips_segment = false;
            }
            gst::EventType::Eos => {
                if let Some(eos) = state.eos.take() {
                    *event = eos;
                }
            }
            _ => {}
        }
        Correction::Send
    }

    /// Whether a stream has begun downstream.
    pub(super) fn has_begun(&self) -> bool {
        lock(&self.state).start.is_some()
    }

    /// Records the start of a stream, which is sent next. `false`: the same stream was started before.
    pub(super) fn begin(
        &self,
        seqnum: gst::Seqnum,
        stream_id: String,
        description: Description,
    ) -> bool {
        let mut state = lock(&self.state);
        let is_new = state.start.as_ref().is_none_or(|start| {
            (&start.stream_id, &start.description) != (&stream_id, &description)
        });
        if is_new {
            state.start = Some(Start {
                seqnum,
                stream_id,
                description,
            });
        }
        is_new
    }

    /// The segment that replaces GstBaseSrc's.
    pub(super) fn own_segment(&self) -> Option<gst::Segment> {
        lock(&self.state).segment.clone()
    }

    /// Replaces GstBaseSrc's segment. The new one is sent even if it equals the previous one.
    pub(super) fn set_segment(&self, segment: Option<gst::Segment>) {
        let mut state = lock(&self.state);
        state.segment = segment;
        state.sent = None;
    }

    /// The present segment.
    pub(super) fn segment(&self, element: &gst_base::BaseSrc) -> gst::Segment {
        self.own_segment().unwrap_or_else(|| element.segment())
    }

    /// Whether the present segment was sent.
    pub(super) fn has_sent_segment(&self) -> bool {
        let state = lock(&self.state);
        match (&state.sent, &state.segment) {
            (None, _) => false,
            // GstBaseSrc updates the position in its own segment, so the two cannot be compared.
            (Some(_), None) => true,
            (Some((_, sent)), Some(segment)) => sent == segment,
        }
    }

    /// Stores the application's EOS until the streaming thread sends it.
    pub(super) fn keep_eos(&self, event: gst::Event) {
        lock(&self.state).eos = Some(event);
    }

    pub(super) fn take_eos(&self) -> Option<gst::Event> {
        lock(&self.state).eos.take()
    }

    pub(super) fn has_eos(&self) -> bool {
        lock(&self.state).eos.is_some()
    }
}
