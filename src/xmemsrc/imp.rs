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
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::base_src::CreateSuccess, subclass::prelude::*};
use xmem_core::{Canceller, ConsumerHandle};

use super::{
    XmemSrcOnEos,
    events::{self, Sent},
    key_frame_gate::KeyFrameGate,
    log::CAT,
    messages::{self},
    outgoing::Outgoing,
    settings::{self, PROP_POOL, PROP_PROCESSING_DEADLINE, PROP_STATS, Settings},
    started::{Counted, Started, Stop, Stream},
    times::Stamper,
};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::lock::lock;
use crate::{
    bytes::{self, UriHandler},
    caps,
    event::{key_frame::KeyFrame, sticky},
    memory::Tally,
    meta::Losses,
    stats::{self, SourceFigures},
    uri,
};

/// How long the producer may take to tell what a stream is that is over already.
const STATE_TIME: Duration = Duration::from_secs(2);

/// No two of the locks are ever held at once, and none across a call that waits or that leads out of the element.
#[derive(Debug, Default)]
pub struct XmemSrc {
    pub(super) settings: Mutex<Settings>,
    pub(super) started: Mutex<Option<Started>>,
    pub(super) stream: Mutex<Stream>,
    pub(super) sent: Mutex<Sent>,
    pub(super) counted: Mutex<Counted>,
    pub(super) tally: Arc<Tally>,
    pub(super) outgoing: Arc<Outgoing>,
    /// Metas that make no sense here.
    pub(super) losses: Losses,
    pub(super) canceller: Canceller,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSrc {
    const NAME: &'static str = "GstXmemSrc";
    type Type = super::XmemSrc;
    type Interfaces = (UriHandler,);
    type ParentType = gst_base::PushSrc;
}

impl ObjectImpl for XmemSrc {
    fn properties() -> &'static [glib::ParamSpec] {
        static PROPERTIES: LazyLock<Vec<glib::ParamSpec>> = LazyLock::new(settings::properties);
        PROPERTIES.as_ref()
    }

    fn set_property(&self, _id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
        if self.obj().current_state() > gst::State::Ready
            && !pspec.flags().contains(gst::PARAM_FLAG_MUTABLE_PLAYING)
        {
            gst::warning!(
                CAT,
                imp = self,
                "{} stays as it is: set it in NULL or READY",
                pspec.name()
            );
            return;
        }
        lock(&self.settings).set(pspec, value);
        gst::info!(CAT, imp = self, "Set {} to {value:?}", pspec.name());
        if pspec.name() == PROP_PROCESSING_DEADLINE {
            self.say_latency_changed();
        }
    }

    fn property(&self, _id: usize, pspec: &glib::ParamSpec) -> glib::Value {
        match pspec.name() {
            PROP_STATS => {
                // As long as it is locked, the figures of this connection are not among those of former ones.
                let counted = lock(&self.counted);
                let connection = counted.connection.as_ref();
                let device = connection.and_then(ConsumerHandle::device);
                let current = connection.and_then(ConsumerHandle::stats);
                let current = current.unwrap_or_default();
                let figures = counted.figures.clone();
                drop(counted);
                // Every frame that is out holds the tally, and so does the element.
                let held = Arc::strong_count(&self.tally).saturating_sub(1) as u64;
                let copies = self.tally.copies();
                let device = device.as_deref();
                stats::of_source(&figures, &current, device, held, copies, &self.losses).to_value()
            }
            _ => lock(&self.settings).get(pspec),
        }
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.set_live(true);
        obj.set_format(gst::Format::Time);
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

    /// That downstream refuses frames only when they come, GstBaseSrc says, and not what they are.
    fn post_message(&self, message: gst::Message) -> bool {
        if messages::is_not_negotiated(&message) {
            self.say_refused_later();
        }
        self.parent_post_message(message)
    }

    /// GstBaseSrc waits with an EOS until the streaming thread has returned from downstream, and so long the application waits too.
    /// In a pause that can be for ever. Here `create` ends the stream when the thread comes to it.
    fn send_event(&self, event: gst::Event) -> bool {
        if event.type_() != gst::EventType::Eos {
            return self.parent_send_event(event);
        }
        lock(&self.sent).eos = Some(event);
        self.canceller.cancel();
        if self.obj().src_pad().task_state() == gst::TaskState::Started {
            return true;
        }
        // No thread comes to `create`, and GstBaseSrc has none to wait for.
        let event = lock(&self.sent).eos.take();
        event.is_none_or(|event| self.parent_send_event(event))
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
        uri::apply(self.obj().upcast_ref(), gst::State::Ready, PROP_POOL, uri)
    }
}

impl BaseSrcImpl for XmemSrc {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = lock(&self.settings).clone();
        let builder = settings
            .consumer(&bytes::name_of(&*self.obj()))
            .canceller(&self.canceller);
        let path = builder.socket_path().map_err(|error| {
            gst::error_msg!(
                gst::ResourceError::Settings,
                ("Cannot use pool {:?}: {error}", settings.pool)
            )
        })?;
        gst::info!(CAT, imp = self, "Pool {:?} at {path:?}", settings.pool);
        self.canceller.reset();
        lock(&self.counted).figures = SourceFigures::default();
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
            gate: KeyFrameGate::default(),
            header_is_due: true,
            kept: None,
            said_budget: false,
            said_copied: false,
            said_dropped: false,
            said_missed: false,
            #[cfg(feature = "cuda")]
            on_device: None,
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
        if !self.is_ending() {
            self.canceller.reset();
        }
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
        #[cfg(feature = "cuda")]
        {
            let pools = query.allocation_pools();
            let configs = pools.filter_map(|(pool, ..)| Some(pool?.config()));
            let reader = configs
                .into_iter()
                .find_map(|config| cuda::Stream::of_config(&config));
            lock(&self.stream).reader = reader.map(Arc::new);
        }
        lock(&self.stream).video_meta = video_meta;
        while query.allocation_pools().next().is_some() {
            query.remove_nth_allocation_pool(0);
        }
        Ok(())
    }

    /// What the producer has, once that is known.
    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let caps = lock(&self.stream).caps.clone().or_else(|| {
            let connection = lock(&self.counted).connection.clone()?;
            let caps = sticky::parse_caps(connection.sticky()?.text(sticky::CAPS)?)?;
            let download = lock(&self.settings).download;
            Some(if download {
                caps::on_device(caps, false)
            } else {
                caps
            })
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
                let Some(context) = self.context(query.context_type()) else {
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
        let mut result = match started.kept.take() {
            _ if self.is_ending() => Err(gst::FlowError::Eos),
            Some(buffer) => Ok(buffer),
            None => self.next_buffer(&mut started),
        };
        if self.is_ending() {
            result = Err(gst::FlowError::Eos);
        } else if self.canceller.is_cancelled()
            && let Ok(buffer) = result
        {
            // What it is given in a pause, GstBaseSrc of 1.26 throws away, and asks again when that is over. After a flush,
            // which looks the same here, nobody wants it: `flushed` takes it out.
            started.kept = Some(buffer);
            result = Err(gst::FlowError::Flushing);
        }
        *lock(&self.started) = Some(started);
        result.map(CreateSuccess::NewBuffer)
    }
}

impl XmemSrc {
    /// Whether the application has ended the stream, and the EOS has not left yet.
    fn is_ending(&self) -> bool {
        self.canceller.is_cancelled() && lock(&self.sent).eos.is_some()
    }

    /// What a neighbour may use that asks for a context of this kind.
    fn context(&self, kind: &str) -> Option<gst::Context> {
        let own = self.obj().context(kind);
        #[cfg(feature = "cuda")]
        let own = own.or_else(|| {
            let ordinal = lock(&self.settings).cuda_device();
            (kind == cuda::CONTEXT_TYPE)
                .then(|| cuda::to_share(self.obj().upcast_ref(), ordinal))?
        });
        own
    }

    /// All that was on its way was thrown away. What comes next may refer to it.
    pub(super) fn flushed(&self) {
        let kept = lock(&self.started).as_mut().and_then(|started| {
            started.discont = true;
            started.gate.close();
            started.kept.take()
        });
        drop(kept);
    }

    fn next_buffer(&self, started: &mut Started) -> Result<gst::Buffer, gst::FlowError> {
        loop {
            let mut consumer = match started.consumer.take() {
                Some(consumer) => consumer,
                None => self.find_producer(started)?,
            };
            let received = self.receive(started, &mut consumer);
            if matches!(received, Err(Stop::Over)) {
                self.say_keyless(started, true);
            }
            match received {
                Ok(Some(mut buffer)) => {
                    started.consumer = Some(consumer);
                    self.push_header(started, &mut buffer)?;
                    // Who sets do-timestamp wants GstBaseSrc to fill in what is missing.
                    if !self.obj().does_timestamp() {
                        self.outgoing.keep_times(self.obj().src_pad(), &buffer);
                    }
                    return Ok(buffer);
                }
                Ok(None) => started.consumer = Some(consumer),
                Err(Stop::Flow(flow)) => {
                    started.consumer = Some(consumer);
                    return Err(flow);
                }
                Err(Stop::Lost(loss)) => {
                    let pid = consumer.producer_pid();
                    started.builder = started.builder.clone().resume(&consumer);
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
                    let renewed = sticky.map(|sticky| self.renew(mode, &sticky, None));
                    if let Some(Err(Stop::Flow(flow))) = renewed {
                        return Err(flow);
                    }
                    self.push_segment();
                    return Err(gst::FlowError::Eos);
                }
            }
        }
    }
}
