// SPDX-License-Identifier: MPL-2.0

//! The values of enum properties.

use crate::properties::choices;

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
