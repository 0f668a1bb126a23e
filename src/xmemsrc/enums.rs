// SPDX-License-Identifier: MPL-2.0

//! The choices that properties offer.

use gst::glib;

/// The action when the producer goes away without an end of stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcOnProducerLost")]
pub enum XmemSrcOnProducerLost {
    /// The source waits for the next one.
    #[default]
    #[enum_value(name = "Wait: for the next producer of the pool", nick = "wait")]
    Wait,
    /// The stream is over.
    #[enum_value(name = "EOS: the stream is over", nick = "eos")]
    Eos,
    /// It is an error.
    #[enum_value(name = "Error: it is an element error", nick = "error")]
    Error,
}

/// The action at the end of the producer's stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcOnEos")]
pub enum XmemSrcOnEos {
    /// It is the end of this stream too.
    #[default]
    #[enum_value(name = "End: this stream is over too", nick = "end")]
    End,
    /// The source waits for the next stream.
    #[enum_value(
        name = "Wait: for the stream to go on, or for the next producer of the pool",
        nick = "wait"
    )]
    Wait,
}

/// The action on a frame that comes while downstream holds as many as it may.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcOverBudget")]
pub enum XmemSrcOverBudget {
    /// It is copied.
    #[default]
    #[enum_value(name = "Copy: into private memory", nick = "copy")]
    Copy,
    /// It is dropped.
    #[enum_value(name = "Drop: the frame", nick = "drop")]
    Drop,
}

/// Where to wait until the producer's work on a frame on a CUDA device has ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcCudaWait")]
pub enum XmemSrcCudaWait {
    /// The device.
    #[default]
    #[enum_value(name = "Device: the stream of the frame's memory", nick = "device")]
    Device,
    /// The CPU.
    #[enum_value(name = "CPU: this element, before it hands the frame on", nick = "cpu")]
    Cpu,
}

/// The first frame a new consumer gets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcStartFrom")]
pub enum XmemSrcStartFrom {
    /// The one published next.
    #[default]
    #[enum_value(name = "Next: the frame that is published next", nick = "next")]
    Next,
    /// The one published last.
    #[enum_value(name = "Newest: the frame that was published last", nick = "newest")]
    Newest,
    /// The oldest one that is kept.
    #[enum_value(name = "Oldest: the oldest frame that is still kept", nick = "oldest")]
    Oldest,
}

/// The times that the buffers get.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, glib::Enum)]
#[repr(u32)]
#[enum_type(name = "GstXmemSrcTimestampMode")]
pub enum XmemSrcTimestampMode {
    /// When they are due, in this pipeline's running time.
    #[default]
    #[enum_value(
        name = "Clock: the producer's times, carried into this pipeline's running time",
        nick = "clock"
    )]
    Clock,
    /// When they were published.
    #[enum_value(name = "Arrival: when the frame came into the pool", nick = "arrival")]
    Arrival,
    /// The times in the producer's pipeline.
    #[enum_value(
        name = "Passthrough: the producer's times and segment as they are",
        nick = "passthrough"
    )]
    Passthrough,
}
