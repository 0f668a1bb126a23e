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
 * It is a live source. Timestamps are the producer's, carried over CLOCK_MONOTONIC into this pipeline's running time.
 *
 * |[
 * gst-launch-1.0 xmemsrc pool=cam0 ! videoconvert ! autovideosink
 * ]| Shows what another process puts into the pool.
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
    Canceller, Consumer, ConsumerBuilder, FrameMeta, ReadLease, ReceiveError, ReceiveMonitor,
    Sticky,
};

use super::{
    XmemSrcOnProducerLost, XmemSrcOverBudget,
    connection::Unconnected,
    delivery::{Converter, Nonsense, Way},
    settings::{self, PROP_PROCESSING_DEADLINE, PROP_STATS, Settings},
};
use crate::{
    frame::Format,
    memory::Tally,
    stats::{self, SourceFigures},
    timing::{ClockOffset, Origin},
    xmemsink::sticky,
};

pub(super) static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "xmemsrc",
        gst::DebugColorFlags::empty(),
        Some("Takes buffers out of a shared pool"),
    )
});

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the streaming thread works with. It takes it out of its lock while it waits.
#[derive(Debug)]
struct Started {
    builder: ConsumerBuilder,
    /// As they were at the start; they can be changed only while the source is stopped.
    settings: Settings,
    /// `None`: none yet, or lost.
    consumer: Option<Consumer>,
    /// There was a producer before.
    was_connected: bool,
    /// Version of the sticky state that `stream` has, of this producer.
    sticky_version: Option<u64>,
    /// Sequence of the frame that would follow the last one without a gap.
    next_sequence: Option<u64>,
    clock: ClockOffset,
    /// How much later this producer's frames come than their times say, because the first one was from before this
    /// pipeline's start. `None`: no frame with a time yet.
    shift: Option<gst::ClockTime>,
    said_copied: bool,
}

/// What the sticky state of the producer comes to.
#[derive(Debug, Default)]
struct Stream {
    sticky: Sticky,
    caps: Option<gst::Caps>,
    format: Arc<Format>,
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
    settings: Mutex<Settings>,
    started: Mutex<Option<Started>>,
    stream: Mutex<Stream>,
    figures: Mutex<SourceFigures>,
    /// Tells the figures of the current producer while the streaming thread waits for a frame.
    monitor: Mutex<Option<ReceiveMonitor>>,
    tally: Arc<Tally>,
    canceller: Canceller,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSrc {
    const NAME: &'static str = "GstXmemSrc";
    type Type = super::XmemSrc;
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
            let _ = self
                .obj()
                .post_message(gst::message::Latency::builder().src(&*self.obj()).build());
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            PROP_STATS => {
                let monitor = lock(&self.monitor).clone();
                let current = monitor
                    .and_then(|monitor| monitor.stats())
                    .unwrap_or_default();
                let figures = lock(&self.figures).clone();
                // Every frame that is out holds the tally, and so does the element.
                let held = Arc::strong_count(&self.tally).saturating_sub(1) as u64;
                stats::of_source(&figures, &current, held, self.tally.copies()).to_value()
            }
            _ => lock(&self.settings).get(pspec),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.set_live(true);
        obj.set_format(gst::Format::Time);
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
        *lock(&self.stream) = Stream::default();
        *lock(&self.started) = Some(Started {
            builder,
            settings,
            consumer: None,
            was_connected: false,
            sticky_version: None,
            next_sequence: None,
            clock: ClockOffset::default(),
            shift: None,
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

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Latency(query) = query.view_mut() {
            query.set(
                true,
                lock(&self.settings).processing_deadline,
                gst::ClockTime::NONE,
            );
            return true;
        }
        BaseSrcImplExt::parent_query(self, query)
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
                Err(Stop::Lost) => {
                    self.part(consumer);
                    self.lost(started)?;
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
                if std::mem::replace(&mut started.was_connected, true) {
                    lock(&self.figures).reconnects += 1;
                }
                *lock(&self.monitor) = Some(consumer.monitor());
                started.sticky_version = None;
                started.next_sequence = None;
                started.shift = None;
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
        *lock(&self.monitor) = None;
        drop(consumer);
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
            Ok(lease) => {
                let discont = self.follow(started, &lease)?;
                let origin = self.origin(started, lease.meta());
                let received =
                    self.convert(origin, |converter| converter.in_place(lease, &self.tally))?;
                Ok(self.deliver(started, consumer, received, discont))
            }
            Err(ReceiveError::OverBudget { budget }) => {
                gst::log!(CAT, imp = self, "All {budget} slots of the budget are held");
                match started.settings.over_budget {
                    XmemSrcOverBudget::Copy => {
                        let copied = consumer.receive_with(None, |lease| {
                            let discont = self.follow(started, lease)?;
                            let origin = self.origin(started, lease.meta());
                            let received =
                                self.convert(origin, |converter| converter.copied(lease))?;
                            Ok((received, discont))
                        });
                        let (received, discont) = copied.map_err(|error| self.failed(error))??;
                        Ok(self.deliver(started, consumer, received, discont))
                    }
                    XmemSrcOverBudget::Drop => {
                        consumer
                            .receive_with(None, |_| ())
                            .map_err(|error| self.failed(error))?;
                        Ok(self.deliver(started, consumer, Received::Dropped, false))
                    }
                }
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: ReceiveError) -> Stop {
        match error {
            ReceiveError::Cancelled => Stop::Flow(gst::FlowError::Flushing),
            ReceiveError::Eos => {
                gst::info!(CAT, imp = self, "End of stream");
                Stop::Flow(gst::FlowError::Eos)
            }
            ReceiveError::ProducerLost => Stop::Lost,
            // The producer goes on without us; we may join again.
            ReceiveError::TimedOut => {
                gst::warning!(CAT, imp = self, "{error}");
                Stop::Lost
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

    /// Brings the stream to where the frame belongs. `true`: the frame does not follow the last one.
    fn follow(&self, started: &mut Started, lease: &ReadLease) -> Result<bool, Stop> {
        let meta = lease.meta();
        let discont = started.next_sequence != Some(meta.sequence);
        started.next_sequence = meta.sequence.checked_add(1);
        if started.sticky_version != Some(meta.sticky_version) {
            self.renew(lease.sticky())?;
            started.sticky_version = Some(meta.sticky_version);
        }
        Ok(discont)
    }

    /// Sends downstream what is new in the sticky state.
    fn renew(&self, new: &Sticky) -> Result<(), Stop> {
        let old = std::mem::replace(&mut lock(&self.stream).sticky, new.clone());
        let caps = new.text(sticky::CAPS);
        if caps.is_some() && old.text(sticky::CAPS) != caps {
            let parsed = caps
                .and_then(|caps| caps.parse::<gst::Caps>().ok())
                .filter(|caps| caps.is_fixed());
            let Some(parsed) = parsed else {
                gst::element_imp_error!(
                    self,
                    gst::StreamError::Format,
                    ["The producer's caps make no sense: {caps:?}"]
                );
                return Err(Stop::Flow(gst::FlowError::Error));
            };
            gst::info!(CAT, imp = self, "Caps are {parsed}");
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
        for key in [sticky::GLOBAL_TAGS, sticky::TAGS] {
            let tags = new.text(key).filter(|tags| old.text(key) != Some(*tags));
            if let Some(tags) = tags.and_then(sticky::parse_tags) {
                // BaseSrc sends it after its segment and before this frame.
                self.obj().send_event(gst::event::Tag::new(tags));
            }
        }
        Ok(())
    }

    fn convert(
        &self,
        origin: Option<Origin>,
        convert: impl FnOnce(&Converter<'_>) -> Result<(gst::Buffer, Way), Nonsense>,
    ) -> Result<Received, Stop> {
        let (format, video_meta) = {
            let stream = lock(&self.stream);
            (stream.format.clone(), stream.video_meta)
        };
        let converter = Converter {
            format: &format,
            video_meta,
            origin,
        };
        match convert(&converter) {
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

    /// Where this pipeline's running time 0 lies for the frames of this producer. `None`: the pipeline has no clock.
    fn origin(&self, started: &mut Started, meta: &FrameMeta) -> Option<Origin> {
        let obj = self.obj();
        let clock = obj.clock();
        let offset = started.clock.sample(clock.as_ref())?;
        let origin = Origin::new(obj.base_time()?, gst::ClockTime::ZERO, offset);
        let earliest = meta
            .timestamp
            .into_iter()
            .chain(meta.decode_timestamp)
            .min();
        if started.shift.is_none()
            && let Some(earliest) = earliest
        {
            // Frames from before the start would all come at time 0 otherwise, and lose their spacing.
            let shift = origin.shortfall(earliest);
            gst::debug!(
                CAT,
                imp = self,
                "Frames come {shift} later than their times say"
            );
            started.shift = Some(shift);
        }
        Some(origin.delayed(started.shift.unwrap_or(gst::ClockTime::ZERO)))
    }

    /// Counts the frame and finishes it.
    fn deliver(
        &self,
        started: &mut Started,
        consumer: &Consumer,
        received: Received,
        discont: bool,
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
        if discont {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        gst::trace!(CAT, imp = self, "{way:?} {buffer:?}");
        Some(buffer)
    }
}

/// Why there is no frame.
enum Stop {
    /// The streaming thread ends with this.
    Flow(gst::FlowError),
    /// The producer went away.
    Lost,
}
