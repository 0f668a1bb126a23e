// SPDX-License-Identifier: MPL-2.0

//! The allocator and pool that the sink offers, and their buffers.

use crate::support::*;
use gst::prelude::*;
use gstxmem::{XmemAllocator, XmemBufferPool};

pub(crate) fn caps() -> gst::Caps {
    "video/x-raw,format=I420,width=320,height=240,framerate=30/1"
        .parse()
        .unwrap()
}

const SIZE: u32 = 320 * 240 * 3 / 2;

/// A sink in a started state, without a pipeline.
struct Sink(gst::Element, #[allow(dead_code)] Pools);

impl Sink {
    fn new(properties: &[(&str, &str)]) -> Self {
        let pools = Pools::new();
        let sink = gst::ElementFactory::make("xmemsink")
            .property("pool", pools.pool("p"))
            .build()
            .unwrap();
        for (name, value) in properties {
            sink.set_property_from_str(name, value);
        }
        sink.set_state(gst::State::Ready).unwrap();
        Self(sink, pools)
    }

    fn pool(&self) -> gst::BufferPool {
        let pool = offered_pool(&self.0, &caps());
        pool.set_active(true).unwrap();
        pool
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.0.set_state(gst::State::Null);
    }
}

#[test]
fn raw_video_is_offered_pool_and_allocator() {
    let sink = Sink::new(&[]);
    let query = ask(&sink.0, &caps(), true);
    let pools: Vec<_> = query.allocation_pools().collect();
    let [(Some(pool), size, _, 0)] = &pools[..] else {
        panic!("{} pools", pools.len())
    };
    assert!(pool.is::<XmemBufferPool>());
    assert_eq!(*size, SIZE);
    assert!(pool.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META));
    assert!(pool.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT));
    assert!(
        query
            .find_allocation_meta::<gst_video::VideoMeta>()
            .is_some()
    );
    let (allocator, _) = query.allocation_params().next().unwrap();
    let allocator = allocator.unwrap();
    assert!(allocator.is::<XmemAllocator>());
    assert_eq!(allocator.memory_type(), "XmemMemory");
    // Repeated queries allocate no memory.
    for _ in 0..100 {
        ask(&sink.0, &caps(), true);
    }
    assert_eq!(stat(&sink.0, "slots"), 0);
    assert_eq!(stat(&sink.0, "bytes"), 0);
}

#[test]
fn a_pool_is_created_only_on_request() {
    let sink = Sink::new(&[]);
    let query = ask(&sink.0, &caps(), false);
    let (pool, size, _, _) = query.allocation_pools().next().unwrap();
    assert!(pool.is_none());
    assert_eq!(size, SIZE);
}

/// An element may configure a pool that it was offered, and then not use it.
#[test]
fn a_pool_that_an_element_has_configured_is_not_offered_again() {
    let sink = Sink::new(&[]);
    let offered = || offered_pool(&sink.0, &caps());
    let config = offered().config();
    let again = offered();
    assert_eq!(**again.config(), **config);
    let mut other = again.config();
    other.set_params(Some(&caps()), SIZE + 4096, 3, 5);
    other.add_option("an option");
    again.set_config(other).unwrap();
    drop(again);
    assert_eq!(**offered().config(), **config);
}

/// The queries of filesrc, and of elements that know the size later.
#[test]
fn without_a_format_the_allocator_is_offered() {
    let sink = Sink::new(&[]);
    for caps in [None, Some("video/x-raw"), Some("video/x-raw,format=RGB")] {
        let caps = caps.map(|caps| caps.parse::<gst::Caps>().unwrap());
        let mut query = gst::query::Allocation::new(caps.as_ref(), true);
        assert!(sink.0.static_pad("sink").unwrap().query(&mut query));
        assert_eq!(query.allocation_pools().count(), 0, "{caps:?}");
        let (allocator, _) = query.allocation_params().next().unwrap();
        assert!(allocator.unwrap().is::<gstxmem::XmemAllocator>());
    }
}

#[test]
fn other_caps_are_offered_the_allocator() {
    let sink = Sink::new(&[]);
    for caps in [
        "audio/x-raw,format=S16LE,rate=48000,channels=2",
        "video/x-h264,stream-format=byte-stream",
    ] {
        let query = ask(&sink.0, &caps.parse().unwrap(), true);
        assert_eq!(query.allocation_pools().count(), 0);
        let (allocator, _) = query.allocation_params().next().unwrap();
        assert!(allocator.unwrap().is::<XmemAllocator>());
    }
    assert_eq!(stat(&sink.0, "slots"), 0);
}

#[test]
fn each_buffer_has_a_slot_of_its_own_until_it_is_gone() {
    let sink = Sink::new(&[]);
    let pool = sink.pool();
    let buffers: Vec<_> = (0..4).map(|_| pool.acquire_buffer(None).unwrap()).collect();
    let slots: std::collections::HashSet<_> = buffers
        .iter()
        .map(|buffer| slot_of(buffer).unwrap())
        .collect();
    assert_eq!(slots.len(), 4);
    for buffer in &buffers {
        assert_eq!(buffer.size(), SIZE as usize);
        let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
        assert_eq!(
            (meta.width(), meta.height(), meta.n_planes()),
            (320, 240, 3)
        );
        assert!(!buffer.flags().contains(gst::BufferFlags::TAG_MEMORY));
    }
    assert_eq!(stat(&sink.0, "slots-held"), 4);
    drop(buffers);
    assert_eq!(stat(&sink.0, "slots-held"), 0);
}

#[test]
fn an_inactive_pool_gives_nothing() {
    let sink = Sink::new(&[]);
    let pool = sink.pool();
    pool.set_flushing(true);
    assert_eq!(
        pool.acquire_buffer(None).err(),
        Some(gst::FlowError::Flushing)
    );
    pool.set_flushing(false);
    let buffer = pool.acquire_buffer(None).unwrap();
    pool.set_active(false).unwrap();
    assert_eq!(
        pool.acquire_buffer(None).err(),
        Some(gst::FlowError::Flushing)
    );
    drop(buffer);
    pool.set_active(true).unwrap();
    assert!(slot_of(&pool.acquire_buffer(None).unwrap()).is_some());
}

#[test]
fn without_a_free_slot_upstream_gets_private_memory() {
    let sink = Sink::new(&[("max-slots", "4"), ("history", "2")]);
    let pool = sink.pool();
    let buffers: Vec<_> = (0..8).map(|_| pool.acquire_buffer(None).unwrap()).collect();
    let private: Vec<_> = buffers
        .iter()
        .filter(|buffer| slot_of(buffer).is_none())
        .collect();
    // Two slots are for the history, and one for a frame in private memory.
    assert_eq!(private.len(), 7);
    for buffer in private {
        assert_eq!(buffer.size(), SIZE as usize);
        assert!(buffer.meta::<gst_video::VideoMeta>().is_some());
    }
    drop(buffers);
    assert!(slot_of(&pool.acquire_buffer(None).unwrap()).is_some());
}

#[test]
fn pool_and_allocator_outlive_the_sink() {
    let sink = Sink::new(&[]);
    let pool = sink.pool();
    let mut buffer = pool.acquire_buffer(None).unwrap();
    let allocator = buffer.peek_memory(0).allocator().unwrap().clone();
    sink.0.set_state(gst::State::Null).unwrap();
    buffer.make_mut().map_writable().unwrap().fill(1);
    assert!(bytes(&buffer).iter().all(|byte| *byte == 1));
    // A stopped sink has no slots, but allocation does not fail.
    assert!(slot_of(&pool.acquire_buffer(None).unwrap()).is_none());
    assert_eq!(
        allocator
            .alloc(100, None)
            .unwrap()
            .allocator()
            .unwrap()
            .memory_type(),
        "SystemMemory"
    );
}

#[test]
fn the_allocator_honours_its_parameters() {
    let sink = Sink::new(&[]);
    let query = ask(&sink.0, &caps(), false);
    let allocator = query.allocation_params().next().unwrap().0.unwrap();
    for (align, prefix, padding) in [(0, 0, 0), (63, 64, 17), (4095, 0, 1), (65535, 8, 0)] {
        let flags = gst::MemoryFlags::ZERO_PREFIXED | gst::MemoryFlags::ZERO_PADDED;
        let params = gst::AllocationParams::new(flags, align, prefix, padding);
        // The second buffer uses the slot that the first one wrote.
        for _ in 0..2 {
            let mut memory = allocator.alloc(1000, Some(&params)).unwrap();
            assert_eq!(memory.allocator().unwrap().memory_type(), "XmemMemory");
            assert_eq!((memory.size(), memory.offset()), (1000, prefix));
            assert_eq!(memory.maxsize(), prefix + 1000 + padding);
            let start = memory.map_readable().unwrap().as_ptr() as usize - prefix;
            assert_eq!(start & align, 0);
            let whole = memory.share_maxsize(..prefix + 1000 + padding);
            let map = whole.map_readable().unwrap();
            assert!(
                map[..prefix].iter().all(|byte| *byte == 0),
                "the prefix is zero"
            );
            assert!(
                map[prefix + 1000..].iter().all(|byte| *byte == 0),
                "the padding is zero"
            );
            drop(map);
            drop(whole);
            memory.get_mut().unwrap().map_writable().unwrap().fill(0xff);
        }
    }
}

#[test]
fn copies_of_a_slot_are_private_memory() {
    let sink = Sink::new(&[]);
    let mut buffer = sink.pool().acquire_buffer(None).unwrap();
    buffer.make_mut().map_writable().unwrap().fill(3);
    let copy = buffer.copy_deep().unwrap();
    assert!(slot_of(&copy).is_none());
    assert!(bytes(&copy).iter().all(|byte| *byte == 3));
    assert_eq!(stat(&sink.0, "slots-held"), 1);
    assert_eq!(stat(&sink.0, "memory-copies"), 1);
}

/// As a decoder that keeps its frame mapped for writing while GStreamer pushes it.
#[test]
fn a_copy_of_a_frame_that_is_mapped_for_writing_is_the_frame() {
    let sink = Sink::new(&[]);
    let buffer = sink.pool().acquire_buffer(None).unwrap();
    let slot = slot_of(&buffer);
    let memory = buffer.memory(0).unwrap();
    let mut mapped = buffer.into_mapped_buffer_writable().unwrap();
    mapped.as_mut_slice().fill(5);
    let alias = memory.copy();
    let mut carrier = gst::Buffer::new();
    carrier.make_mut().append_memory(alias);
    assert_eq!(slot_of(&carrier), slot);
    assert_eq!(stat(&sink.0, "memory-copies"), 0);
    assert!(is_read_only(&carrier));
    // Only a copy of the whole memory is an alias; a copy of a part is a real copy.
    let part = memory.copy_range(0..100);
    assert_eq!(part.allocator().unwrap().memory_type(), "SystemMemory");
    assert_eq!(part.map_readable().unwrap().as_slice(), [5; 100]);
    drop(mapped);
    // Other writers of the alias get a copy.
    carrier.make_mut().map_writable().unwrap().fill(6);
    assert!(slot_of(&carrier).is_none());
    assert_eq!(memory.map_readable().unwrap()[0], 5);
}

#[test]
fn parts_of_a_slot_keep_it() {
    let sink = Sink::new(&[]);
    let buffer = sink.pool().acquire_buffer(None).unwrap();
    let part = buffer
        .copy_region(gst::BufferCopyFlags::MEMORY, 100..200)
        .unwrap();
    let next = buffer
        .copy_region(gst::BufferCopyFlags::MEMORY, 200..300)
        .unwrap();
    assert_eq!(slot_of(&part), slot_of(&buffer));
    assert_eq!(part.peek_memory(0).is_span(next.peek_memory(0)), Some(100));
    drop((buffer, next));
    assert_eq!(stat(&sink.0, "slots-held"), 1);
    drop(part);
    assert_eq!(stat(&sink.0, "slots-held"), 0);
}

/// Upstream's own pool with the sink's allocator must not write published frames.
#[test]
fn a_foreign_pool_with_our_allocator_gets_fresh_slots() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), &format!("copy=forbid {LOSSLESS}"));
    let query = ask(&sender.sink(), &caps(), false);
    let (allocator, params) = query.allocation_params().next().unwrap();
    let pool = gst_video::VideoBufferPool::new();
    let mut config = pool.config();
    config.set_params(Some(&caps()), SIZE, 1, 0);
    config.set_allocator(allocator.as_ref(), Some(&params));
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    for number in 0..6 {
        let mut buffer = pool.acquire_buffer(None).unwrap();
        buffer.make_mut().map_writable().unwrap().fill(number);
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        assert!(
            bytes(sample.buffer().unwrap())
                .iter()
                .all(|byte| *byte == number)
        );
    }
    assert_eq!(sender.pipeline.stat("sink", "zero-copy"), 6);
    pool.set_active(false).unwrap();
}
