// SPDX-License-Identifier: MPL-2.0

//! The settings of the user.

use std::{ffi::OsString, time::Duration};

use gst::{glib, prelude::*};
use xmem_core::{Consumer, ConsumerBuilder, StartFrom};

use crate::{
    bytes,
    properties::{choices, settings},
};

pub(super) const PROP_PROCESSING_DEADLINE: &str = "processing-deadline";
pub(super) const PROP_POOL: &str = "pool";

settings! {
    computed {
        /**
         * GstXmemSrc:stats:
         *
         * A structure `application/x-xmemsrc-stats`. The structure counts the frames of all producers since the start. After a
         * stop it keeps the final values.
         *
         * * `received`, `missed` (guint64): frames that the source took, and frames that it didn't take, because the pool no
         *   longer kept them or `newest-only` skipped them.
         * * `skipped` (guint64): frames that `max-rate` left out.
         * * `zero-copy` (guint64): frames that were pushed in place.
         * * `copied` (guint64): frames that were copied, because the budget was used up, downstream needs another
         *   layout, the producer plays sound in reverse, or `download` is set.
         * * `dropped` (guint64): frames that were dropped because the budget was used up, because a CUDA producer was
         *   killed, or because they are from before the pipeline's start.
         * * `undecodable` (guint64): frames that were dropped because the key frame that they need wasn't received, or
         *   is from before the pipeline's start.
         * * `metas-dropped` (guint64), `dropped-metas` (`application/x-xmem-metas`): metas that were omitted, in all and by
         *   name, because they were unknown or invalid.
         * * `memory-copies` (guint64): how often downstream elements copied a frame to write to it.
         * * `held` (guint64), `budget` (guint): frames that downstream holds, and slots that downstream may hold.
         * * `budget-limit` (string): the property of xmemsink that limits the budget: `max-held`, `max-slots` or
         *   `max-bytes`. Empty if the budget is as requested.
         * * `reconnects` (guint64): connections after a producer was lost.
         * * `latency` (guint64): smoothed time in ns from publishing to receiving.
         * * `device` (string): how the source reached the memory of frames on CUDA devices: `vmm`, `legacy`, `same process`, or
         *   `none: ` with the reason. Empty until there are such frames.
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
     * A name without a slash is a name in the runtime directory: `$XMEM_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/xmem`, else
     * `/tmp/xmem-<uid>`. A name with a slash is the path of the socket, and doesn't need to be UTF-8.
     */
    pool: OsString = "default".into(),
        PROP_POOL, "Pool",
        "Name of the pool, or the path of its socket if it contains a slash",
        mutable_ready();
    /**
     * GstXmemSrc:connection-timeout:
     *
     * Applies at the start, and each time that a producer is lost. After this time, the source posts an error.
     */
    connection_timeout: u64 = 0,
        "connection-timeout", "Connection Timeout",
        "Time in nanoseconds to wait for a producer (0 = forever)",
        mutable_ready();
    /**
     * GstXmemSrc:on-producer-lost:
     *
     * A producer is lost if it was stopped or killed. Frames that were pushed stay valid and unchanged in any case.
     */
    on_producer_lost: XmemSrcOnProducerLost = XmemSrcOnProducerLost::default(),
        "on-producer-lost", "On Producer Lost",
        "What to do when a producer is lost: wait for the next one, end the stream, or fail",
        mutable_ready();
    /**
     * GstXmemSrc:on-eos:
     *
     * With `end`, the source disconnects from the pool. It connects again only if this pipeline is restarted or flushed. With
     * `wait`, the source sends nothing downstream, and continues when the producer's stream continues, for example after a
     * seek. If the producer disconnects, `on-producer-lost` applies.
     */
    on_eos: XmemSrcOnEos = XmemSrcOnEos::default(),
        "on-eos", "On EOS",
        "Whether the end of the producer's stream ends this stream",
        mutable_ready();
    /**
     * GstXmemSrc:wait-for-keyframe:
     *
     * The source requests a key frame from the producer. Until that arrives, it drops the frames that refer to others
     * (`GST_BUFFER_FLAG_DELTA_UNIT`), because they can't be decoded. Raw frames, pictures (`image/...`), audio outside of
     * containers, `application/x-yuv4mpeg` and MPEG-TS without video need no key frame.
     */
    wait_for_keyframe: bool = true,
        "wait-for-keyframe", "Wait for Key Frame",
        "Whether an encoded stream begins with a key frame, and resumes with a key frame after missed frames",
        mutable_ready();
    /**
     * GstXmemSrc:max-held:
     *
     * The budget to request: how many slots this element and all elements downstream may hold at once. The producer grants at
     * most its own `max-held` (8 by default), and less if there are many consumers. If it grants less, and frames are therefore
     * copied or dropped, the source posts a warning.
     */
    max_held: u32 = 8,
        "max-held", "Maximum Held",
        "Maximum number of slots to hold at once (over-budget applies to further frames)",
        minimum(1), mutable_ready();
    /**
     * GstXmemSrc:over-budget:
     *
     * Some elements keep frames until they receive newer ones: a sink keeps its last frame (`enable-last-sample`), an xmemsink
     * its history. With `drop`, the budget must be larger than the number of these frames, or no new frame gets through. Frames
     * in DMA buffers (`memory:DMABuf`) are always dropped, because a copy wouldn't be a DMA buffer.
     */
    over_budget: XmemSrcOverBudget = XmemSrcOverBudget::default(),
        "over-budget", "Over Budget",
        "Whether a frame beyond max-held is copied into private memory or dropped",
        mutable_ready();
    /**
     * GstXmemSrc:start-from:
     *
     * With `oldest`, the whole stream is delayed by the age of the oldest frame. With `next`, a source that has waited for its
     * producer begins with the first frame that the producer keeps.
     */
    start_from: XmemSrcStartFrom = XmemSrcStartFrom::default(),
        "start-from", "Start From",
        "The first frame to receive after connecting",
        mutable_ready();
    /**
     * GstXmemSrc:newest-only:
     *
     * For elements that are slower than the stream, for example a neural network. Skipped frames count as `missed`.
     * Don't use it for encoded streams, whose frames depend on one another.
     */
    newest_only: bool = false,
        "newest-only", "Newest Only",
        "Whether to skip frames for which a newer one exists",
        mutable_ready();
    /**
     * GstXmemSrc:max-rate:
     *
     * For elements that need few frames. Frames in between don't wake this process and aren't taken, and `stats` counts them as
     * `skipped`. The rate is an average, by the times at which frames are published. The caps still state the producer's rate.
     * Encoded streams are refused, because their frames depend on one another.
     */
    max_rate: gst::Fraction = gst::Fraction::new(0, 1),
        "max-rate", "Maximum Rate",
        "The most frames per second that are received (0/1 = all)",
        minimum(gst::Fraction::new(0, 1)), mutable_ready();
    /**
     * GstXmemSrc:timestamp-mode:
     *
     * `clock` is for playback, recording and mixing: a frame is due at the same moment in this pipeline and in the
     * producer's, so streams stay in sync across any number of pools, processes and clocks. If a stream was held until
     * this pipeline started, for example a file whose producer waits for a consumer, all its frames are delayed by the
     * same time.
     *
     * `arrival` sets the running time at which the frame was published. `passthrough` keeps PTS, DTS, duration and segment of
     * the producer, in any format. These times don't relate to this pipeline's clock.
     */
    timestamp_mode: XmemSrcTimestampMode = XmemSrcTimestampMode::default(),
        "timestamp-mode", "Timestamp Mode",
        "Timestamps of the buffers: when they are due, when they arrived, or the producer's timestamps",
        mutable_ready();
    /**
     * GstXmemSrc:processing-deadline:
     *
     * The latency that the source reports is this time plus the producer's latency. A live producer publishes a frame when it
     * arrives: after the frame's time, by the delay of the producer's pipeline. You can change this property in any state.
     */
    processing_deadline: gst::ClockTime = gst::ClockTime::from_mseconds(20),
        PROP_PROCESSING_DEADLINE, "Processing Deadline",
        "Time in nanoseconds that a frame may take from the producer to this element (part of the latency)",
        maximum(i64::MAX.unsigned_abs()), mutable_playing();
    busy_poll: u64 = 0,
        "busy-poll", "Busy Poll",
        "Time in nanoseconds to spin for the next frame before sleeping (0 = sleep immediately)",
        mutable_ready();
    // `None`: built from the names of the program and the element.
    client_name: Option<String> = None,
        "client-name", "Client Name",
        "Name of this client in the producer's statistics (unset = names of program and element)",
        doc_show_default(), mutable_ready();
    /**
     * GstXmemSrc:download:
     *
     * For elements that read only host memory. Costs one copy for each frame. If false, frames on a device are an error,
     * unless downstream accepts `memory:CUDAMemory`.
     */
    download: bool = false,
        "download", "Download",
        "Whether frames on CUDA devices are copied into host memory (no effect without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:dmabuf:
     *
     * For elements that import DMA buffers without a copy, such as glupload, waylandsink, kmssink and
     * `v4l2sink io-mode=dmabuf-import`. The caps stay plain `video/x-raw`. The source posts an error if the producer doesn't
     * allow this (`dmabuf=allow` of xmemsink), or if a frame is on a CUDA device or in another pool. Each element downstream, and
     * each process that gets the descriptor, can then write to the frames of all consumers. Frames beyond `max-held` are
     * dropped. Elements that read frames by the CPU are faster without `dmabuf`.
     */
    dmabuf: bool = false,
        "dmabuf", "DMA Buffers",
        "Whether frames are pushed as DMA buffers, which downstream can write to",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-wait:
     *
     * With `device`, the CUDA stream of the frame's memory waits. If the producer is killed meanwhile, this stream is blocked
     * forever, and so is all work that waits for this stream. With `cpu`, the element waits before it pushes the frame, and
     * drops the frame if the producer is killed. For downloaded frames, the CPU always waits.
     */
    cuda_wait: XmemSrcCudaWait = XmemSrcCudaWait::default(),
        "cuda-wait", "CUDA Wait",
        "Where to wait until the producer has finished a frame on a CUDA device (no effect without CUDA)",
        mutable_ready();
    /**
     * GstXmemSrc:cuda-device-id:
     *
     * Frames on another device are an error, because frames aren't copied between devices.
     */
    // -1: any device.
    cuda_device_id: i32 = -1,
        "cuda-device-id", "CUDA Device",
        "Number of the CUDA device of the frames, or -1 for any device (no effect without CUDA)",
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

    /// `over-budget`, but a copy would be no DMA buffer.
    pub(super) fn when_over_budget(&self) -> XmemSrcOverBudget {
        if self.dmabuf {
            XmemSrcOverBudget::Drop
        } else {
            self.over_budget
        }
    }

    /// The options of the consumer, for an element with this name.
    pub(super) fn consumer(&self, name: &str) -> ConsumerBuilder {
        let client_name = self
            .client_name
            .clone()
            .unwrap_or_else(|| match bytes::program_name() {
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
            .dmabuf(self.dmabuf)
            .busy_poll(Duration::from_nanos(self.busy_poll))
            .start_from(self.start_from())
            .newest_only(self.newest_only)
            // So many frames in so many seconds.
            .max_rate(
                self.max_rate.numer().cast_unsigned(),
                Duration::from_secs(self.max_rate.denom().cast_unsigned().into()),
            )
    }

    /// Whether frames are left out because of `max-rate`.
    pub(super) fn limits_rate(&self) -> bool {
        self.max_rate.numer() > 0
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
        Wait = "wait", "Wait: wait for the next producer of the pool";
        Eos = "eos", "EOS: end the stream";
        Error = "error", "Error: post an element error";
    }

    /// The action at the end of the producer's stream.
    XmemSrcOnEos = "GstXmemSrcOnEos" {
        End = "end", "End: end this stream too";
        Wait = "wait", "Wait: wait for more frames of the stream, or for the next producer of the pool";
    }

    /// The action for a frame that arrives while downstream holds as many as allowed.
    XmemSrcOverBudget = "GstXmemSrcOverBudget" {
        Copy = "copy", "Copy: copy the frame into private memory";
        Drop = "drop", "Drop: drop the frame";
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
