// SPDX-License-Identifier: MPL-2.0

/**
 * SECTION:element-xmemsrc
 * @see_also: xmemsink
 *
 * Takes the frames of a pool that `xmemsink`, or a program that uses the library, has in another process. Each buffer
 * is the producer's slot itself, read-only: an element that writes in place gets a copy of its own. The slot is free
 * for the producer again when the last reference to the buffer's memory is gone.
 *
 * The source may be started first: it waits for a producer, and after two seconds a warning message says at which
 * path it waits and which pools there are. It also rides over a producer that stops or dies and comes back; see
 * #GstXmemSrc:on-producer-lost.
 *
 * It is a live source. Timestamps are the producer's, carried over CLOCK_MONOTONIC into this pipeline's running time;
 * see #GstXmemSrc:timestamp-mode. The latency is the producer's and #GstXmemSrc:processing-deadline; it is known once
 * there is a producer, and a LATENCY message says when it changes.
 *
 * The stream's events come along, see `xmemsink`; times in them are this pipeline's. Its id is the pool's name and the
 * producer's own id. An encoded stream begins with a key frame, which the producer is asked for; see
 * #GstXmemSrc:wait-for-keyframe. A force-key-unit event from downstream is handed on to the producer's pipeline. No
 * other event goes upstream: what several consumers want can differ. A reconfigure event makes this element ask
 * downstream anew which layouts it reads. Seeks are refused.
 *
 * |[
 * gst-launch-1.0 xmemsrc pool=cam0 ! videoconvert ! autovideosink
 * ]| Shows what another process puts into the pool.
 * |[
 * gst-play-1.0 --no-interactive --videosink=autovideosink xmem://cam0
 * ]| The same with a player.
 *
 * docs/xmemsrc.md has all of it, with what happens when something goes wrong.
 *
 * Since: plugin-xmem-0.1
 */
use std::{
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::base_src::CreateSuccess, subclass::prelude::*};
use xmem_core::{
    Canceller, Consumer, ConsumerBuilder, ConsumerHandle, FrameMeta, ReadLease, ReceiveError,
    Sticky,
};

use super::{
    XmemSrcOnEos, XmemSrcOnProducerLost, XmemSrcOverBudget, XmemSrcTimestampMode,
    connection::Unconnected,
    delivery::{Converter, Nonsense, Way},
    events::{self, Sent},
    gate::Gate,
    messages::{self, Loss},
    outgoing::Outgoing,
    settings::{self, PROP_POOL, PROP_PROCESSING_DEADLINE, PROP_STATS, Settings},
    times::{Course, Stamper, Times},
};
use crate::{
    event::key_frame::KeyFrame,
    frame::Format,
    memory::Tally,
    meta::Losses,
    stats::{self, SourceFigures},
    timeline::Timeline,
    uri,
    xmemsink::sticky,
};

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemsrc",
        gst::DebugColorFlags::empty(),
        Some("Takes buffers out of a shared pool"),
    )
});

/// How long the producer may take to tell what a stream is that is over already.
const STATE_TIME: Duration = Duration::from_secs(2);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the streaming thread works with. It takes it out of its lock while it waits.
#[derive(Debug)]
pub(super) struct Started {
    builder: ConsumerBuilder,
    /// As they were at the start; they can be changed only while the source is stopped.
    pub(super) settings: Settings,
    /// `None`: none yet, or lost.
    consumer: Option<Consumer>,
    /// There was a producer before.
    was_connected: bool,
    /// Version of the sticky state that `stream` has, of this producer.
    sticky_version: Option<u64>,
    /// Sequence of the frame that would follow the last one without a gap.
    next_sequence: Option<u64>,
    /// The next buffer does not follow the last one.
    discont: bool,
    pub(super) gate: Gate,
    stamper: Stamper,
    said_copied: bool,
}

/// What the sticky state of the producer comes to.
#[derive(Debug, Default)]
pub(super) struct Stream {
    sticky: Sticky,
    pub(super) caps: Option<gst::Caps>,
    format: Arc<Format>,
    course: Course,
    /// Downstream can read a GstVideoMeta.
    video_meta: bool,
}

/// What becomes of a received frame.
enum Received {
    Buffer(gst::Buffer, Way),
    Dropped,
}

/// No two of the locks are ever held at once, and none across a call that waits or that leads out of the element.
#[derive(Debug, Default)]
pub struct XmemSrc {
    pub(super) settings: Mutex<Settings>,
    started: Mutex<Option<Started>>,
    pub(super) stream: Mutex<Stream>,
    pub(super) sent: Mutex<Sent>,
    pub(super) figures: Mutex<SourceFigures>,
    /// The connection to the current producer, for others than the streaming thread.
    pub(super) connection: Mutex<Option<ConsumerHandle>>,
    tally: Arc<Tally>,
    pub(super) outgoing: Arc<Outgoing>,
    /// Metas that make no sense here.
    losses: Losses,
    canceller: Canceller,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSrc {
    const NAME: &'static str = "GstXmemSrc";
    type Type = super::XmemSrc;
    type Interfaces = (gst::URIHandler,);
    type ParentType = gst_base::PushSrc;
}

impl ObjectImpl for XmemSrc {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(settings::properties);
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        lock(&self.settings).set(pspec, value);
        gst::info!(CAT, imp = self, "Set {} to {value:?}", pspec.name());
        if pspec.name() == PROP_PROCESSING_DEADLINE {
            self.say_latency_changed();
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            PROP_STATS => {
                let connection = lock(&self.connection).clone();
                let current = connection
                    .and_then(|connection| connection.stats())
                    .unwrap_or_default();
                let figures = lock(&self.figures).clone();
                // Every frame that is out holds the tally, and so does the element.
                let held = Arc::strong_count(&self.tally).saturating_sub(1) as u64;
                stats::of_source(&figures, &current, held, self.tally.copies(), &self.losses)
                    .to_value()
            }
            _ => lock(&self.settings).get(pspec),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.set_live(true);
        obj.set_format(gst::Format::Time);
        // In this order: what is mended is what is looked at.
        self.outgoing.watch(obj.src_pad());
        events::watch(&obj);
    }
}

impl GstObjectImpl for XmemSrc {}

impl ElementImpl for XmemSrc {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Shared frame pool source",
                "Source",
                "Takes buffers out of another process's pool without a copy",
                "The xmem developers",
            )
        });
        Some(&*METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> = LazyLock::new(|| {
            let caps = gst::Caps::new_any();
            gst::PadTemplate::new(
                "src",
                gst::PadDirection::Src,
                gst::PadPresence::Always,
                &caps,
            )
            .into_iter()
            .collect()
        });
        TEMPLATES.as_ref()
    }
}

impl URIHandlerImpl for XmemSrc {
    const URI_TYPE: gst::URIType = gst::URIType::Src;

    fn protocols() -> &'static [&'static str] {
        uri::PROTOCOLS
    }

    fn uri(&self) -> Option<String> {
        uri::of_pool(&lock(&self.settings).pool)
    }

    fn set_uri(&self, uri: &str) -> Result<(), glib::Error> {
        uri::apply(self.obj().upcast_ref(), PROP_POOL, uri)
    }
}

impl BaseSrcImpl for XmemSrc {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let builder = settings
            .consumer(&self.obj().name())
            .canceller(&self.canceller);
        let path = builder.socket_path().map_err(|error| {
            gst::error_msg!(
                gst::ResourceError::Settings,
                ["Cannot use pool {:?}: {error}", settings.pool]
            )
        })?;
        gst::info!(CAT, imp = self, "Pool {:?} at {path:?}", settings.pool);
        self.canceller.reset();
        *lock(&self.figures) = SourceFigures::default();
        self.tally.reset();
        self.losses.reset();
        *lock(&self.stream) = Stream::default();
        *lock(&self.sent) = Sent::default();
        self.outgoing.set_segment(None);
        *lock(&self.started) = Some(Started {
            builder,
            stamper: Stamper::new(&settings),
            settings,
            consumer: None,
            was_connected: false,
            sticky_version: None,
            next_sequence: None,
            discont: false,
            gate: Gate::default(),
            said_copied: false,
        });
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // Frames that are out keep what they need themselves.
        let started = lock(&self.started).take();
        if let Some(consumer) = started.and_then(|started| started.consumer) {
            self.part(consumer);
        }
        *lock(&self.stream) = Stream::default();
        gst::info!(CAT, imp = self, "Stopped");
        Ok(())
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.canceller.cancel();
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.canceller.reset();
        Ok(())
    }

    fn is_seekable(&self) -> bool {
        false
    }

    /// The caps come with the first frame; before that there is nothing to negotiate.
    fn negotiate(&self) -> Result<(), gst::LoggableError> {
        let caps = lock(&self.stream).caps.clone();
        match caps {
            Some(caps) => Ok(self.obj().set_caps(&caps)?),
            None => Ok(()),
        }
    }

    /// Frames bring their memory along. All there is to know is whether downstream can read any layout.
    fn decide_allocation(
        &self,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let video_meta = query
            .find_allocation_meta::<gst_video::VideoMeta>()
            .is_some();
        gst::debug!(
            CAT,
            imp = self,
            "Downstream reads GstVideoMeta: {video_meta}"
        );
        lock(&self.stream).video_meta = video_meta;
        while query.allocation_pools().next().is_some() {
            query.remove_nth_allocation_pool(0);
        }
        Ok(())
    }

    /// What the producer has, once that is known.
    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let caps = lock(&self.stream).caps.clone().or_else(|| {
            let connection = lock(&self.connection).clone()?;
            sticky::parse_caps(connection.sticky()?.text(sticky::CAPS)?)
        });
        let Some(caps) = caps else {
            return self.parent_caps(filter);
        };
        Some(match filter {
            Some(filter) => filter.intersect_with_mode(&caps, gst::CapsIntersectMode::First),
            None => caps,
        })
    }

    fn event(&self, event: &gst::Event) -> bool {
        if let Ok(wish) = gst_video::UpstreamForceKeyUnitEvent::parse(event) {
            return self.request(KeyFrame::from_event(&wish, self.obj().upcast_ref()));
        }
        self.parent_event(event)
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Latency(query) => {
                let (mode, deadline) = {
                    let settings = lock(&self.settings);
                    (settings.timestamp_mode, settings.processing_deadline)
                };
                let producer = lock(&self.stream).course.latency(mode);
                // There is no most: what nobody takes is overwritten.
                query.set(
                    true,
                    producer.saturating_add(deadline),
                    gst::ClockTime::NONE,
                );
                true
            }
            gst::QueryViewMut::AcceptCaps(query) => {
                let caps = BaseSrcImpl::caps(self, Some(&query.caps_owned()));
                query.set_result(caps.is_some_and(|caps| !caps.is_empty()));
                true
            }
            gst::QueryViewMut::Scheduling(query) => {
                // GstBaseSrc claims to be seekable.
                query.set(gst::SchedulingFlags::SEQUENTIAL, 1, -1, 0);
                query.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            gst::QueryViewMut::Context(query) => {
                let Some(context) = self.obj().context(query.context_type()) else {
                    return false;
                };
                query.set_context(&context);
                true
            }
            _ => BaseSrcImplExt::parent_query(self, query),
        }
    }
}

impl PushSrcImpl for XmemSrc {
    fn create(
        &self,
        _buffer: Option<&mut gst::BufferRef>,
    ) -> Result<CreateSuccess, gst::FlowError> {
        let started = lock(&self.started).take();
        let Some(mut started) = started else {
            return Err(gst::FlowError::Flushing);
        };
        started.stamper.begin();
        // BaseSrc calls stop() only once this has returned.
        let result = self.next_buffer(&mut started);
        *lock(&self.started) = Some(started);
        result.map(CreateSuccess::NewBuffer)
    }
}

impl XmemSrc {
    fn next_buffer(&self, started: &mut Started) -> Result<gst::Buffer, gst::FlowError> {
        loop {
            let mut consumer = match started.consumer.take() {
                Some(consumer) => consumer,
                None => self.find_producer(started)?,
            };
            match self.receive(started, &mut consumer) {
                Ok(Some(buffer)) => {
                    started.consumer = Some(consumer);
                    return Ok(buffer);
                }
                Ok(None) => started.consumer = Some(consumer),
                Err(Stop::Flow(flow)) => {
                    started.consumer = Some(consumer);
                    return Err(flow);
                }
                Err(Stop::Lost(loss)) => {
                    let pid = consumer.producer_pid();
                    self.part(consumer);
                    messages::lost(&self.obj(), &started.settings.pool, pid, loss);
                    self.lost(started)?;
                }
                Err(Stop::Over) if started.settings.on_eos == XmemSrcOnEos::Wait => {
                    gst::info!(CAT, imp = self, "End of stream, waiting for what follows");
                    consumer.pass_eos();
                    started.consumer = Some(consumer);
                }
                Err(Stop::Over) => {
                    gst::info!(CAT, imp = self, "End of stream");
                    // Who comes after the last frame still learns what it was.
                    let sticky = consumer.wait_sticky(STATE_TIME);
                    started.consumer = Some(consumer);
                    let mode = started.settings.timestamp_mode;
                    let renewed = sticky.map(|sticky| self.renew(mode, &sticky));
                    if let Some(Err(Stop::Flow(flow))) = renewed {
                        return Err(flow);
                    }
                    self.push_segment();
                    return Err(gst::FlowError::Eos);
                }
            }
        }
    }

    fn find_producer(&self, started: &mut Started) -> Result<Consumer, gst::FlowError> {
        let settings = &started.settings;
        let timeout = (settings.connection_timeout > 0)
            .then(|| Duration::from_nanos(settings.connection_timeout));
        match self.connect(&started.builder, &settings.pool, timeout) {
            Ok(consumer) => {
                gst::info!(
                    CAT,
                    imp = self,
                    "Connected to process {}",
                    consumer.producer_pid()
                );
                *lock(&self.connection) = Some(consumer.handle());
                if std::mem::replace(&mut started.was_connected, true) {
                    lock(&self.figures).reconnects += 1;
                    messages::back(&self.obj(), &settings.pool, consumer.producer_pid());
                }
                started.sticky_version = None;
                started.next_sequence = None;
                started.stamper.forget_producer();
                Ok(consumer)
            }
            Err(Unconnected::Cancelled) => Err(gst::FlowError::Flushing),
            Err(Unconnected::TimedOut(error)) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::NotFound,
                    ["No producer came in time: {error}"]
                );
                Err(gst::FlowError::Error)
            }
            Err(Unconnected::Failed(error)) => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::OpenRead,
                    ["Cannot join the pool: {error}"]
                );
                Err(gst::FlowError::Error)
            }
        }
    }

    /// Leaves a producer. Its figures stay.
    fn part(&self, consumer: Consumer) {
        lock(&self.figures).add(&consumer.stats());
        *lock(&self.connection) = None;
        drop(consumer);
    }

    /// This source has ended. It begins anew if it is made to go on.
    pub(super) fn leave(&self) {
        let consumer = lock(&self.started).as_mut().and_then(|started| {
            started.was_connected = false;
            started.consumer.take()
        });
        if let Some(consumer) = consumer {
            self.part(consumer);
        }
    }

    /// The producer went away without an end of stream.
    fn lost(&self, started: &Started) -> Result<(), gst::FlowError> {
        match started.settings.on_producer_lost {
            XmemSrcOnProducerLost::Wait => {
                gst::info!(
                    CAT,
                    imp = self,
                    "The producer is gone, waiting for the next one"
                );
                Ok(())
            }
            XmemSrcOnProducerLost::Eos => {
                gst::info!(CAT, imp = self, "The producer is gone, ending the stream");
                Err(gst::FlowError::Eos)
            }
            XmemSrcOnProducerLost::Error => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Read,
                    [
                        "The producer of pool {:?} is gone, and on-producer-lost=error",
                        started.settings.pool
                    ]
                );
                Err(gst::FlowError::Error)
            }
        }
    }

    /// Waits for a frame. `None`: there was one, and it was dropped.
    fn receive(
        &self,
        started: &mut Started,
        consumer: &mut Consumer,
    ) -> Result<Option<gst::Buffer>, Stop> {
        match consumer.receive(None) {
            Ok(lease) if lease.meta().event => self.pass(started, &lease).map(|()| None),
            Ok(lease) => {
                self.follow(started, &lease)?;
                if !self.is_decodable(started, lease.meta()) {
                    return Ok(None);
                }
                let times = self.stamp(started, lease.meta());
                let received =
                    self.convert(times, |converter| converter.in_place(lease, &self.tally))?;
                Ok(self.deliver(started, consumer, received))
            }
            Err(ReceiveError::OverBudget { budget }) => {
                gst::log!(CAT, imp = self, "All {budget} slots of the budget are held");
                let received = consumer
                    .receive_with(None, |lease| self.receive_over_budget(started, lease))
                    .map_err(|error| self.failed(error))??;
                Ok(received.and_then(|received| self.deliver(started, consumer, received)))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// What becomes of an entry that cannot be held. `None`: it was no frame, or one that is of no use.
    fn receive_over_budget(
        &self,
        started: &mut Started,
        lease: &ReadLease,
    ) -> Result<Option<Received>, Stop> {
        if lease.meta().event {
            return self.pass(started, lease).map(|()| None);
        }
        if started.settings.over_budget == XmemSrcOverBudget::Drop {
            return Ok(Some(Received::Dropped));
        }
        self.follow(started, lease)?;
        if !self.is_decodable(started, lease.meta()) {
            return Ok(None);
        }
        let times = self.stamp(started, lease.meta());
        self.convert(times, |converter| converter.copied(lease))
            .map(Some)
    }

    fn failed(&self, error: ReceiveError) -> Stop {
        match error {
            ReceiveError::Cancelled => Stop::Flow(gst::FlowError::Flushing),
            ReceiveError::Eos => Stop::Over,
            ReceiveError::ProducerLost => Stop::Lost(Loss::Gone),
            // The producer goes on without us; we may join again.
            ReceiveError::TimedOut => {
                gst::warning!(CAT, imp = self, "{error}");
                Stop::Lost(Loss::TimedOut)
            }
            error => {
                gst::element_imp_error!(
                    self,
                    gst::ResourceError::Read,
                    ["Cannot receive a frame: {error}"]
                );
                Stop::Flow(gst::FlowError::Error)
            }
        }
    }

    /// Brings the stream to where an entry belongs.
    pub(super) fn follow(&self, started: &mut Started, lease: &ReadLease) -> Result<(), Stop> {
        let meta = lease.meta();
        if started.next_sequence != Some(meta.sequence) {
            started.discont = true;
            started.gate.close();
        }
        started.next_sequence = meta.sequence.checked_add(1);
        if started.sticky_version != Some(meta.sticky_version) {
            self.renew(started.settings.timestamp_mode, lease.sticky())?;
            started.sticky_version = Some(meta.sticky_version);
        }
        Ok(())
    }

    fn say_latency_changed(&self) {
        let obj = self.obj();
        // The application has the pipeline ask for it then.
        let _ = obj.post_message(gst::message::Latency::builder().src(&*obj).build());
    }

    /// Takes over what the sticky state says of the frames' times.
    fn follow_course(&self, mode: XmemSrcTimestampMode, new: &Sticky, old: &Sticky) {
        let segment = new.text(sticky::SEGMENT).and_then(sticky::parse_segment);
        let course = Course {
            timeline: Timeline::parse(new.text(sticky::TIMELINE)),
            speed: segment.as_ref().map_or(1.0, |segment| segment.rate().abs()),
        };
        let before = std::mem::replace(&mut lock(&self.stream).course, course);
        let latency = course.latency(mode);
        if before.latency(mode) != latency {
            gst::debug!(CAT, imp = self, "The producer's latency is {latency}");
            self.say_latency_changed();
        }
        if mode != XmemSrcTimestampMode::Passthrough
            || old.text(sticky::SEGMENT) == new.text(sticky::SEGMENT)
        {
            return;
        }
        if let Some(segment) = segment {
            gst::debug!(CAT, imp = self, "Segment is {segment:?}");
            self.outgoing.set_segment(Some(segment));
            // GstBaseSrc takes only segments of its own format, and ends the stream where one ends. It sends this one
            // before the frame, and ours leaves in its place.
            let any = gst::FormattedSegment::<gst::ClockTime>::new();
            if let Err(error) = self.obj().new_segment(any.upcast_ref()) {
                gst::warning!(CAT, imp = self, "{error}");
            }
        }
    }

    /// Sends downstream what is new in the sticky state.
    fn renew(&self, mode: XmemSrcTimestampMode, new: &Sticky) -> Result<(), Stop> {
        let mut old = std::mem::replace(&mut lock(&self.stream).sticky, new.clone());
        let begins = self.announce(new);
        if begins {
            // All that was said belongs to the stream before.
            old = Sticky::new();
        }
        self.follow_course(mode, new, &old);
        let pad = self.obj().src_pad().clone();
        let caps = new.text(sticky::CAPS);
        if caps.is_some() && old.text(sticky::CAPS) != caps {
            let parsed = caps.and_then(sticky::parse_caps);
            let Some(parsed) = parsed else {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ["The producer's caps make no sense: {caps:?}"]
                );
                return Err(Stop::Flow(gst::FlowError::Error));
            };
            gst::info!(CAT, imp = self, "Caps are {parsed}");
            if self.is_refused(&parsed) {
                let pool = lock(&self.settings).pool.clone();
                gst::element_imp_error!(
                    self,
                    gst::CoreError::Negotiation,
                    ("Downstream does not take what is in pool {pool:?}"),
                    [
                        "The producer's caps are {parsed}; put a converter that takes them behind xmemsrc, or have the \
                         producer make others"
                    ]
                );
                return Err(Stop::Flow(gst::FlowError::NotNegotiated));
            }
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

    /// Whether downstream would refuse these caps. Sending them does not tell: that they were refused comes back only
    /// as the flow of the next buffer, which the base class reports without a reason.
    fn is_refused(&self, caps: &gst::Caps) -> bool {
        let peer = self.obj().src_pad().peer();
        peer.is_some_and(|peer| {
            !peer.query_accept_caps(caps) && !peer.pad_flags().contains(gst::PadFlags::FLUSHING)
        })
    }

    fn convert(
        &self,
        times: Times,
        convert: impl FnOnce(&Converter<'_>) -> Result<(gst::Buffer, Way), Nonsense>,
    ) -> Result<Received, Stop> {
        let (format, video_meta) = {
            let stream = lock(&self.stream);
            (stream.format.clone(), stream.video_meta)
        };
        let converter = Converter {
            format: &format,
            video_meta,
            times,
            losses: &self.losses,
        };
        let converted = convert(&converter);
        self.name_losses();
        match converted {
            Ok((buffer, way)) => Ok(Received::Buffer(buffer, way)),
            Err(Nonsense(reason)) => {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ["The producer describes a frame that cannot be: {reason}"]
                );
                Err(Stop::Flow(gst::FlowError::Error))
            }
        }
    }

    /// Says which metas are left out, once for each name.
    fn name_losses(&self) {
        for (name, why) in self.losses.news() {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ["Frames come without their {name}: {why}. See the field dropped-metas of stats"]
            );
        }
    }

    pub(super) fn stamp(&self, started: &mut Started, meta: &FrameMeta) -> Times {
        let course = lock(&self.stream).course;
        started.stamper.stamp(&self.obj(), meta, &course)
    }

    /// Counts the frame and finishes it.
    fn deliver(
        &self,
        started: &mut Started,
        consumer: &Consumer,
        received: Received,
    ) -> Option<gst::Buffer> {
        let Received::Buffer(mut buffer, way) = received else {
            lock(&self.figures).dropped += 1;
            return None;
        };
        if way == Way::InPlace {
            lock(&self.figures).zero_copy += 1;
        } else {
            lock(&self.figures).copied += 1;
            consumer.note_copied();
            if !std::mem::replace(&mut started.said_copied, true) {
                let reason = match way {
                    Way::OverBudget => "downstream holds as many as max-held allows",
                    _ => "downstream cannot read their layout, since it does not know GstVideoMeta",
                };
                gst::warning!(
                    gst::CAT_PERFORMANCE,
                    imp = self,
                    "Frames are copied: {reason}"
                );
            }
        }
        if std::mem::take(&mut started.discont) {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        // Who sets do-timestamp wants GstBaseSrc to fill in what is missing.
        let as_they_are = !self.obj().does_timestamp();
        self.outgoing
            .set_times(as_they_are.then(|| (buffer.pts(), buffer.dts())));
        gst::trace!(CAT, imp = self, "{way:?} {buffer:?}");
        Some(buffer)
    }
}

/// Why there is no frame.
#[derive(Debug)]
pub(super) enum Stop {
    /// The streaming thread ends with this.
    Flow(gst::FlowError),
    /// The producer went away.
    Lost(Loss),
    /// The stream is over.
    Over,
}
