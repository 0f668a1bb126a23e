// SPDX-License-Identifier: MPL-2.0

//! Buffers of xmemsrc, one after another.

use std::sync::mpsc;

use crate::pool_buffers::CHANGES;
use crate::support::*;
use gst::prelude::*;

const SIZE: usize = 320 * 240 * 3 / 2;
const VIDEO: &str = "video/x-raw,format=I420,width=320,height=240,framerate=30/1";

/// A sender, and a source whose buffers only the test uses.
struct Stream {
    sender: Sender,
    source: Pipeline,
    buffers: mpsc::Receiver<gst::Buffer>,
    _pools: Pools,
}

impl Stream {
    fn new(caps: &str) -> Self {
        let pools = Pools::new();
        let source = pools.launch("xmemsrc name=src pool=POOL ! fakesink name=sink sync=false");
        let (sender, buffers) = mpsc::channel();
        let pad = source.sink().static_pad("sink").unwrap();
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            if let Some(gst::PadProbeData::Buffer(buffer)) = info.data.take() {
                let _ = sender.send(buffer);
            }
            gst::PadProbeReturn::Handled
        });
        source.play();
        let sender = pools.sender(&caps.parse().unwrap(), LOSSLESS);
        Self {
            sender,
            source,
            buffers,
            _pools: pools,
        }
    }

    /// Publishes a frame of this size and returns it as it is received.
    fn frame(&self, size: usize, byte: u8) -> gst::Buffer {
        self.sender
            .push(gst::Buffer::from_mut_slice(vec![byte; size]));
        let buffer = self.buffers.recv_timeout(SOON.into()).unwrap();
        assert_eq!(bytes(&buffer), vec![byte; size]);
        buffer
    }

    fn held(&self) -> u64 {
        self.source.stat("src", "held")
    }
}

#[test]
fn a_change_of_a_buffer_is_not_in_a_later_one() {
    let stream = Stream::new(VIDEO);
    drop(stream.frame(SIZE, 0));
    for (change, byte) in CHANGES.iter().zip(1..) {
        let mut buffer = stream.frame(SIZE, byte);
        let planes = buffer.meta::<gst_video::VideoMeta>().unwrap();
        assert_eq!(planes.format(), gst_video::VideoFormat::I420);
        assert_eq!((planes.width(), planes.n_planes()), (320, 3));
        assert_eq!(planes.offset(), [0, 76_800, 96_000]);
        assert_eq!(planes.stride(), [320, 160, 160]);
        assert!(buffer.meta::<gst::ReferenceTimestampMeta>().is_none());
        let odd = gst::BufferFlags::GAP | gst::BufferFlags::MARKER | gst::BufferFlags::DISCONT;
        assert!(!buffer.flags().intersects(odd), "{:?}", buffer.flags());
        assert_ne!(buffer.pts(), Some(gst::ClockTime::SECOND));
        assert_eq!((buffer.dts(), buffer.duration()), (None, None));
        assert_eq!((buffer.offset(), buffer.offset_end()), (u64::MAX, u64::MAX));
        assert!(is_read_only(&buffer));
        assert_eq!(stream.held(), 1);
        change(buffer.make_mut());
    }
    assert_eq!(stream.held(), 0);
}

#[test]
fn frames_of_any_size_follow_one_another() {
    let stream = Stream::new("application/x-test");
    for (size, byte) in [10, 1000, 1, 100_000, 10].into_iter().zip(1..) {
        assert_eq!(stream.frame(size, byte).size(), size);
    }
}

#[test]
fn a_memory_that_somebody_keeps_keeps_its_frame() {
    let stream = Stream::new(VIDEO);
    let buffer = stream.frame(SIZE, 1);
    let memory = buffer.memory(0).unwrap();
    drop(buffer);
    assert_eq!(stream.held(), 1);
    let other = stream.frame(SIZE, 2);
    assert_ne!(other.peek_memory(0).as_ptr(), memory.as_ptr());
    assert!(memory.map_readable().unwrap().iter().all(|byte| *byte == 1));
    drop((memory, other));
    assert_eq!(stream.held(), 0);
}

/// Buffer and copy are released in either order.
#[test]
fn a_copy_keeps_the_frame_of_its_buffer() {
    let stream = Stream::new(VIDEO);
    for copy_goes_first in [false, true] {
        let buffer = stream.frame(SIZE, 1);
        let copy = buffer.copy();
        assert_eq!(slot_of(&copy), slot_of(&buffer));
        let (first, second) = if copy_goes_first {
            (copy, buffer)
        } else {
            (buffer, copy)
        };
        drop(first);
        assert_eq!(stream.held(), 1, "{copy_goes_first}");
        let other = stream.frame(SIZE, 2);
        assert_eq!(bytes(&second), vec![1; SIZE]);
        drop((second, other));
        assert_eq!(stream.held(), 0, "{copy_goes_first}");
    }
}

#[test]
fn a_buffer_outlives_its_source() {
    let stream = Stream::new(VIDEO);
    let buffer = stream.frame(SIZE, 1);
    drop(stream.frame(SIZE, 2));
    stream.source.stop();
    assert_eq!(bytes(&buffer), vec![1; SIZE]);
    let copy = buffer.copy();
    drop(buffer);
    assert_eq!(bytes(&copy), vec![1; SIZE]);
}
