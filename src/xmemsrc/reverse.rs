// SPDX-License-Identifier: MPL-2.0

//! Raw sound that the producer plays backward. The frames come in reverse, and the samples of each in the order of the recording:
//! sinks reverse them, by a segment with a negative rate. The times of this source go forward, so it reverses the samples.

use gst_audio::{AudioBufferRef, AudioInfo, AudioLayout, AudioMeta};

/// A copy with the samples in reverse order. `None`: the samples cannot be read.
pub(super) fn reversed(buffer: &gst::BufferRef, info: &AudioInfo) -> Option<gst::Buffer> {
    let bytes = buffer.map_readable().ok()?.as_slice().to_vec();
    let mut copy = gst::Buffer::from_mut_slice(bytes);
    let copied =
        gst::BufferCopyFlags::FLAGS | gst::BufferCopyFlags::TIMESTAMPS | gst::BufferCopyFlags::META;
    let own = copy.get_mut()?;
    buffer.copy_into(own, copied, ..).ok()?;
    let unit = match info.layout() {
        // GStreamer prints a critical message about such a buffer.
        AudioLayout::NonInterleaved if own.meta::<AudioMeta>().is_none() => return None,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn reversed_bytes(layout: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        gst::init().unwrap();
        let caps = format!(
            "audio/x-raw,format=S16LE,rate=8000,channels=2,channel-mask=(bitmask)3,layout={layout}"
        );
        let caps: gst::Caps = caps.parse().unwrap();
        let info = AudioInfo::from_caps(&caps).unwrap();
        let buffer = reversed(&gst::Buffer::from_slice(bytes.to_vec()), &info)?;
        Some(buffer.map_readable().unwrap().to_vec())
    }

    /// Another process made them.
    #[test]
    fn odd_buffers_are_no_problem() {
        let reversed = |bytes| reversed_bytes("interleaved", bytes).unwrap();
        assert_eq!(
            reversed(&[0, 1, 2, 3, 4, 5, 6, 7]),
            [4, 5, 6, 7, 0, 1, 2, 3]
        );
        assert_eq!(reversed(&[0, 1, 2, 3, 4]), [0, 1, 2, 3, 4]);
        assert_eq!(reversed(&[]), [0; 0]);
        assert_eq!(reversed_bytes("non-interleaved", &[0, 1, 2, 3]), None);
    }
}
