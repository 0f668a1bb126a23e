// SPDX-License-Identifier: MPL-2.0

//! Raw sound that the producer plays backward. The frames come in reverse, and the samples of each in the order of the recording:
//! sinks reverse them, by a segment with a negative rate. The times of this source go forward, so it reverses the samples.

use gst_audio::{AudioBufferRef, AudioInfo, AudioLayout};

/// A copy with the samples in reverse order. `None`: the samples cannot be read.
pub(super) fn reversed(buffer: &gst::BufferRef, info: &AudioInfo) -> Option<gst::Buffer> {
    let bytes = buffer.map_readable().ok()?.as_slice().to_vec();
    let mut copy = gst::Buffer::from_mut_slice(bytes);
    let copied =
        gst::BufferCopyFlags::FLAGS | gst::BufferCopyFlags::TIMESTAMPS | gst::BufferCopyFlags::META;
    let own = copy.get_mut()?;
    buffer.copy_into(own, copied, ..).ok()?;
    let unit = match info.layout() {
        AudioLayout::NonInterleaved => info.width() / 8,
        _ => info.bpf(),
    };
    let mut samples = AudioBufferRef::from_buffer_ref_writable(own, info).ok()?;
    for plane in 0..samples.n_planes() {
        let plane = samples.plane_data_mut(plane).ok()?;
        plane.reverse();
        plane
            .chunks_exact_mut(unit.max(1) as usize)
            .for_each(<[u8]>::reverse);
    }
    drop(samples);
    Some(copy)
}
