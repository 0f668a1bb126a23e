// SPDX-License-Identifier: MPL-2.0

//! The settings of the user.

use std::{ffi::OsString, time::Duration};

use gst::{glib, prelude::*};
use xmem_core::{Consumer, ConsumerBuilder, StartFrom};

use super::enums::{
    XmemSrcCudaWait, XmemSrcOnEos, XmemSrcOnProducerLost, XmemSrcOverBudget, XmemSrcStartFrom,
    XmemSrcTimestampMode,
};
use crate::{program, properties::settings};

pub(super) const PROP_PROCESSING_DEADLINE: &str = "processing-deadline";
pub(super) const PROP_POOL: &str = "pool";

settings! {
    computed {
        /**
         * GstXmemSrc:stats:
         *
         * `application/x-xmemsrc-stats` with these fields, over all producers since the start; after a stop they have
         * the values of its end.
         *
         * * `received`, `missed` (guint64): frames taken, and frames that were gone when their turn came.
         * * `zero-copy`, `copied`, `dropped` (guint64): frames pushed where they lie; frames copied, because
         *   the budget was used up, downstream needs another layout, or `download` is set; frames given up because the budget
         *   was used up, or because a CUDA producer was killed.
         * * `undecodable` (guint64): frames given up because the key frame that they need was not received.
         * * `memory-copies` (guint64): how often an element downstream copied a frame that it wanted to write to.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that are unknown to this process
         *   or invalid, and how many there were of each name (guint64).
         * * `held` (guint64), `budget` (guint): frames in use now, and how many slots may be held at once.
         * * `budget-limit` (string): the property of xmemsink that keeps the budget small; empty where it is what was asked
         *   for.
         * * `reconnects` (guint64): how often another producer took the place of a lost one.
         * * `latency` (guint64): nanoseconds from publishing to receiving, smoothed.
         * * `device` (string): how the memory of frames on CUDA devices came here from the current producer, `vmm`,
         *   `legacy`, `same process`, or `none: ` and why; empty as long as there were none.
         */
        glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
            .nick("Statistics")
            .blurb("What this element has received so far")
            .read_only()
            .build();
    }
    /**
     * GstXmemSrc:pool:
     *
     * Name of the pool to take frames from. A name with a slash in it is the path of the pool's socket itself; any
     * other name lies in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
     * `/tmp/xmem-<uid>`.
     */
    pool: OsString = "default".into(),
        PROP_POOL, "Pool",
        "Name of the pool, or the path of its socket if it has a slash in it",
        mutable_ready();
    /**
     * GstXmemSrc:connection-timeout:
     *
     * How long to wait for a producer, at the start and again when one was lost. After that it is an error.
     */
    connection_timeout: u64 = 0,
        "connection-timeout", "Connection Timeout",
        "Time in nanoseconds to wait for a producer (0 = for ever)",
        mutable_ready();
    /**
     * GstXmemSrc:on-producer-lost:
     *
     * What happens when the producer goes away without an end of stream, because it was stopped or killed. Frames
     * that are out stay valid and unchanged in any case.
     */
    on_producer_lost: XmemSrcOnProducerLost = XmemSrcOnProducerLost::default(),
        "on-producer-lost", "On Producer Lost",
        "Whether to wait for the next producer when one goes away, to end the stream, or to fail",
        mutable_ready();
    /**
     * GstXmemSrc:on-eos:
     *
     * What happens at the end of the producer's stream. With `end` this stream ends too, and the
     * source leaves the pool; what comes later finds it again only if this pipeline is started anew or flushed.
     * With `wait` nothing is sent downstream: the source goes on when the producer's stream does, after a seek for
     * example, and when the producer goes away #GstXmemSrc:on-producer-lost applies.
     */
    on_eos: XmemSrcOnEos = XmemSrcOnEos::default(),
        "on-eos", "On EOS",
        "Whether the end of the producer's stream is the end of this one",
        mutable_ready();
    /**
     * GstXmemSrc:wait-for-keyframe:
     *
     * Frames of an encoded stream that refer to others (`GST_BUFFER_FLAG_DELTA_UNIT`) are no use without those. At
     * the start, and again after missed frames, they are given up until the next key frame, which the producer is
     * asked for. Raw frames and pictures are never given up.
     */
    wait_for_keyframe: bool = true,
        "wait-for-keyframe", "Wait for Key Frame",
        "Whether an encoded stream begins, and goes on after missed frames, with a key frame",
        mutable_ready();
    /**
     * GstXmemSrc:max-held:
     *
     * The budget: how many slots this element and everything downstream of it hold at once. The producer may grant
     * fewer, and fewer still when more consumers come.
     */
    max_held: u32 = 8,
        "max-held", "Maximum Held",
        "How many slots to hold at once; past that, see over-budget",
        minimum(1), mutable_ready();
    over_budget: XmemSrcOverBudget = XmemSrcOverBudget::default(),
        "over-budget", "Over Budget",
        "Whether a frame past max-held is copied into private memory or dropped",
        mutable_ready();
    start_from: XmemSrcStartFrom = XmemSrcStartFrom::default(),
        "start-from", "Start From",
        "The first frame to take after connecting",
        mutable_ready();
    /**
     * GstXmemSrc:newest-only:
     *
     * Each frame is the newest that there is when downstream asks for it: for elements that are slower than the stream and
     * need no past frames, such as a neural network. The frames that are skipped count as missed. Without it they come one after
     * another as long as the producer keeps them.
     *
     * Not for encoded streams, whose frames refer to one another.
     */
    newest_only: bool = false,
        "newest-only", "Newest Only",
        "Whether to skip frames for which a newer one exists",
        mutable_ready();
    /**
     * GstXmemSrc:timestamp-mode:
     *
     * What times the buffers get. `clock` is for playing, recording and mixing: a frame's running time here is the
     * moment that its running time was in the producer's pipeline, so that what was in sync there is in sync here,
     * over any number of pools, processes and clocks. A stream that was held up until this pipeline was there, such
     * as a file whose producer waits for a consumer, comes so much later as a whole.
     *
     * `arrival` is the running time when the frame came into the pool. `passthrough` leaves PTS, DTS, duration and segment
     * as the producer's pipeline has them, whatever their format; they have nothing to do with this pipeline's
     * clock.
     */
    timestamp_mode: XmemSrcTimestampMode = XmemSrcTimestampMode::default(),
        "timestamp-mode", "Timestamp Mode",
        "What times the buffers get: when they are due, when they came, or what the producer has",
        mutable_ready();
    /**
     * GstXmemSrc:processing-deadline:
     *
     * What a frame may take from the moment that the producer hands it over. The latency that this element reports is
     * that and the producer's own: a live producer hands its frames over as they come, which is later than their
     * times by what its pipeline takes.
     */
    processing_deadline: gst::ClockTime = gst::ClockTime::from_mseconds(20),
        PROP_PROCESSING_DEADLINE, "Processing Deadline",
        "Time in nanoseconds that a frame may take from the producer until here; part of the latency",
        maximum(i64::MAX.unsigned_abs()), mutable_playing();
    busy_poll: u64 = 0,
        "busy-poll", "Busy Poll",
        "Time in nanoseconds to spin for the next frame before sleeping (0 = sleep at once)",
        mutable_ready();
    // `None`: built from the names of the program and the element.
    client_name: Option<String> = None,
        "client-name", "Client Name",
        "Name that the producer's statistics show (unset = names of the program and of this element)",
        doc_show_default(), mutable_ready();
    /**
     * GstXmemSrc:download:
     *
     * Frames that lie on a CUDA device come in host memory, one copy each, for elements that read nothing else. Without
     * it, such frames are an error where downstream takes no `memory:CUDAMemory`.
     *
     * Without effect on frames in host memory, and where the plugin was built without CUDA.
     */
    download: bool = false,
        "download", "Download",
        "Whether frames on CUDA devices are copied into host memory (without effect in builds without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-wait:
     *
     * Where to wait until the producer's work on a frame has ended: on the `device`, in the stream of the frame's memory, or on the
     * `cpu`, before the frame is handed on. If the producer is killed meanwhile, the stream is blocked for ever, and with
     * it all that waits for the stream; a wait on the CPU ends, and the frame is dropped.
     *
     * Without effect on frames in host memory, on frames that are downloaded, which the CPU waits for, and where the plugin
     * was built without CUDA.
     */
    cuda_wait: XmemSrcCudaWait = XmemSrcCudaWait::default(),
        "cuda-wait", "CUDA Wait",
        "Where to wait for the producer's work on a frame on a CUDA device (without effect in builds without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-device-id:
     *
     * The CUDA device that frames are taken on. -1 is the one that they lie on; another one is an error, since frames
     * do not travel between devices.
     *
     * Without effect on frames in host memory, and where the plugin was built without CUDA.
     */
    // -1: any device.
    cuda_device_id: i32 = -1,
        "cuda-device-id", "CUDA Device",
        "Number of the CUDA device of the frames (-1 = theirs; without effect in builds without CUDA)",
        minimum(-1), mutable_ready();
}

impl Settings {
    /// The device that the user selected.
    pub(super) fn cuda_device(&self) -> Option<u32> {
        u32::try_from(self.cuda_device_id).ok()
    }

    /// `max-held`, unless it is the default, which is also the core's default.
    pub(super) fn requested_budget(&self) -> Option<u32> {
        (self.max_held != Self::default().max_held).then_some(self.max_held)
    }

    /// The options of the consumer, for an element with this name.
    pub(super) fn consumer(&self, name: &str) -> ConsumerBuilder {
        let client_name = self
            .client_name
            .clone()
            .unwrap_or_else(|| match program::name() {
                Some(program) => format!("{program} {name}"),
                None => name.to_owned(),
            });
        let builder = Consumer::builder(&self.pool);
        // Without a request, the producer does not warn that it granted less.
        let builder = match self.requested_budget() {
            Some(slots) => builder.max_held(slots),
            None => builder,
        };
        builder
            .events(true)
            .name(&client_name)
            .parts(true)
            .busy_poll(Duration::from_nanos(self.busy_poll))
            .start_from(self.start_from())
            .newest_only(self.newest_only)
    }

    /// `start-from` as the core's type.
    pub(super) fn start_from(&self) -> StartFrom {
        match self.start_from {
            XmemSrcStartFrom::Next => StartFrom::Next,
            XmemSrcStartFrom::Newest => StartFrom::Newest,
            XmemSrcStartFrom::Oldest => StartFrom::Oldest,
        }
    }
}
