// SPDX-License-Identifier: MPL-2.0

/**
 * SECTION:element-xmemsink
 * @see_also: xmemsrc
 *
 * Puts the buffers of a pipeline into a named pool in shared memory, for any number of consumers on the same host:
 * `xmemsrc` in another process, or a program that uses the library. Upstream writes its frames straight into the
 * pool's slots wherever it takes the buffer pool or the allocator that it is offered, so that no frame is copied.
 *
 * A slot is free again when the last buffer that refers to it, in whatever process, is gone, also when that process
 * was killed. Nobody waits for a consumer: one that is slow misses frames. #GstXmemSink:delivery `lossless` is the
 * exception.
 *
 * Frames that do not lie in a slot are copied once; #GstXmemSink:stats counts them, and the category
 * `GST_PERFORMANCE` says why. Published frames are read-only for everybody, also in this pipeline: an in-place filter
 * behind a tee gets a copy of its own.
 *
 * Consumers get the stream with its events: its start (id, flags and group), caps, segment, tags and sticky custom
 * events, which late joiners get too, and between the frames gaps and custom events. An event whose content means
 * something in its own process only, such as an object, is not sent; a warning names it once, and
 * #GstXmemSink:stats counts it. The same goes for tables of contents and protection events. Stream collections and
 * stream groups are of the whole pipeline and stay there. A flush stays there too: what consumers have in their queues
 * is theirs to play, and the next frame brings the new segment along. The end of the stream is remembered for who
 * comes later, until the stream goes on.
 *
 * A consumer may ask for a key frame; upstream then gets a force-key-unit event, at most five in a second, however many
 * consumers ask and however often.
 *
 * |[
 * gst-launch-1.0 v4l2src ! decodebin ! xmemsink pool=cam0
 * ]| A camera for every process that wants it.
 * |[
 * gst-launch-1.0 filesrc location=film.mp4 ! qtdemux ! h264parse ! avdec_h264 ! xmemsink pool=film delivery=lossless wait-for-connection=true
 * ]| A file, every frame of it, from the moment that somebody listens.
 *
 * docs/xmemsink.md has all of it, with what happens when something goes wrong.
 *
 * Since: plugin-xmem-0.1
 */
use std::{
    ffi::OsStr,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::prelude::*};
use xmem_core::{Canceller, CreateError, FrameMeta, PoolStats, Producer, Text, WaitError};

#[cfg(feature = "cuda")]
use super::device;
use super::{
    XmemSinkDelivery,
    base::{self, Data},
    clients, events,
    gaps::Gaps,
    proposal::Offer,
    publish::{Failure, Outcome},
    requests::Requests,
    settings::{self, PROP_NUM_CLIENTS, PROP_POOL, PROP_STATS, Settings},
    stream::Stream,
    times::Times,
    waiting::{Interrupts, Reason},
};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::{
    allocator::{SlotSource, XmemAllocator},
    bytes::{self, UriHandler},
    caps,
    event::sticky,
    frame::{AFTER_GAP, Format},
    lock::lock,
    meta::{self, Losses},
    program, stats,
    timeline::Timeline,
    uri,
};

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemsink",
        gst::DebugColorFlags::empty(),
        Some("Puts buffers into a shared pool"),
    )
});

/// What a started sink has.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) producer: Producer,
    pub(super) slots: Arc<SlotSource>,
    pub(super) allocator: XmemAllocator,
    /// As they were at the start; they can be changed only while the sink is stopped.
    pub(super) settings: Settings,
    /// What frames name as their producer.
    pub(super) program: Text<32>,
    #[cfg(feature = "cuda")]
    pub(super) copier: Mutex<Option<device::Copier>>,
}

impl Started {
    pub(super) fn is_lossless(&self) -> bool {
        self.settings.delivery == XmemSinkDelivery::Lossless
    }
}

/// No two of the locks are ever held at once, and none across a call that waits or that leads out of the element.
#[derive(Debug, Default)]
pub struct XmemSink {
    pub(super) settings: Mutex<Settings>,
    started: Mutex<Option<Arc<Started>>>,
    pub(super) stream: Mutex<Stream>,
    pub(super) times: Mutex<Times>,
    pub(super) events: Mutex<events::Figures>,
    pub(super) requests: Requests,
    /// The statistics of the last run, once it is over.
    last_stats: Mutex<(PoolStats, u64)>,
    /// Metas that could not travel.
    losses: Losses,
    offer: Offer,
    pub(super) gaps: Gaps,
    pub(super) interrupts: Interrupts,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSink {
    const NAME: &'static str = "GstXmemSink";
    type Type = super::XmemSink;
    type Interfaces = (UriHandler,);
    type ParentType = gst_base::BaseSink;

    fn class_init(class: &mut Self::Class) {
        base::override_times(class);
    }
}

impl ObjectImpl for XmemSink {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(settings::properties);
        PROPERTIES.as_ref()
    }

    fn signals() -> &'static [glib::subclass::Signal] {
        clients::signals()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        // What the pool is made with cannot change while it is there.
        if self.started().is_some() && !pspec.flags().contains(gst::PARAM_FLAG_MUTABLE_PLAYING) {
            gst::warning!(
                CAT,
                imp = self,
                "{} stays as it is: set it in NULL, before the pool is made",
                pspec.name()
            );
            return;
        }
        lock(&self.settings).set(pspec, value);
        gst::info!(CAT, imp = self, "Set {} to {value:?}", pspec.name());
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            PROP_NUM_CLIENTS => {
                let clients = self
                    .started()
                    .map_or(0, |started| started.producer.num_consumers());
                u32::try_from(clients).unwrap_or(u32::MAX).to_value()
            }
            PROP_STATS => self.stats().to_value(),
            _ => lock(&self.settings).get(pspec),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        // The last sample would keep a slot for as long as no other frame comes.
        self.obj().set_enable_last_sample(false);
    }
}

impl GstObjectImpl for XmemSink {}

impl ElementImpl for XmemSink {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Shared frame pool sink",
                "Sink",
                "Puts buffers into a pool that other processes read without a copy",
                "The xmem developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = gst::Caps::new_any();
            gst::PadTemplate::new(
                "sink",
                gst::PadDirection::Sink,
                gst::PadPresence::Always,
                &caps,
            )
            .into_iter()
            .collect()
        });
        TEMPLATES.as_ref()
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::ReadyToPaused {
            // The pool is there from READY on; running times begin anew.
            *lock(&self.times) = Times::default();
        }
        if transition != gst::StateChange::PausedToPlaying {
            return self.parent_change_state(transition);
        }
        lock(&self.times).begin();
        self.interrupts.set(Reason::Resuming, true);
        let result = self.parent_change_state(transition);
        self.interrupts.set(Reason::Resuming, false);
        result
    }

    fn send_event(&self, event: gst::Event) -> bool {
        let is_latency = event.type_() == gst::EventType::Latency;
        let result = self.parent_send_event(event);
        if is_latency {
            // It is sent when an element upstream has got another latency.
            lock(&self.times).forget_upstream();
        }
        result
    }
}

impl URIHandlerImpl for XmemSink {
    const URI_TYPE: gst::URIType = gst::URIType::Sink;

    fn protocols() -> &'static [&'static str] {
        uri::PROTOCOLS
    }

    fn uri(&self) -> Option<String> {
        uri::of_pool(&lock(&self.settings).pool)
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        // The pool is made on the way to READY.
        uri::apply(self.obj().upcast_ref(), gst::State::Null, PROP_POOL, uri)
    }
}

impl BaseSinkImpl for XmemSink {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let name = bytes::name_of(&*self.obj());
        self.interrupts.set(Reason::Unlocked, false);
        self.losses.reset();
        self.gaps.reset();
        *lock(&self.stream) = Stream::default();
        *lock(&self.events) = events::Figures::default();
        let is_started = Arc::new(OnceLock::new());
        let producer = settings
            .producer()
            .map_err(|reason| gst::error_msg!(gst::ResourceError::Settings, ("{reason}")))?
            .on_consumer(clients::handler(&self.obj(), is_started.clone()))
            .build()
            .map_err(|error| create_error(&settings.pool, &error))?;
        gst::info!(
            CAT,
            imp = self,
            "Pool {:?} at {:?}",
            producer.pool(),
            producer.socket_path()
        );
        let slots = SlotSource::new(producer.clone(), settings.meta_room as usize);
        let allocator = XmemAllocator::new(slots.clone());
        self.requests.start();
        *lock(&self.started) = Some(Arc::new(Started {
            producer,
            slots,
            allocator,
            settings,
            program: Text::new(program::name().as_deref().unwrap_or(&name)),
            #[cfg(feature = "cuda")]
            copier: Mutex::default(),
        }));
        // The pool has been there for a moment, and consumers may have come.
        let _ = is_started.set(());
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let Some(started) = self.started() else {
            return Ok(());
        };
        self.requests.stop();
        self.offer.clear();
        self.gaps.end();
        let mut stats = started.producer.stats();
        stats.slots_held = 0;
        stats.consumers.clear();
        // First, so that the figures never fall back for who asks meanwhile.
        *lock(&self.last_stats) = (stats, started.slots.tally().copies());
        *lock(&self.started) = None;
        // Upstream may keep buffers, pools and the allocator: they go on with private memory.
        started.slots.close();
        started.producer.close();
        let stream = std::mem::take(&mut *lock(&self.stream));
        drop(stream);
        gst::info!(CAT, imp = self, "Stopped");
        Ok(())
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.interrupts.set(Reason::Unlocked, true);
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.interrupts.set(Reason::Unlocked, false);
        Ok(())
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        gst::debug!(CAT, imp = self, "Caps are {caps}");
        let format = Arc::new(Format::from_caps(&sticky::shareable(caps.clone())));
        let mut stream = lock(&self.stream);
        stream.format = format;
        stream.checked = None;
        (stream.said_copied, stream.said_dropped) = (false, false);
        Ok(())
    }

    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        // Without a filter the answer is ANY, and caps that cannot be taken are refused when they are tried.
        let caps = self.parent_caps(filter).or_else(|| filter.cloned());
        caps.map(caps::possible).map(caps::common_first)
    }

    fn propose_allocation(
        &self,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let started = self
            .started()
            .ok_or_else(|| gst::loggable_error!(CAT, "Not started"))?;
        self.offer.answer(self.obj().upcast_ref(), &started, query)
    }

    fn event(&self, event: gst::Event) -> bool {
        if matches!(
            event.type_(),
            gst::EventType::Eos | gst::EventType::FlushStop
        ) {
            self.gaps.end();
        }
        match event.type_() {
            gst::EventType::StreamStart | gst::EventType::Segment | gst::EventType::FlushStop => {
                self.begin();
                lock(&self.times).forget_upstream();
            }
            _ => {}
        }
        if let Err(reason) = self.note_sticky(&event) {
            if event.type_() == gst::EventType::Caps {
                self.refuse_caps(&reason);
                return false;
            }
            self.give_up(&event, &reason);
        }
        if let Some(goes_on) = self.share_event(&event) {
            return goes_on;
        }
        match event.type_() {
            // Whoever asks what the pool has need not wait for its first frame.
            gst::EventType::Caps => {
                if !self.parent_event(event) {
                    return false;
                }
                self.share_sticky().is_ok()
            }
            gst::EventType::Eos => {
                if self.share_sticky().is_err() {
                    return false;
                }
                // The parent would wait for a preroll that never comes once the sink is being stopped.
                self.end(&event) && self.parent_event(event)
            }
            gst::EventType::Toc | gst::EventType::Protection => {
                self.give_up(&event, "events of this kind stay in this process");
                self.parent_event(event)
            }
            _ => self.parent_event(event),
        }
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Context(query) => {
                if let Some(context) = self.context(query.context_type()) {
                    query.set_context(&context);
                    return true;
                }
            }
            gst::QueryViewMut::AcceptCaps(query) => {
                let wanted = query.caps_owned();
                if caps::possible(wanted.clone()) != wanted {
                    query.set_result(false);
                    return true;
                }
            }
            _ => {}
        }
        BaseSinkImplExt::parent_query(self, query)
    }

    fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(started) = self.started() else {
            return Err(gst::FlowError::Flushing);
        };
        if let Some(refusal) = started.slots.refusal() {
            gst::element_imp_error!(self, gst::ResourceError::Settings, ("{refusal}"));
            return Err(gst::FlowError::Error);
        }
        self.begin();
        let mut meta = self.describe(&started, buffer);
        self.check(&meta)?;
        self.name_losses();
        if self.gaps.close() {
            meta.flags |= AFTER_GAP;
        }
        let outcome = self.hand_over(&started, buffer, &mut meta);
        match &outcome {
            Ok(Outcome::InPlace | Outcome::Copied(_)) => {}
            Ok(Outcome::Dropped) => self.gaps.open(),
            Err(_) => self.gaps.skip(),
        }
        self.say(&started, buffer, outcome?);
        Ok(gst::FlowSuccess::Ok)
    }
}

impl XmemSink {
    /// What a neighbour may use that asks for a context of this kind.
    fn context(&self, kind: &str) -> Option<gst::Context> {
        if let Some(context) = self.obj().context(kind) {
            return Some(context);
        }
        #[cfg(feature = "cuda")]
        if kind == cuda::CONTEXT_TYPE {
            let ordinal = lock(&self.settings).cuda_device();
            return cuda::to_share(self.obj().upcast_ref(), ordinal);
        }
        None
    }

    pub(super) fn started(&self) -> Option<Arc<Started>> {
        lock(&self.started).clone()
    }

    fn stats(&self) -> gst::Structure {
        let (stats, copies) = match self.started() {
            Some(started) => (started.producer.stats(), started.slots.tally().copies()),
            None => lock(&self.last_stats).clone(),
        };
        // Frames past max-lateness do not come as far as this element.
        let late = BaseSinkExt::stats(&*self.obj()).get("dropped");
        let mut stats = stats::of_sink(&stats, copies, late.unwrap_or_default(), &self.losses);
        stats.set("skipped", self.gaps.skipped());
        let events = lock(&self.events);
        stats.set("events", events.shared);
        stats.set("events-dropped", events.dropped);
        stats
    }

    pub(super) fn wait(
        &self,
        data: Data<'_>,
        wait: impl Fn(&Canceller) -> Result<(), WaitError>,
    ) -> Result<(), gst::FlowError> {
        let was_called_off = |error: &WaitError| *error == WaitError::Cancelled;
        // All else that can end these waits is that the pool is closed.
        self.interrupts
            .wait(&self.obj(), data, wait, was_called_off)?
            .map_err(|_| gst::FlowError::Flushing)
    }

    /// Waits until something may be put into the pool, after the sticky state that it belongs to.
    pub(super) fn make_way(
        &self,
        started: &Started,
        data: Data<'_>,
    ) -> Result<Timeline, gst::FlowError> {
        let producer = &started.producer;
        if started.settings.wait_for_connection && producer.num_consumers() == 0 {
            gst::debug!(CAT, imp = self, "Waiting for a consumer");
            self.wait(data, |cancel| producer.wait_for_consumer(None, cancel))?;
        }
        if started.is_lossless() {
            self.wait(data, |cancel| producer.wait_for_room(cancel))?;
        }
        // Only now, since the pipeline may have been paused while this waited.
        let timeline = self.timeline();
        self.note_timeline(timeline);
        self.share_sticky()?;
        Ok(timeline)
    }

    /// What is known of a buffer, but for its times on CLOCK_MONOTONIC.
    fn describe(&self, started: &Started, buffer: &gst::BufferRef) -> FrameMeta {
        let mut meta = lock(&self.stream).format.describe(buffer);
        meta.producer = started.program;
        meta.attachments = meta::of_buffer(buffer, &self.losses);
        meta
    }

    /// Refuses a frame that no consumer would take.
    fn check(&self, meta: &FrameMeta) -> Result<(), gst::FlowError> {
        let checked = lock(&self.stream).check(meta);
        checked.map_err(|reason| {
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                (
                    "Upstream describes a frame that cannot be, by its GstVideoMeta and its caps: {reason}"
                )
            );
            gst::FlowError::Error
        })
    }

    /// Publishes a buffer that `meta` describes but for its times, which are put there.
    fn hand_over(
        &self,
        started: &Started,
        buffer: &gst::Buffer,
        meta: &mut FrameMeta,
    ) -> Result<Outcome, gst::FlowError> {
        loop {
            let timeline = self.make_way(started, Data::Buffer(buffer))?;
            let stamps = self.stamps(&timeline, buffer);
            meta.timestamp = stamps.presentation;
            meta.decode_timestamp = stamps.decoding;
            if let Some(outcome) = self.publish(started, buffer, meta)? {
                return Ok(outcome);
            }
        }
    }

    /// `None`: a wait was called off. After a pause the frame has other times.
    fn publish(
        &self,
        started: &Started,
        buffer: &gst::Buffer,
        meta: &FrameMeta,
    ) -> Result<Option<Outcome>, gst::FlowError> {
        let format = lock(&self.stream).format.clone();
        let asked = self.requests.asked();
        let attempt = |cancel: &Canceller| started.publish(buffer, meta, &format, cancel);
        let result = if started.is_lossless() {
            let was_called_off = |failure: &Failure| matches!(failure, Failure::Cancelled);
            let data = Data::Buffer(buffer);
            let tried = self
                .interrupts
                .try_once(&self.obj(), data, attempt, was_called_off)?;
            let Some(result) = tried else {
                return Ok(None);
            };
            result
        } else {
            // It does not wait.
            attempt(self.interrupts.canceller())
        };
        let outcome = result.map_err(|failure| self.fail(failure))?;
        gst::trace!(CAT, imp = self, "{outcome:?} {meta:?}");
        if !matches!(outcome, Outcome::Dropped) {
            lock(&self.stream).sticky_is_untold = false;
            if !buffer.flags().contains(gst::BufferFlags::DELTA_UNIT) {
                self.requests.note_key_frame(asked);
            }
        }
        Ok(Some(outcome))
    }

    /// Says once, where users look who wonder about it, why frames are copied or dropped.
    fn say(&self, started: &Started, buffer: &gst::Buffer, outcome: Outcome) {
        let is_new = |said: fn(&mut Stream) -> &mut bool| {
            !std::mem::replace(said(&mut lock(&self.stream)), true)
        };
        match outcome {
            Outcome::Copied(cause) if is_new(|stream| &mut stream.said_copied) => {
                let cause = started.why_copied(buffer, cause);
                gst::warning!(
                    gst::CAT_PERFORMANCE,
                    imp = self,
                    "Frames are copied into their slots: {cause}"
                );
            }
            Outcome::Dropped if is_new(|stream| &mut stream.said_dropped) => gst::warning!(
                gst::CAT_PERFORMANCE,
                imp = self,
                "Frames are dropped: consumers and upstream hold all slots that there may be. Raise max-slots or max-bytes"
            ),
            _ => {}
        }
    }

    /// Says which metas do not travel, once for each name.
    fn name_losses(&self) {
        for (name, why) in self.losses.news() {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("Frames lose their {name}: {why}. See the field dropped-metas of stats")
            );
        }
    }

    fn fail(&self, failure: Failure) -> gst::FlowError {
        match failure {
            Failure::Cancelled | Failure::Closed => return gst::FlowError::Flushing,
            Failure::CopyForbidden(cause) => gst::element_imp_error!(
                self,
                gst::ResourceError::Settings,
                ("A frame would have to be copied, and copy=forbid says no: {cause}")
            ),
            Failure::NoSlot(error) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::NoSpaceLeft,
                    ("No slot for a frame: {error}")
                );
            }
            Failure::NotShareable => {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ("The caps say memory:DMABuf, and a frame is in no DMA buffer that can be shared: \
                         have upstream give video/x-raw without that feature")
                );
            }
            #[cfg(feature = "cuda")]
            Failure::Device(error) => gst::element_imp_error!(
                self,
                gst::ResourceError::Failed,
                ("A frame on a CUDA device cannot be shared: {error}")
            ),
            Failure::Unreadable => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Read,
                    ("A frame's memory cannot be mapped for reading: \
                         put an element before xmemsink that gives system memory")
                );
            }
            Failure::Publish(error) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Write,
                    ("Cannot publish a frame: {error}")
                );
            }
        }
        gst::FlowError::Error
    }
}

fn create_error(pool: &OsStr, error: &CreateError) -> gst::ErrorMessage {
    let domain = match error {
        CreateError::InUse { .. } => gst::ResourceError::Busy,
        CreateError::Name(_) | CreateError::Settings(_) => gst::ResourceError::Settings,
        _ => gst::ResourceError::OpenReadWrite,
    };
    gst::error_msg!(domain, ("Cannot make pool {pool:?}: {error}"))
}
