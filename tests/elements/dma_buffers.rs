// SPDX-License-Identifier: MPL-2.0

//! Under caps with `memory:DMABuf`, frames are DMA buffers on both sides, so they are never copied. The tests use a sealed memfd in
//! a GstDmaBufMemory instead of device memory.

use crate::descriptors::*;
use crate::support::*;
use gst::prelude::*;
use gst_video::{VideoFormat, VideoFrameFlags, VideoMeta};
use xmem_core::{FrameMeta, Producer, Sticky};

const GRAY: &str = "video/x-raw(memory:DMABuf),format=GRAY8,width=64,height=64,framerate=30/1";
/// GStreamer defines such caps since 1.24. An application may also use them with older versions.
const OPEN: &str =
    "video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12,width=64,height=64,framerate=30/1";
const SIZE: usize = 64 * 96;

fn dma_buffer(fill: u8, size: usize) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    let memory = dmabuf_memory(fill, size);
    buffer.get_mut().unwrap().append_memory(memory);
    buffer
}

/// A buffer whose GstVideoMeta has the layout of its planes.
fn laid_out(
    size: usize,
    flags: VideoFrameFlags,
    format: VideoFormat,
    offsets: &[usize],
    strides: &[i32],
) -> gst::Buffer {
    let mut buffer = dma_buffer(1, size);
    let buffer_ref = buffer.get_mut().unwrap();
    VideoMeta::add_full(buffer_ref, flags, format, 64, 64, offsets, strides).unwrap();
    buffer
}

#[track_caller]
fn assert_dma_buffer(sample: &gst::Sample) {
    let memory = sample.buffer().unwrap().peek_memory(0);
    assert!(
        memory.is_memory_type::<gst_allocators::DmaBufMemory>(),
        "{memory:?}"
    );
}

/// With `format=DMA_DRM`, the caps do not have the format of the frames.
#[test]
fn planes_known_only_to_the_frame_arrive() {
    let pools = Pools::new();
    let sender = pools.sender(&OPEN.parse().unwrap(), "copy=forbid");
    let receiver = pools.receiver("").connected();
    let rows = 64 * 64;
    for (offsets, strides) in [
        ([0, rows], [64, 64]),
        ([4096, 4096 + 2 * rows], [128, 128]),
        ([0, rows], [64, 64]),
    ] {
        let size = offsets[1] + 32 * strides[1] as usize;
        sender.push(laid_out(
            size,
            VideoFrameFlags::empty(),
            VideoFormat::Nv12,
            &offsets,
            &strides,
        ));
        let sample = receiver.next().unwrap();
        assert_dma_buffer(&sample);
        let meta = sample.buffer().unwrap().meta::<VideoMeta>().unwrap();
        assert_eq!(meta.format(), VideoFormat::Nv12);
        assert_eq!((meta.width(), meta.height()), (64, 64));
        assert_eq!(meta.offset(), offsets);
        assert_eq!(meta.stride(), strides);
    }
    assert_eq!(receiver.stat("zero-copy"), 3);
}

/// Formats that only devices can read also have offsets and strides.
#[test]
fn planes_of_an_open_format_arrive() {
    let pools = Pools::new();
    let format = VideoFormat::from_string("DMA_DRM");
    if format == VideoFormat::Unknown {
        return not_run("this GStreamer has no format DMA_DRM: it is older than 1.24");
    }
    let sender = pools.sender(&OPEN.parse().unwrap(), "copy=forbid");
    let receiver = pools.receiver("").connected();
    // With the flag, the meta has more than the layout of the planes.
    for flags in [VideoFrameFlags::empty(), VideoFrameFlags::INTERLACED] {
        sender.push(laid_out(SIZE, flags, format, &[0, 64 * 64], &[256, 256]));
        let sample = receiver.next().unwrap();
        assert_dma_buffer(&sample);
        let meta = sample.buffer().unwrap().meta::<VideoMeta>().unwrap();
        assert_eq!(meta.format(), format);
        assert_eq!(meta.video_frame_flags(), flags);
        assert_eq!(meta.offset(), [0, 64 * 64]);
        assert_eq!(meta.stride(), [256, 256]);
    }
    assert_eq!(receiver.stat("metas-dropped"), 0);
}

#[test]
fn unknown_planes_are_not_made_up() {
    let pools = Pools::new();
    let sender = pools.sender(&OPEN.parse().unwrap(), "copy=forbid");
    let receiver = pools.receiver("").connected();
    sender.push(dma_buffer(1, SIZE));
    let sample = receiver.next().unwrap();
    assert_dma_buffer(&sample);
    assert!(sample.buffer().unwrap().meta::<VideoMeta>().is_none());
}

/// An input-selector and a new link send the caps again.
#[test]
fn caps_that_are_repeated_change_nothing() {
    let pools = Pools::new();
    let sender = pools.sender(&OPEN.parse().unwrap(), "copy=forbid");
    let receiver = pools.receiver("").connected();
    let next = || {
        sender.push(dma_buffer(1, SIZE));
        receiver.next().unwrap().caps().unwrap().to_owned()
    };
    let caps = next();
    let pad = sender.sink().static_pad("sink").unwrap();
    assert!(pad.send_event(gst::event::Caps::new(&OPEN.parse().unwrap())));
    assert_eq!(next(), caps);
}

/// Other frames are copied if the budget is used up.
#[test]
fn a_dma_buffer_past_the_budget_is_dropped() {
    let pools = Pools::new();
    let sender = pools.sender(&GRAY.parse().unwrap(), "");
    let receiver = pools.receiver("max-held=2").connected();
    let next = |fill| {
        sender.push(dma_buffer(fill, SIZE));
        let sample = receiver.next().unwrap();
        assert_dma_buffer(&sample);
        sample
    };
    let held = [next(1), next(2)];
    sender.push(dma_buffer(3, SIZE));
    until("a frame is dropped", || receiver.stat("dropped") == 1);
    drop(held);
    until("room in the budget", || receiver.stat("held") < 2);
    let sample = next(4);
    let buffer = sample.buffer().unwrap();
    assert_eq!(bytes(buffer), vec![4; SIZE]);
    assert!(buffer.flags().contains(gst::BufferFlags::DISCONT));
    assert_eq!(receiver.stat("copied"), 0);
}

/// Other frames are copied into the layout that downstream expects.
#[test]
fn padded_rows_stay_where_they_are() {
    let pools = Pools::new();
    let sender = pools.sender(&GRAY.parse().unwrap(), "");
    let receiver = pools.simple_receiver("").connected();
    sender.push(laid_out(
        128 * 64,
        VideoFrameFlags::empty(),
        VideoFormat::Gray8,
        &[0],
        &[128],
    ));
    let sample = receiver.next().unwrap();
    assert_dma_buffer(&sample);
    let meta = sample.buffer().unwrap().meta::<VideoMeta>().unwrap();
    assert_eq!(meta.stride(), [128]);
    assert_eq!(receiver.stat("zero-copy"), 1);
}

/// Any program may be the producer, and may publish any frames.
#[test]
fn host_memory_is_not_delivered_as_a_dma_buffer() {
    let pools = Pools::new();
    let producer = Producer::builder(pools.pool("p")).build().unwrap();
    let mut sticky = Sticky::new();
    sticky.set("caps", GRAY);
    producer.set_sticky(&sticky).unwrap();
    let slot = producer.acquire(SIZE).unwrap();
    slot.publish(FrameMeta::new(SIZE)).unwrap();
    let receiver = pools.receiver("start-from=newest");
    receiver.fails_with(gst::StreamError::Format, "in no DMA buffer");
}

#[test]
fn host_memory_is_not_published_as_a_dma_buffer() {
    for in_a_slot in [true, false] {
        let pools = Pools::new();
        let sender = pools.sender(&GRAY.parse().unwrap(), "");
        let memory = if in_a_slot {
            let host: gst::Caps = "audio/x-raw".parse().unwrap();
            let query = ask(&sender.sink(), &host, false);
            let (allocator, params) = query.allocation_params().next().unwrap();
            allocator.unwrap().alloc(SIZE, Some(&params)).unwrap()
        } else {
            fd_memory(memfd(1, SIZE, SEALED), SIZE)
        };
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().append_memory(memory);
        sender.push(buffer);
        sender.fails_with(gst::StreamError::Format, "without that feature");
        assert_eq!(stat(&sender.sink(), "published"), 0);
    }
}

/// Slots are not offered to elements that need other memory.
#[test]
fn no_slots_are_offered_for_other_memory() {
    let pools = Pools::new();
    let sender = pools.sender(&GRAY.parse().unwrap(), "");
    let sink = sender.sink();
    let gl = "video/x-raw(memory:GLMemory),format=RGBA,width=64,height=64,framerate=30/1";
    for caps in [GRAY, OPEN, gl] {
        let query = ask(&sink, &caps.parse().unwrap(), true);
        assert_eq!(query.allocation_pools().count(), 0, "{caps}");
        assert_eq!(query.allocation_params().count(), 0, "{caps}");
        let meta = query.find_allocation_meta::<VideoMeta>();
        assert!(meta.is_some(), "{caps}");
    }
    let host = "video/x-raw(memory:SystemMemory),format=GRAY8,width=64,height=64,framerate=30/1";
    for host in [host.to_owned(), host.replace("(memory:SystemMemory)", "")] {
        offered_pool(&sink, &host.parse().unwrap());
    }
}
