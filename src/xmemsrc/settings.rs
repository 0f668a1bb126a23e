// SPDX-License-Identifier: MPL-2.0

//! The settings of the user.

use std::{ffi::OsString, time::Duration};

use gst::{glib, prelude::*};
use xmem_core::{Consumer, ConsumerBuilder, StartFrom};

use crate::{
    program,
    properties::{choices, settings},
};

pub(super) const PROP_PROCESSING_DEADLINE: &str = "processing-deadline";
pub(super) const PROP_POOL: &str = "pool";

settings! {
    computed {
        /**
         * GstXmemSrc:stats:
         *
         * `application/x-xmemsrc-stats` with the fields below, summed over all producers since the start. After a stop,
         * they have the values from the end of the run.
         *
         * * `received`, `missed` (guint64): frames that were received, and frames that the pool had already released.
         * * `zero-copy`, `copied`, `dropped` (guint64): frames that were pushed without a copy; frames that were copied,
         *   because the budget was used up, downstream needs another layout, or `download` is set; frames that were dropped
         *   because the budget was used up, or because a CUDA producer was killed.
         * * `undecodable` (guint64): frames that were dropped because the key frame that they need was not received.
         * * `memory-copies` (guint64): how often an element downstream copied a frame that it wanted to write to.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that are unknown to this process
         *   or invalid, and how many there were of each name (guint64).
         * * `held` (guint64), `budget` (guint): frames in use now, and how many slots may be held at once.
         * * `budget-limit` (string): the property of xmemsink that limits the budget; empty if the requested budget was
         *   granted.
         * * `reconnects` (guint64): how often a producer was found again after one was lost.
         * * `latency` (guint64): nanoseconds from publishing to receiving, smoothed.
         * * `device` (string): how the memory of the current producer's frames on CUDA devices is imported: `vmm`,
         *   `legacy`, `same process`, or `none: ` and the reason. Empty until there is such a frame.
         */
        glib::ParamSpecBoxed::builder::<gst::Structure>("stats")
            .nick("Statistics")
            .blurb("Statistics of this element")
            .read_only()
            .build();
    }
    /**
     * GstXmemSrc:pool:
     *
     * Name of the pool to take frames from. A name with a slash is the path of the pool's socket. For any other name, the
     * socket is in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
     * `/tmp/xmem-<uid>`.
     */
    pool: OsString = "default".into(),
        PROP_POOL, "Pool",
        "Name of the pool, or the path of its socket if it contains a slash",
        mutable_ready();
    /**
     * GstXmemSrc:connection-timeout:
     *
     * How long to wait for a producer, at the start and each time that one is lost. After this time, the element fails.
     */
    connection_timeout: u64 = 0,
        "connection-timeout", "Connection Timeout",
        "Time in nanoseconds to wait for a producer (0 = for ever)",
        mutable_ready();
    /**
     * GstXmemSrc:on-producer-lost:
     *
     * What the element does if the producer disconnects without an end of stream, because it was stopped or killed.
     * Frames that were pushed stay valid and unchanged in all cases.
     */
    on_producer_lost: XmemSrcOnProducerLost = XmemSrcOnProducerLost::default(),
        "on-producer-lost", "On Producer Lost",
        "Whether to wait for the next producer when one is lost, to end the stream, or to fail",
        mutable_ready();
    /**
     * GstXmemSrc:on-eos:
     *
     * What the element does at the end of the producer's stream. With `end`, this stream ends too, and the source
     * disconnects from the pool. It connects again only if this pipeline is restarted or flushed. With `wait`, nothing
     * is sent downstream. The source continues when the producer's stream continues, for example after a seek. If the
     * producer disconnects, #GstXmemSrc:on-producer-lost applies.
     */
    on_eos: XmemSrcOnEos = XmemSrcOnEos::default(),
        "on-eos", "On EOS",
        "Whether the end of the producer's stream ends this stream",
        mutable_ready();
    /**
     * GstXmemSrc:wait-for-keyframe:
     *
     * Whether frames of an encoded stream are dropped until the next key frame, at the start and after missed frames.
     * The dropped frames are those that refer to other frames (`GST_BUFFER_FLAG_DELTA_UNIT`), because they cannot be
     * decoded without them. The element requests the key frame from the producer. Raw frames and still images are
     * never dropped.
     */
    wait_for_keyframe: bool = true,
        "wait-for-keyframe", "Wait for Key Frame",
        "Whether an encoded stream begins with a key frame, and continues with one after missed frames",
        mutable_ready();
    /**
     * GstXmemSrc:max-held:
     *
     * The budget: how many slots this element and all elements downstream may hold at the same time. The producer may
     * grant fewer, and may reduce the budget when more consumers connect.
     */
    max_held: u32 = 8,
        "max-held", "Maximum Held",
        "Maximum number of slots to hold at once; see over-budget for further frames",
        minimum(1), mutable_ready();
    over_budget: XmemSrcOverBudget = XmemSrcOverBudget::default(),
        "over-budget", "Over Budget",
        "Whether a frame beyond max-held is copied into private memory or dropped",
        mutable_ready();
    start_from: XmemSrcStartFrom = XmemSrcStartFrom::default(),
        "start-from", "Start From",
        "The first frame to receive after connecting",
        mutable_ready();
    /**
     * GstXmemSrc:newest-only:
     *
     * Whether to push only the newest frame each time. This is for elements that are slower than the stream and do not
     * need older frames, such as inference with a neural network. Skipped frames count as missed. If false, the element
     * pushes all frames in order, as long as the producer keeps them.
     *
     * Do not use it for encoded streams, because their frames refer to one another.
     */
    newest_only: bool = false,
        "newest-only", "Newest Only",
        "Whether to skip frames for which a newer one exists",
        mutable_ready();
    /**
     * GstXmemSrc:timestamp-mode:
     *
     * How the timestamps of the buffers are set. `clock` is for playback, recording and mixing. A frame is due in this
     * pipeline at the same moment as in the producer's pipeline, so streams that are synchronized there are also
     * synchronized here, across any number of pools, processes and clocks. If a stream was held until this pipeline
     * started, for example a file whose producer waits for a consumer, all its frames are delayed by the same time.
     *
     * `arrival` sets the running time at which the frame was published. `passthrough` keeps PTS, DTS, duration and
     * segment of the producer's pipeline, in any format; they are not related to this pipeline's clock.
     */
    timestamp_mode: XmemSrcTimestampMode = XmemSrcTimestampMode::default(),
        "timestamp-mode", "Timestamp Mode",
        "Timestamps of the buffers: when they are due, when they arrived, or those of the producer",
        mutable_ready();
    /**
     * GstXmemSrc:processing-deadline:
     *
     * How much time a frame may take after the producer has published it. The latency that this element reports is the sum
     * of this time and the producer's latency. A live producer publishes each frame immediately, which is later than
     * the frame's timestamp by the processing time of the producer's pipeline.
     */
    processing_deadline: gst::ClockTime = gst::ClockTime::from_mseconds(20),
        PROP_PROCESSING_DEADLINE, "Processing Deadline",
        "Time in nanoseconds that a frame may take from the producer to this element; part of the latency",
        maximum(i64::MAX.unsigned_abs()), mutable_playing();
    busy_poll: u64 = 0,
        "busy-poll", "Busy Poll",
        "Time in nanoseconds to spin for the next frame before sleeping (0 = sleep immediately)",
        mutable_ready();
    // `None`: built from the names of the program and the element.
    client_name: Option<String> = None,
        "client-name", "Client Name",
        "Name of this client in the producer's statistics (unset = names of the program and of this element)",
        doc_show_default(), mutable_ready();
    /**
     * GstXmemSrc:download:
     *
     * Whether frames on a CUDA device are copied into host memory, for elements that support only host memory. If false,
     * such frames are an error if downstream does not support `memory:CUDAMemory`.
     *
     * No effect on frames in host memory, or if the plugin was built without CUDA.
     */
    download: bool = false,
        "download", "Download",
        "Whether frames on CUDA devices are copied into host memory (no effect in builds without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-wait:
     *
     * Where to wait until the producer's work on a frame has completed: on the `device`, in the CUDA stream of the frame's
     * memory, or on the `cpu`, before the frame is pushed. If the producer is killed during the wait, the CUDA stream
     * is blocked for ever, and so is all work that waits for it. A wait on the CPU ends, and the frame is dropped.
     *
     * No effect on frames in host memory, on downloaded frames, for which the CPU always waits, or if the plugin was
     * built without CUDA.
     */
    cuda_wait: XmemSrcCudaWait = XmemSrcCudaWait::default(),
        "cuda-wait", "CUDA Wait",
        "Where to wait for the producer's work on a frame on a CUDA device (no effect in builds without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-device-id:
     *
     * The CUDA device on which frames are accepted. -1 accepts the device of the frames. A number of another device is an
     * error, because frames are not copied between devices.
     *
     * No effect on frames in host memory, or if the plugin was built without CUDA.
     */
    // -1: any device.
    cuda_device_id: i32 = -1,
        "cuda-device-id", "CUDA Device",
        "Number of the CUDA device of the frames (-1 = any device; no effect in builds without CUDA)",
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

choices! {
    /// The action when the producer is lost without an end of stream.
    XmemSrcOnProducerLost = "GstXmemSrcOnProducerLost" {
        Wait = "wait", "Wait: for the next producer of the pool";
        Eos = "eos", "EOS: end the stream";
        Error = "error", "Error: post an element error";
    }

    /// The action at the end of the producer's stream.
    XmemSrcOnEos = "GstXmemSrcOnEos" {
        End = "end", "End: end this stream too";
        Wait = "wait", "Wait: for more frames of the stream, or for the next producer of the pool";
    }

    /// The action for a frame that arrives while downstream holds as many as allowed.
    XmemSrcOverBudget = "GstXmemSrcOverBudget" {
        Copy = "copy", "Copy: into private memory";
        Drop = "drop", "Drop: the frame";
    }

    /// Where to wait until the producer's work on a frame on a CUDA device has ended.
    XmemSrcCudaWait = "GstXmemSrcCudaWait" {
        Device = "device", "Device: the stream of the frame's memory";
        Cpu = "cpu", "CPU: this element, before it pushes the frame";
    }

    /// The first frame that a new consumer gets.
    XmemSrcStartFrom = "GstXmemSrcStartFrom" {
        Next = "next", "Next: the frame that is published next";
        Newest = "newest", "Newest: the frame that was published last";
        Oldest = "oldest", "Oldest: the oldest frame that is still kept";
    }

    /// How the times of buffers are computed.
    XmemSrcTimestampMode = "GstXmemSrcTimestampMode" {
        Clock = "clock", "Clock: the producer's times, converted to this pipeline's running time";
        Arrival = "arrival", "Arrival: the time when the frame was published";
        Passthrough = "passthrough", "Passthrough: the producer's times and segment, unchanged";
    }
}
