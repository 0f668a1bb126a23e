// SPDX-License-Identifier: MPL-2.0

/**
 * SECTION:element-xmemsink
 * @see_also: xmemsrc
 *
 * Puts the buffers of a pipeline into a named pool in shared memory, for any number of consumers on the same host:
 * `xmemsrc` in another process, or a program that uses the library. If upstream uses the buffer pool or the allocator
 * that the sink offers, it writes its frames directly into the pool's slots, and no frame is copied.
 *
 * A slot is free again when no process has a buffer that refers to it. The buffers of a killed process do not count.
 * The sink does not wait for consumers: a slow consumer misses frames. The exception is #GstXmemSink:delivery
 * `lossless`.
 *
 * Frames in other memory with a descriptor that cannot shrink, such as DMA buffers, and frames of another pool are shared
 * unchanged. All others are copied once. #GstXmemSink:stats counts them, and the debug category
 * `GST_PERFORMANCE` logs the reason. Published frames are read-only in all processes, including this one: an in-place
 * filter after a tee gets a copy of its own.
 *
 * Consumers receive the events of the stream. Stream start (id, flags and group), caps, segment, tags and sticky custom
 * events also reach consumers that connect later. Gaps and other custom events are sent between the frames. Some events
 * are not sent: those whose content is valid in one process only, such as an object, tables of contents, and protection
 * events. A warning names each kind of them once, and #GstXmemSink:stats counts them. Stream collections and stream
 * groups describe the whole pipeline and are not sent either. A flush is not sent: consumers play the frames that they
 * have queued, and the next frame has the new segment. Until the stream continues, the pool keeps its end for consumers
 * that connect later.
 *
 * If consumers request a key frame, upstream gets a force-key-unit event. There are at most five of these events in a
 * second, for all consumers together.
 *
 * |[
 * gst-launch-1.0 v4l2src ! 'video/x-raw;image/jpeg' ! decodebin ! xmemsink pool=cam0
 * ]| Shares a camera with all processes of this user.
 * |[
 * gst-launch-1.0 filesrc location=film.mp4 ! qtdemux ! h264parse ! avdec_h264 ! xmemsink pool=film delivery=lossless wait-for-connection=true
 * ]| Shares all frames of a file, and starts when a consumer connects.
 *
 * docs/xmemsink.md describes its use, and docs/troubleshooting.md errors and their causes.
 *
 * Since: plugin-xmem-0.1
 */
use std::{
    ffi::OsStr,
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::prelude::*};
use xmem_core::{CreateError, FrameFlags, PoolStats, Text};

use super::{
    base::{self, CAT, Data, Render},
    consumers::{self, Requests},
    device,
    events::Events,
    frame,
    run::{Failures, Offer, Outcome, Started},
    settings::{PROP_NUM_CLIENTS, PROP_POOL, PROPERTIES, Settings},
    stream::{Gaps, Late, SinkStream, UNSHARED},
    when::{self, Interrupts, Reason, SinkContext, ToMonotonic},
};
use crate::{
    buffers::allocator::{SlotSource, XmemAllocator},
    bytes::{self, UriHandler},
    cuda, lock, pad_template, pipeline,
    stream::{caps, event, meta::Losses, stats},
    uri,
};

/// No thread holds two of these locks at once, or holds one during a call that waits or leaves the element, except the lock in
/// `times` that only the streaming thread takes.
#[derive(Debug, Default)]
pub struct XmemSink {
    settings: Mutex<Settings>,
    started: Mutex<Option<Arc<Started>>>,
    stream: SinkStream,
    times: Arc<ToMonotonic>,
    events: Events,
    requests: Arc<Requests>,
    /// The statistics of the last run, after it has ended.
    last_stats: Mutex<(PoolStats, u64)>,
    /// Metas that could not be published.
    losses: Losses,
    offer: Offer,
    gaps: Gaps,
    late: Late,
    failures: Failures,
    interrupts: Interrupts,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSink {
    const NAME: &'static str = "GstXmemSink";
    type Type = super::XmemSink;
    type Interfaces = (UriHandler,);
    type ParentType = gst_base::BaseSink;

    fn class_init(class: &mut Self::Class) {
        base::init::<Self>(class);
    }
}

impl ObjectImpl for XmemSink {
    fn properties() -> &'static [glib::ParamSpec] {
        PROPERTIES.specs()
    }

    fn signals() -> &'static [glib::subclass::Signal] {
        consumers::signals()
    }

    fn set_property(&self, id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        // The pool's settings cannot change while it exists.
        if self.started().is_some() && !pspec.flags().contains(gst::PARAM_FLAG_MUTABLE_PLAYING) {
            gst::warning!(
                CAT,
                imp = self,
                "{} stays as it is: set it in NULL, before the pool is made",
                pspec.name()
            );
            return;
        }
        let pace = {
            let mut settings = lock(&self.settings);
            PROPERTIES.set(id, &mut settings, value);
            settings.pace
        };
        self.times.set_pace(pace);
        gst::info!(CAT, imp = self, "Set {} to {value:?}", pspec.name());
    }

    fn property(&self, id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        let setting = PROPERTIES.get(id, &mut lock(&self.settings));
        setting.unwrap_or_else(|| match pspec.name() {
            PROP_NUM_CLIENTS => self.num_clients().to_value(),
            _ => self.stats().to_value(),
        })
    }

    fn constructed(&self) {
        self.parent_constructed();
        // The last sample would hold a slot until the next frame.
        self.obj().set_enable_last_sample(false);
        // Upstream need not buffer for it. With GStreamer's default, a live pipeline without a queue warns that it is invalid.
        self.obj().set_processing_deadline(gst::ClockTime::ZERO);
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
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> =
            LazyLock::new(|| pad_template("sink", gst::PadDirection::Sink));
        TEMPLATES.as_ref()
    }

    fn change_state(
        &self,
        transition: gst::StateChange,
    ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
        if transition == gst::StateChange::ReadyToPaused {
            // The pool exists from READY on. Running times restart here.
            self.times.reset();
            self.events.discard_deferred();
            self.stream.forget();
        }
        if transition != gst::StateChange::PausedToPlaying {
            let result = self.parent_change_state(transition);
            self.update_late();
            return result;
        }
        self.times.begin();
        self.interrupts.set(Reason::Resuming, true);
        let result = self.parent_change_state(transition);
        self.interrupts.set(Reason::Resuming, false);
        result
    }

    fn send_event(&self, event: gst::Event) -> bool {
        let is_latency = event.type_() == gst::EventType::Latency;
        let result = self.parent_send_event(event);
        if is_latency {
            // An element upstream has changed its latency.
            self.times.forget_upstream();
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
        // The pool is created in the transition to READY.
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
        self.late.reset(self.obj().upcast_ref());
        self.stream.reset();
        self.events.reset();
        let is_started = Arc::new(OnceLock::new());
        let builder = settings
            .producer()
            .map_err(|reason| gst::error_msg!(gst::ResourceError::Settings, ("{reason}")))?;
        let producer = device::configure(builder, &settings)
            .on_event(consumers::handler(
                self.obj().upcast_ref(),
                self.requests.clone(),
                self.times.clone(),
                is_started.clone(),
            ))
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
        self.failures.watch(self.obj().upcast_ref());
        *lock(&self.started) = Some(Arc::new(Started {
            producer,
            slots,
            allocator,
            settings,
            program: Text::new(bytes::program_name().as_deref().unwrap_or(&name)),
            copier: cuda::Copier::default(),
        }));
        // Consumers may already have connected. Their signals were held back until now.
        let _ = is_started.set(());
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let Some(started) = self.started() else {
            return Ok(());
        };
        self.requests.stop();
        self.failures.stop();
        self.offer.clear();
        self.gaps.note_end();
        self.events.discard_deferred();
        let mut stats = started.producer.stats();
        stats.slots_held = 0;
        stats.consumers.clear();
        // Before `started` is cleared, so that the statistics never decrease.
        *lock(&self.last_stats) = (stats, started.slots.tally().copies());
        *lock(&self.started) = None;
        // Upstream may keep buffers, pools and the allocator. They continue with private memory.
        started.slots.close();
        started.producer.close();
        self.stream.reset();
        gst::info!(CAT, imp = self, "Stopped");
        Ok(())
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.interrupts.set(Reason::Unlocked, true);
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.interrupts.set(Reason::Unlocked, false);
        // Before a pause or a flush restarts the count. GstBaseSink holds the preroll lock, so no frame is dropped until then.
        self.update_late();
        Ok(())
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        gst::debug!(CAT, imp = self, "Caps are {caps}");
        if let Err(reason) = self.stream.set_caps(caps) {
            self.refuse_caps(&reason);
            return Err(gst::loggable_error!(CAT, "{reason}"));
        }
        // Decoders need frames outside of the segment, such as those before a seek's target.
        self.obj().set_drop_out_of_segment(caps::is_raw(caps));
        let started = self.started();
        let kept = started.and_then(|started| when::longest(caps, &started));
        self.times.set_kept(kept);
        Ok(())
    }

    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        // Without a filter the answer is ANY. Caps that the sink cannot accept are refused in `set_caps`.
        let caps = self.parent_caps(filter).or_else(|| filter.cloned());
        caps.map(caps::supported)
            .map(caps::prefer_without_dmabuf)
            .map(caps::prefer_common_format)
    }

    fn propose_allocation(
        &self,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let started = self
            .started()
            .ok_or_else(|| gst::loggable_error!(CAT, "Not started"))?;
        let (caps, need_pool) = query.get_owned();
        // Without caps, the buffers are bytes, as from filesrc.
        let caps = caps.unwrap_or_else(gst::Caps::new_any);
        if !caps::excludes_host_memory(&caps) {
            return self.offer.answer(&started, &caps, need_pool, query);
        }
        query.add_allocation_meta::<gst_video::VideoMeta>(None);
        if need_pool && caps::is_cuda(&caps) {
            device::offer(self.obj().upcast_ref(), &started, &caps, query);
        }
        Ok(())
    }

    fn event(&self, event: gst::Event) -> bool {
        let kind = event.type_();
        if matches!(kind, gst::EventType::Eos | gst::EventType::FlushStop) {
            self.gaps.note_end();
        }
        match kind {
            gst::EventType::StreamStart | gst::EventType::Segment | gst::EventType::FlushStop => {
                if kind == gst::EventType::FlushStop {
                    self.events.discard_deferred();
                }
                if kind != gst::EventType::Segment {
                    self.failures.forget();
                }
                self.begin();
                self.times.forget_upstream();
            }
            _ => {}
        }
        if let Err(reason) = self.stream.note_event(&event) {
            self.note_dropped(&event, &reason);
        }
        if let Some(goes_on) = self.share_event(&event) {
            return goes_on;
        }
        match kind {
            // The pool needs the caps before the first frame.
            gst::EventType::Caps => self.parent_event(event) && self.share_sticky(),
            // The parent waits for a preroll, which never completes while the sink is being stopped.
            gst::EventType::Eos => {
                self.share_sticky() && self.end(&event) && self.parent_event(event)
            }
            gst::EventType::Toc | gst::EventType::Protection => {
                self.note_dropped(&event, "events of this kind stay in this process");
                self.parent_event(event)
            }
            gst::EventType::Segment | gst::EventType::FlushStart => {
                self.update_late();
                let result = self.parent_event(event);
                self.update_late();
                result
            }
            _ => self.parent_event(event),
        }
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Context(query) => {
                let ordinal = lock(&self.settings).cuda_device();
                let obj = self.obj();
                let context = cuda::to_share(query.context_type(), obj.upcast_ref(), ordinal);
                if let Some(context) = context {
                    query.set_context(&context);
                    return true;
                }
            }
            gst::QueryViewMut::AcceptCaps(query) => {
                let wanted = query.caps_owned();
                if caps::supported(wanted.clone()) != wanted {
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
            return Err(self.refuse(&refusal));
        }
        self.begin();
        let obj = self.obj();
        let ctx = self.context(obj.upcast_ref(), &started);
        self.events.share_deferred(ctx, false)?;
        let mut described = self.stream.describe(buffer);
        if described.is_none() {
            described = frame::describe(ctx, buffer, &self.losses)?;
        }
        let Some(described) = &mut described else {
            return self.render_part(ctx, buffer);
        };
        if self.gaps.note_rendered() {
            described.meta.flags |= FrameFlags::AFTER_GAP;
        }
        let outcome = frame::offer(ctx, &self.requests, buffer, described);
        match &outcome {
            Ok(Outcome::InPlace | Outcome::Copied(_)) => {
                self.stream.note_sticky_delivered();
            }
            Ok(Outcome::Dropped | Outcome::Spared(_)) => self.gaps.note_missing(),
            Err(_) => self.gaps.note_skipped(),
        }
        match outcome? {
            Outcome::InPlace => {}
            outcome => frame::report(ctx, buffer, outcome),
        }
        Ok(gst::FlowSuccess::Ok)
    }
}

impl Render for XmemSink {
    fn is_rendered_at_once(&self, buffer: &gst::BufferRef) -> bool {
        self.gaps.note_arrival(buffer);
        self.publishes_immediately()
    }
}

impl XmemSink {
    fn started(&self) -> Option<Arc<Started>> {
        lock(&self.started).clone()
    }

    fn num_clients(&self) -> u32 {
        let started = self.started();
        let clients = started.map_or(0, |started| started.producer.num_consumers());
        u32::try_from(clients).unwrap_or(u32::MAX)
    }

    fn stats(&self) -> gst::Structure {
        let (stats, copies) = match self.started() {
            Some(started) => (started.producer.stats(), started.slots.tally().copies()),
            None => lock(&self.last_stats).clone(),
        };
        let mut stats = stats::of_sink(&stats, copies, self.update_late(), &self.losses);
        stats.set("skipped", self.gaps.skipped());
        stats.set("clipped", self.gaps.clipped());
        let (shared, dropped) = self.events.counts();
        stats.set("events", shared);
        stats.set("events-dropped", dropped);
        stats
    }

    /// Counts the frames later than max-lateness, which do not reach `render`.
    fn update_late(&self) -> u64 {
        self.late.update(self.obj().upcast_ref())
    }

    fn context<'a>(
        &'a self,
        sink: &'a gst_base::BaseSink,
        started: &'a Started,
    ) -> SinkContext<'a> {
        SinkContext {
            sink,
            started,
            stream: &self.stream,
            times: &self.times,
            interrupts: &self.interrupts,
        }
    }

    /// Renders the samples inside the segment. If there are none, the buffer counts as skipped when the next one arrives.
    #[cold]
    #[inline(never)]
    fn render_part(
        &self,
        ctx: SinkContext<'_>,
        buffer: &gst::BufferRef,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        match frame::part(ctx, buffer) {
            Some((part, outside)) => {
                self.gaps.note_clipped(outside);
                self.render(&part)
            }
            None => Ok(gst::FlowSuccess::Ok),
        }
    }

    fn publishes_immediately(&self) -> bool {
        self.times.publishes_immediately(self.obj().upcast_ref())
    }

    /// Posts an error: the pool cannot serve upstream.
    #[cold]
    fn refuse(&self, reason: &str) -> gst::FlowError {
        gst::element_imp_error!(self, gst::ResourceError::Settings, ("{reason}"));
        gst::FlowError::Error
    }

    /// Posts an error. Consumers cannot use frames without caps.
    fn refuse_caps(&self, reason: &str) {
        gst::element_imp_error!(
            self,
            gst::StreamError::Format,
            ("The caps cannot be shared: {reason}. Have upstream make others, or put `capssetter replace=true` with others \
                 before xmemsink")
        );
    }

    fn note_dropped(&self, event: &gst::EventRef, reason: &str) {
        self.events
            .note_dropped(self.obj().upcast_ref(), event, reason);
    }

    /// Called when the stream continues or a new one begins.
    fn begin(&self) {
        if self.stream.begin() {
            self.end_eos();
        }
    }

    #[cold]
    fn end_eos(&self) {
        if let Some(started) = self.started() {
            started.producer.set_eos(false);
        }
    }

    /// Gives the pool the sticky state, or leaves that to the next frame. `false`: the pool refused it.
    fn share_sticky(&self) -> bool {
        let obj = self.obj();
        self.started().is_some_and(|started| {
            let pushed = self
                .stream
                .push_sticky(obj.upcast_ref(), &started.producer, None);
            matches!(pushed, Ok(()) | Err(UNSHARED))
        })
    }

    /// Publishes an event between two frames. `None`: the event is not of that kind. `Some(false)`: the stream is being
    /// stopped.
    fn share_event(&self, event: &gst::Event) -> Option<bool> {
        let packed = match event::pack(event)? {
            Ok(packed) => packed,
            Err(reason) => {
                self.note_dropped(event, reason);
                return Some(true);
            }
        };
        let Some(started) = self.started() else {
            return Some(false);
        };
        let obj = self.obj();
        let ctx = self.context(obj.upcast_ref(), &started);
        let is_gap = event.type_() == gst::EventType::Gap;
        if is_gap && !self.wait_until_due(event) {
            return Some(false);
        }
        let earlier = if event.is_serialized() {
            self.events.share_deferred(ctx, !is_gap)
        } else {
            Ok(())
        };
        match earlier.and_then(|()| self.events.send(ctx, event, packed, !is_gap)) {
            Err(base::PAUSED) => {
                self.events.defer(ctx.sink, event);
                Some(true)
            }
            result => Some(result.is_ok()),
        }
    }

    /// Waits until a gap event is due, as for a frame at its position.
    fn wait_until_due(&self, event: &gst::Event) -> bool {
        if self.publishes_immediately() {
            base::preroll(self.obj().upcast_ref(), Data::Event(event)).is_ok()
        } else {
            self.parent_event(event.clone())
        }
    }

    /// Ends the stream. Waits until lossless consumers have taken the last frames. `false`: it was stopped before that.
    fn end(&self, event: &gst::EventRef) -> bool {
        let Some(started) = self.started() else {
            return false;
        };
        let obj = self.obj();
        let ctx = self.context(obj.upcast_ref(), &started);
        let deferred = self.events.share_deferred(ctx, false);
        if deferred.is_err() || !self.events.share_sticky(ctx, event) {
            return false;
        }
        self.stream.end();
        let has_failed = self.failures.have_happened();
        if started.settings.send_eos && !has_failed {
            started.producer.set_eos(true);
        }
        let is_drained = !started.is_lossless() || ctx.drain(Data::Event(event)).is_ok();
        if !started.settings.send_eos && !has_failed {
            self.end_sources(event);
        }
        is_drained
    }

    /// Ends the sources of this pool that are in the sink's own pipeline. They would wait for the next stream, and the pipeline
    /// for their end.
    #[cold]
    fn end_sources(&self, event: &gst::EventRef) {
        let pool = uri::of_pool(&lock(&self.settings).pool);
        let is_of_pool = |source: &gst::Element| {
            let handler = source.dynamic_cast_ref::<gst::URIHandler>();
            pool.is_some() && handler.and_then(gst::URIHandler::uri).as_deref() == pool.as_deref()
        };
        for source in pipeline::sources(self.obj().upcast_ref()) {
            if is_of_pool(&source) {
                let eos = gst::event::Eos::builder().seqnum(event.seqnum()).build();
                // This takes the state lock of the source.
                source.call_async(move |source| {
                    if source.current_state() > gst::State::Ready {
                        source.send_event(eos);
                    }
                });
            }
        }
    }
}

fn create_error(pool: &OsStr, error: &CreateError) -> gst::ErrorMessage {
    let domain = match error {
        CreateError::InUse { .. } => gst::ResourceError::Busy,
        CreateError::Name(_) | CreateError::Settings(_) => gst::ResourceError::Settings,
        _ => gst::ResourceError::OpenReadWrite,
    };
    gst::error_msg!(domain, ("Cannot create pool {pool:?}: {error}"))
}
