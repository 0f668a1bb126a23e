// SPDX-License-Identifier: MPL-2.0

/**
 * SECTION:element-xmemsrc
 * @see_also: xmemsink
 *
 * Takes the frames of a pool that `xmemsink`, or a program that uses the library, has in another process. Each buffer
 * is the producer's slot itself, read-only: an element that writes in place gets a copy of its own. The producer
 * can reuse the slot when the last reference to the buffer's memory is dropped.
 *
 * The source may be started before the producer: it waits for one, and posts a warning after two seconds with the path
 * and the existing pools. It reconnects when the producer stops or crashes and is started again; see
 * #GstXmemSrc:on-producer-lost.
 *
 * It is a live source. It converts the producer's timestamps to this pipeline's running time, by means of
 * CLOCK_MONOTONIC; see #GstXmemSrc:timestamp-mode. Its latency is the sum of the producer's latency and
 * #GstXmemSrc:processing-deadline. It is known when a producer is connected. A LATENCY message is posted when it
 * changes.
 *
 * The element pushes the events of the producer's stream; see `xmemsink`. Times in them are converted to this pipeline's.
 * The stream id consists of the pool's name and the producer's stream id. An encoded stream begins with a key frame,
 * which the element requests from the producer; see #GstXmemSrc:wait-for-keyframe. A force-key-unit event from
 * downstream is forwarded to the producer's pipeline. No other upstream event is forwarded, because the events of several
 * consumers may contradict each other. After a reconfigure event, the element queries downstream again for the layouts
 * that it supports. Seeks are refused.
 *
 * |[
 * gst-launch-1.0 xmemsrc pool=cam0 ! videoconvert ! autovideosink
 * ]| Shows the video that another process shares.
 * |[
 * gst-play-1.0 --no-interactive --videosink=autovideosink xmem://cam0
 * ]| The same with a player.
 *
 * docs/xmemsrc.md describes its use, and docs/troubleshooting.md errors and their causes.
 *
 * Since: plugin-xmem-0.1
 */
use std::sync::{Arc, LazyLock, Mutex};

use gst::{glib, prelude::*, subclass::prelude::*};
use gst_base::{prelude::*, subclass::prelude::*};
use xmem_core::Canceller;

use super::{
    base::{self, CAT, Create, Outgoing},
    connection, downstream,
    latency::{self, Latency},
    receive,
    run::{Run, Running, SourceContext, SourceStats},
    settings::{PROP_POOL, PROP_PROCESSING_DEADLINE, PROPERTIES, Settings, XmemSrcTimestampMode},
    stream::SourceStream,
    times::FromRunningTime,
};
use crate::{
    buffers::{allocator::Tally, bufferpool::ReceivedBuffers},
    bytes::{self, UriHandler},
    cuda, lock, pad_template,
    stream::{caps, event, meta::Losses, stats, sticky},
    uri,
};

/// No thread holds two of these locks at once, or holds one during a call that waits or leaves the element.
#[derive(Debug, Default)]
pub struct XmemSrc {
    settings: Mutex<Settings>,
    running: Arc<Running>,
    stream: SourceStream,
    outgoing: Arc<Outgoing>,
    mapping: Mutex<Arc<FromRunningTime>>,
    stats: SourceStats,
    latency: Latency,
    tally: Arc<Tally>,
    /// Counts metas that cannot be used here.
    losses: Losses,
    canceller: Canceller,
}

#[glib::object_subclass]
impl ObjectSubclass for XmemSrc {
    const NAME: &'static str = "GstXmemSrc";
    type Type = super::XmemSrc;
    type Interfaces = (UriHandler,);
    type ParentType = gst_base::BaseSrc;

    fn class_init(class: &mut Self::Class) {
        base::init::<Self>(class);
    }
}

impl ObjectImpl for XmemSrc {
    fn properties() -> &'static [glib::ParamSpec] {
        PROPERTIES.specs()
    }

    fn set_property(&self, id: usize, value: &glib::Value, pspec: &glib::ParamSpec) {
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
        PROPERTIES.set(id, &mut lock(&self.settings), value);
        gst::info!(CAT, imp = self, "Set {} to {value:?}", pspec.name());
        if pspec.name() == PROP_PROCESSING_DEADLINE {
            latency::changed(self.obj().upcast_ref());
        }
    }

    fn property(&self, id: usize, _pspec: &glib::ParamSpec) -> glib::Value {
        let setting = PROPERTIES.get(id, &mut lock(&self.settings));
        setting.unwrap_or_else(|| self.stats().to_value())
    }

    fn constructed(&self) {
        self.parent_constructed();
        let obj = self.obj();
        obj.set_live(true);
        obj.set_format(gst::Format::Time);
        downstream::watch(obj.src_pad(), self.outgoing.clone(), self.running.clone());
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

    /// GstBaseSrc's error for caps that downstream refuses does not name the caps.
    fn post_message(&self, message: gst::Message) -> bool {
        if downstream::is_not_negotiated(&message) {
            let pool = lock(&self.settings).pool.clone();
            downstream::report_late_refusal(self.obj().upcast_ref(), &self.stream, &pool);
        }
        self.parent_post_message(message)
    }

    /// In GstBaseSrc, an EOS blocks the application until the streaming thread has returned from downstream. In a pause that
    /// never happens. Here the streaming thread ends the stream in its next call of `create`.
    ///
    /// GstBaseSrc performs a seek that it gets in this way without a query whether it is seekable.
    fn send_event(&self, event: gst::Event) -> bool {
        if event.type_() == gst::EventType::Seek {
            return false;
        }
        if event.type_() != gst::EventType::Eos {
            return self.parent_send_event(event);
        }
        self.outgoing.keep_eos(event);
        self.canceller.cancel();
        if self.obj().src_pad().task_state() == gst::TaskState::Started {
            return true;
        }
        // No streaming thread calls `create`, so the parent does not wait.
        let event = self.outgoing.take_eos();
        event.is_none_or(|event| self.parent_send_event(event))
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> =
            LazyLock::new(|| pad_template("src", gst::PadDirection::Src));
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
        let buffers = ReceivedBuffers::new().map_err(|error| {
            let failed = gst::ResourceError::Failed;
            gst::error_msg!(failed, ("Cannot create a buffer pool: {error}"))
        })?;
        self.canceller.reset();
        let follower = connection::follower(&settings, builder);
        self.stats.restart(follower.handle());
        self.latency.reset();
        self.tally.reset();
        self.losses.reset();
        self.stream.reset();
        self.outgoing.reset();
        let mapping = Arc::<FromRunningTime>::default();
        *lock(&self.mapping) = mapping.clone();
        let run = Run::new(settings, follower, mapping, buffers);
        self.running.put(Box::new(run));
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        // The buffers that downstream holds keep their resources alive.
        drop(self.running.take());
        self.stream.reset();
        gst::info!(CAT, imp = self, "Stopped");
        Ok(())
    }

    /// `create` resets the canceller, and not `unlock_stop`: since 1.24, GstBaseSrc calls that in the streaming thread for a pause
    /// that has ended, also after another call of `unlock`, whose effect it would undo.
    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.canceller.cancel();
        Ok(())
    }

    fn is_seekable(&self) -> bool {
        false
    }

    /// The caps come with the first frame. Before that, nothing can be negotiated.
    fn negotiate(&self) -> Result<(), gst::LoggableError> {
        match self.stream.caps() {
            Some(caps) => Ok(self.obj().set_caps(&caps)?),
            None => Ok(()),
        }
    }

    /// Frames have their own memory. The answer only shows whether downstream can read any layout.
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
        let pools = query.allocation_pools();
        let mut configs = pools.filter_map(|(pool, ..)| Some(pool?.config()));
        let reader = configs.find_map(|config| cuda::Stream::of_config(&config));
        self.stream.set_downstream(video_meta, reader);
        while query.allocation_pools().next().is_some() {
            query.remove_nth_allocation_pool(0);
        }
        Ok(())
    }

    /// The producer's caps, if they are known.
    fn caps(&self, filter: Option<&gst::Caps>) -> Option<gst::Caps> {
        let caps = self.stream.caps().or_else(|| {
            let sticky = self.stats.consumer()?.sticky()?;
            let caps = sticky::parse_caps(sticky.text(sticky::CAPS)?)?;
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
        if let Ok(event) = gst_video::UpstreamForceKeyUnitEvent::parse(event) {
            let obj = self.obj();
            let at = event.running_time.and_then(|time| self.to_monotonic(time));
            let key_frame = event::requested_key_frame(&event, at);
            return self.stats.request(obj.upcast_ref(), key_frame);
        }
        if let gst::EventView::Latency(event) = event.view() {
            // An aggregator waits for its slowest input, also if no sink waits for it.
            let latency = event.latency().max(self.latency_of_others());
            self.latency.set_pipeline(latency);
            self.latency.ask(self.stats.consumer(), &self.stream);
        }
        self.parent_event(event)
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        match query.view_mut() {
            gst::QueryViewMut::Latency(query) => {
                // No maximum: if downstream is late, frames are overwritten.
                query.set(true, self.latency(), gst::ClockTime::NONE);
                true
            }
            gst::QueryViewMut::AcceptCaps(query) => {
                let caps = BaseSrcImpl::caps(self, Some(&query.caps_owned()));
                query.set_result(caps.is_some_and(|caps| !caps.is_empty()));
                true
            }
            gst::QueryViewMut::Scheduling(query) => {
                // GstBaseSrc would report that it is seekable.
                query.set(gst::SchedulingFlags::SEQUENTIAL, 1, -1, 0);
                query.add_scheduling_modes([gst::PadMode::Push]);
                true
            }
            gst::QueryViewMut::Context(query) => {
                let ordinal = lock(&self.settings).cuda_device();
                let obj = self.obj();
                let context = cuda::to_share(query.context_type(), obj.upcast_ref(), ordinal);
                let Some(context) = context else {
                    return false;
                };
                query.set_context(&context);
                true
            }
            _ => BaseSrcImplExt::parent_query(self, query),
        }
    }
}

impl Create for XmemSrc {
    fn next_buffer(&self) -> Result<gst::Buffer, gst::FlowError> {
        let Some(mut run) = self.running.take() else {
            return Err(gst::FlowError::Flushing);
        };
        let obj = self.obj();
        let (settings, follower, started) = run.parts();
        started.begin();
        let result = loop {
            // By `unlock`, for a pause that is over, or by an EOS.
            if self.canceller.is_cancelled() {
                if self.is_ending() {
                    break Err(gst::FlowError::Eos);
                }
                if let Err(flow) = self.wait_playing() {
                    break Err(flow);
                }
                continue;
            }
            let result = receive::next(self.source(obj.upcast_ref(), settings), follower, started);
            if !self.canceller.is_cancelled() {
                break result;
            }
            if !self.is_ending() {
                if let Err(flow) = self.wait_playing() {
                    break Err(flow);
                }
                // This frame arrived when the pause began, and is returned.
                if !self.is_ending() && !matches!(result, Err(gst::FlowError::Flushing)) {
                    break result;
                }
            }
        };
        // GstBaseSrc calls `stop` only after this has returned.
        self.running.put(run);
        result
    }
}

impl XmemSrc {
    fn source<'a>(
        &'a self,
        element: &'a gst_base::BaseSrc,
        settings: &'a Settings,
    ) -> SourceContext<'a> {
        SourceContext {
            element,
            settings,
            stream: &self.stream,
            outgoing: &self.outgoing,
            stats: &self.stats,
            latency: &self.latency,
            tally: &self.tally,
            losses: &self.losses,
            canceller: &self.canceller,
        }
    }

    /// The latency of this source.
    fn latency(&self) -> gst::ClockTime {
        let (mode, deadline) = {
            let settings = lock(&self.settings);
            (settings.timestamp_mode, settings.processing_deadline)
        };
        self.latency.answer(&self.stream.playback(), mode, deadline)
    }

    /// The greatest latency of the other sources in the pipeline.
    fn latency_of_others(&self) -> gst::ClockTime {
        let others = latency::others(self.obj().upcast_ref());
        let latencies = others.iter().filter_map(|other| {
            let mut query = gst::query::Latency::new();
            other.query(&mut query).then(|| query.result().1)
        });
        latencies.max().unwrap_or_default()
    }

    /// The time on CLOCK_MONOTONIC of frames with this running time downstream. `None`: it is not known.
    fn to_monotonic(&self, running_time: gst::ClockTime) -> Option<i64> {
        let mapping = lock(&self.mapping).clone();
        if lock(&self.settings).timestamp_mode == XmemSrcTimestampMode::Passthrough {
            return mapping.of_raw(self.outgoing.own_segment().as_ref(), running_time);
        }
        mapping.of_converted(self.obj().upcast_ref(), running_time)
    }

    /// Waits until a pause ends, and allows waits again. `Err`: the pad is flushing, or the element is being stopped.
    ///
    /// Since 1.24, GstBaseSrc calls `unlock` for a pause, and discards a buffer that it gets during one. It stops the stream
    /// for good if `create` returns `Flushing` after the pipeline plays again.
    #[cold]
    fn wait_playing(&self) -> Result<(), gst::FlowError> {
        let obj = self.obj();
        loop {
            obj.wait_playing()?;
            self.canceller.reset();
            // The reset may hide a call of `unlock`. Each such call left another trace: the pad's flag, the EOS, or the pause
            // itself.
            if obj.src_pad().pad_flags().contains(gst::PadFlags::FLUSHING) {
                return Err(gst::FlowError::Flushing);
            }
            if self.outgoing.has_eos() {
                self.canceller.cancel();
                return Ok(());
            }
            obj.wait_playing()?;
            if !self.canceller.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Whether the application has ended the stream and the EOS was not sent yet.
    fn is_ending(&self) -> bool {
        self.canceller.is_cancelled() && self.outgoing.has_eos()
    }

    fn stats(&self) -> gst::Structure {
        let (stats, zero_copy, undecodable) = self.stats.get();
        // The tally has one reference for the element, and one for each buffer with the memory of a frame.
        let held = Arc::strong_count(&self.tally).saturating_sub(1) as u64;
        let copies = self.tally.copies();
        stats::of_source(&stats, zero_copy, undecodable, held, copies, &self.losses)
    }
}
