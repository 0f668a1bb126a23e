// SPDX-License-Identifier: MPL-2.0

//! Slow kernels with one thread that write or read the frames at a pad. A frame that is written while it is read, or read before it
//! is written, has wrong bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gst::prelude::*;
use xmem_core::cuda::Stream;

use crate::gpu::Gpu;
use crate::gstcuda::{blocking_stream, device_address, in_primary, stream_of, synchronize};

/// The stream on which frames are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum On {
    /// The stream of the frame's memory.
    Its,
    /// A stream of this program, after a wait for the memory's stream, as in GStreamer's converters.
    Another,
}

pub(crate) struct Kernels {
    gpu: Gpu,
    /// A word on the device: the number of bytes that differed.
    wrong: u64,
    frames: AtomicU64,
}

// SAFETY: a module is a handle of its context, which any thread may use.
unsafe impl Send for Kernels {}
// SAFETY: as above; the handle is never changed.
unsafe impl Sync for Kernels {}

impl Kernels {
    pub(crate) fn new() -> Arc<Self> {
        let gpu = Gpu::new(0);
        let wrong = gpu.word();
        Arc::new(Self {
            gpu,
            wrong,
            frames: AtomicU64::new(0),
        })
    }

    /// The number of frames that were read, and the number of wrong bytes. Waits for all kernels.
    pub(crate) fn figures(&self) -> (u64, u32) {
        let frames = self.frames.load(Ordering::Relaxed);
        let wrong = in_primary(|| {
            synchronize();
            self.gpu.read_word(self.wrong)
        });
        (frames, wrong)
    }

    /// Writes each frame twice: first with a wrong value, then with the right one.
    pub(crate) fn write(self: Arc<Self>, pad: &gst::Pad) {
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            if let Some((memory, address, byte)) = info.buffer().and_then(|buffer| frame(buffer)) {
                let stream = its_stream(memory);
                in_primary(|| {
                    for byte in [!byte, byte] {
                        self.gpu.fill(stream, address, memory.size(), byte);
                    }
                });
            }
            gst::PadProbeReturn::Ok
        });
    }

    /// Compares each byte of each frame with the expected value.
    pub(crate) fn read(self: Arc<Self>, pad: &gst::Pad, on: On) {
        let own = match on {
            On::Its => None,
            On::Another => Some(blocking_stream()),
        };
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            if let Some((memory, address, byte)) = info.buffer().and_then(|buffer| frame(buffer)) {
                let its = its_stream(memory);
                in_primary(|| {
                    let stream = own.map_or(its, |own| {
                        self.gpu.finish(its);
                        to_stream(own)
                    });
                    let size = memory.size();
                    self.gpu.check(stream, address, size, byte, self.wrong);
                });
                self.frames.fetch_add(1, Ordering::Relaxed);
            }
            gst::PadProbeReturn::Ok
        });
    }
}

/// The memory of a frame, its address on the device, and the value of its bytes. Consecutive frames have different values. `None`
/// for a frame without a time or in host memory.
fn frame(buffer: &gst::BufferRef) -> Option<(&gst::MemoryRef, u64, u8)> {
    let number = buffer.pts()?.mseconds();
    let memory = buffer.peek_memory(0);
    if !memory.is_type("gst.cuda.memory") {
        return None;
    }
    let address = device_address(memory)?;
    Some((memory, address, (number % 251) as u8))
}

fn its_stream(memory: &gst::MemoryRef) -> Stream {
    to_stream(stream_of(memory) as u64)
}

fn to_stream(handle: u64) -> Stream {
    // SAFETY: a stream of this process, which exists as long as the memory or the process.
    unsafe { Stream::from_raw(handle) }
}
