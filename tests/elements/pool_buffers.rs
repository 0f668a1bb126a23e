// SPDX-License-Identifier: MPL-2.0

//! Buffers of xmemsink's pool, one after another.

#![allow(unsafe_code)] // writes fields as elements in C do

use crate::pool::caps;
use crate::support::*;
use gst::{glib::translate::*, prelude::*};

const SIZE: usize = 320 * 240 * 3 / 2;

/// A started sink, and the pool that it offers.
struct Offered {
    sink: gst::Element,
    pool: gst::BufferPool,
    _pools: Pools,
}

impl Offered {
    fn new() -> Self {
        let pools = Pools::new();
        let sink = gst::ElementFactory::make("xmemsink")
            .property("pool", pools.pool("p"))
            .build()
            .unwrap();
        sink.set_state(gst::State::Ready).unwrap();
        let pool = offered_pool(&sink, &caps());
        pool.set_active(true).unwrap();
        Self {
            sink,
            pool,
            _pools: pools,
        }
    }

    fn acquire(&self) -> gst::Buffer {
        self.pool.acquire_buffer(None).unwrap()
    }

    fn held(&self) -> u64 {
        stat(&self.sink, "slots-held")
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let _ = self.sink.set_state(gst::State::Null);
    }
}

/// All fields of a buffer that an element can change, except for the bytes.
fn description(buffer: &gst::BufferRef) -> String {
    let memory = buffer.peek_memory(0);
    let mut text = format!("{:?} {:?}", buffer.flags(), memory.flags());
    text += &format!(" {:?} {:?}", buffer.pts(), buffer.dts());
    text += &format!(" {:?} {}", buffer.duration(), buffer.offset());
    text += &format!(" {}", buffer.offset_end());
    text += &format!(" {} {}", memory.maxsize(), memory.offset());
    text += &format!(" {} {}", memory.size(), memory.align());
    for meta in buffer.iter_meta::<gst::Meta>() {
        text += &format!(" {} {:?}", meta.api(), meta.flags());
    }
    // SAFETY: all are live, and no other code has them.
    unsafe {
        let meta: *const gst_video::ffi::GstVideoMeta = gst::ffi::gst_buffer_get_meta(
            buffer.as_mut_ptr(),
            gst_video::ffi::gst_video_meta_api_get_type(),
        )
        .cast();
        let memory = memory.as_mut_ptr().cast();
        let is_writable = gst::ffi::gst_mini_object_is_writable(memory);
        let planes = &*meta;
        text += &format!(" {is_writable} {} {}", planes.flags, planes.format);
        text += &format!(" {} {} {}", planes.id, planes.width, planes.height);
        text += &format!(
            " {} {:?} {:?}",
            planes.n_planes, planes.offset, planes.stride
        );
        text += &format!(" {:?} {:?}", planes.map, planes.unmap);
        text += &format!(" {:?}", planes.alignment);
        assert_eq!(planes.buffer, buffer.as_mut_ptr());
    }
    text
}

/// Each changes some of the fields of a buffer that the caller has alone, the first none.
pub(crate) const CHANGES: [fn(&mut gst::BufferRef); 6] = [
    |_| (),
    |buffer| {
        let flags = gst::BufferFlags::DISCONT | gst::BufferFlags::GAP;
        buffer.set_flags(flags | gst::BufferFlags::MARKER);
        buffer.set_pts(gst::ClockTime::SECOND);
        buffer.set_dts(gst::ClockTime::SECOND);
        buffer.set_duration(gst::ClockTime::SECOND);
        buffer.set_offset(7);
        buffer.set_offset_end(8);
    },
    |buffer| {
        let caps = gst::Caps::new_empty_simple("timestamp/x-test");
        let time = gst::ClockTime::SECOND;
        gst::ReferenceTimestampMeta::add(buffer, &caps, time, None);
        gst_video::VideoCropMeta::add(buffer, (1, 2, 3, 4));
    },
    |buffer| buffer.set_size(100),
    |buffer| {
        let memory = buffer.peek_memory_mut(0).unwrap();
        memory.resize(16..116);
    },
    // SAFETY: the caller has the buffer alone.
    |buffer| unsafe {
        let planes: *mut gst_video::ffi::GstVideoMeta = gst::ffi::gst_buffer_get_meta(
            buffer.as_mut_ptr(),
            gst_video::ffi::gst_video_meta_api_get_type(),
        )
        .cast();
        (*planes).flags = 1;
        (*planes).format = gst_video::VideoFormat::Nv12.into_glib();
        (*planes).id = 1;
        (*planes).width = 1;
        (*planes).height = 1;
        (*planes).n_planes = 1;
        (*planes).offset = [77; 4];
        (*planes).stride = [77; 4];
        (*planes).map = None;
        (*planes).unmap = None;
        (*planes).alignment.padding_left = 77;
    },
];

#[test]
fn a_buffer_is_as_new_however_it_was_changed() {
    gst::init().unwrap();
    for (number, change) in CHANGES.iter().enumerate() {
        let offered = Offered::new();
        let mut buffer = offered.acquire();
        let new = description(&buffer);
        change(buffer.make_mut());
        assert_eq!(
            description(&buffer) == new,
            number == 0,
            "change {number} is one"
        );
        drop(buffer);
        assert_eq!(offered.held(), 0);
        let again = offered.acquire();
        assert_eq!(description(&again), new, "change {number}");
    }
}

/// A published buffer is read-only. The next frame in the same slot is writable.
#[test]
fn a_slot_can_be_written_again_after_its_frame() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(), &format!("copy=forbid history=1 {LOSSLESS}"));
    let pool = offered_pool(&sender.sink(), &caps());
    pool.set_active(true).unwrap();
    let mut slots = std::collections::HashSet::new();
    for number in 0..20 {
        let mut buffer = pool.acquire_buffer(None).unwrap();
        slots.insert(slot_of(&buffer).unwrap().0);
        assert!(!is_read_only(&buffer));
        let mut map = buffer.make_mut().map_writable().unwrap();
        map.fill(number);
        drop(map);
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        let bytes = bytes(sample.buffer().unwrap());
        assert!(bytes.len() == SIZE && bytes.iter().all(|byte| *byte == number));
    }
    assert_eq!(sender.pipeline.stat("sink", "zero-copy"), 20);
    assert!(slots.len() < 20, "no slot was used twice");
}

#[test]
fn a_memory_that_somebody_keeps_keeps_its_slot() {
    gst::init().unwrap();
    let offered = Offered::new();
    let mut buffer = offered.acquire();
    buffer.make_mut().map_writable().unwrap().fill(1);
    let memory = buffer.memory(0).unwrap();
    drop(buffer);
    assert_eq!(offered.held(), 1);
    let mut other = offered.acquire();
    assert_ne!(other.peek_memory(0).as_ptr(), memory.as_ptr());
    other.make_mut().map_writable().unwrap().fill(2);
    assert!(memory.map_readable().unwrap().iter().all(|byte| *byte == 1));
    drop(memory);
    assert_eq!(offered.held(), 1);
}

/// A part of a memory refers to the whole memory.
#[test]
fn a_part_of_a_memory_keeps_its_slot() {
    gst::init().unwrap();
    let offered = Offered::new();
    let mut buffer = offered.acquire();
    buffer.make_mut().map_writable().unwrap().fill(1);
    let memory = buffer.peek_memory(0).as_ptr();
    let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 100..200);
    drop(buffer);
    let other = offered.acquire();
    assert_ne!(other.peek_memory(0).as_ptr(), memory);
    assert_eq!(offered.held(), 2);
    drop((other, part));
    assert_eq!(offered.held(), 0);
}

/// Buffer and copy are released in either order.
#[test]
fn a_copy_keeps_the_slot_of_its_buffer() {
    gst::init().unwrap();
    let offered = Offered::new();
    for copy_goes_first in [false, true] {
        let mut buffer = offered.acquire();
        buffer.make_mut().map_writable().unwrap().fill(1);
        let copy = buffer.copy();
        assert_eq!(slot_of(&copy), slot_of(&buffer));
        let (first, second) = if copy_goes_first {
            (copy, buffer)
        } else {
            (buffer, copy)
        };
        drop(first);
        assert_eq!(offered.held(), 1, "{copy_goes_first}");
        let mut other = offered.acquire();
        other.make_mut().map_writable().unwrap().fill(2);
        assert!(bytes(&second).iter().all(|byte| *byte == 1));
        drop(second);
        assert_eq!(offered.held(), 1, "{copy_goes_first}");
    }
}

/// libav creates a copy of each memory and keeps it mapped for writing. Buffer and copy are released in either order.
#[test]
fn an_alias_keeps_the_slot_of_its_memory() {
    gst::init().unwrap();
    let offered = Offered::new();
    for alias_goes_first in [false, true] {
        let buffer = offered.acquire();
        let memory = buffer.peek_memory(0).as_mut_ptr();
        // SAFETY: a live memory, which this maps, copies and unmaps.
        let alias: gst::Memory = unsafe {
            let mut info = std::mem::zeroed();
            let flags = gst::ffi::GST_MAP_READ | gst::ffi::GST_MAP_WRITE;
            assert!(gst::ffi::gst_memory_map(memory, &mut info, flags) != 0);
            let alias = gst::ffi::gst_memory_copy(memory, 0, -1);
            std::slice::from_raw_parts_mut(info.data, info.size).fill(1);
            gst::ffi::gst_memory_unmap(memory, &mut info);
            from_glib_full(alias)
        };
        let (first, second): (Box<dyn std::any::Any>, Box<dyn std::any::Any>) = if alias_goes_first
        {
            (Box::new(alias.clone()), Box::new(buffer))
        } else {
            (Box::new(buffer), Box::new(alias.clone()))
        };
        let alias = (!alias_goes_first).then_some(alias);
        drop(first);
        assert_eq!(offered.held(), 1, "{alias_goes_first}");
        let mut other = offered.acquire();
        other.make_mut().map_writable().unwrap().fill(2);
        if let Some(alias) = alias {
            assert!(alias.map_readable().unwrap().iter().all(|byte| *byte == 1));
        }
        drop(second);
        assert_eq!(offered.held(), 1, "{alias_goes_first}");
    }
}

/// As a program that draws into one buffer, and pushes a copy of each picture.
#[test]
fn a_copy_of_what_is_still_written_does_not_change() {
    gst::init().unwrap();
    let buffer = Offered::new().acquire();
    let memory = buffer.peek_memory(0).as_mut_ptr();
    // SAFETY: a live memory, which this maps and unmaps.
    let copies = unsafe {
        let mut info = std::mem::zeroed();
        assert!(gst::ffi::gst_memory_map(memory, &mut info, gst::ffi::GST_MAP_WRITE) != 0);
        let canvas = std::slice::from_raw_parts_mut(info.data, info.size);
        canvas.fill(1);
        let copies = [buffer.copy(), buffer.copy_deep().unwrap()];
        canvas.fill(2);
        gst::ffi::gst_memory_unmap(memory, &mut info);
        copies
    };
    for copy in copies {
        let copy = copy.into_mapped_buffer_readable().unwrap();
        assert!(copy.iter().all(|byte| *byte == 1));
    }
}

/// As with every GstBufferPool, they stay with the buffer while it is kept.
#[test]
fn objects_attached_to_a_buffer_are_released_at_the_latest_with_its_pool() {
    gst::init().unwrap();
    unsafe extern "C" fn count(data: gst::glib::ffi::gpointer) {
        // SAFETY: the test's counter.
        unsafe { *data.cast::<u32>() += 1 };
    }
    let offered = Offered::new();
    let mut gone = 0_u32;
    let name = gst::glib::Quark::from_str("test");
    for _ in 0..3 {
        for ties_to_memory in [false, true] {
            let buffer = offered.acquire();
            let object = match ties_to_memory {
                false => buffer.as_mut_ptr().cast::<gst::ffi::GstMiniObject>(),
                true => buffer.peek_memory(0).as_mut_ptr().cast(),
            };
            // SAFETY: a live object, and a counter that outlives it.
            unsafe {
                gst::ffi::gst_mini_object_set_qdata(
                    object,
                    name.into_glib(),
                    (&raw mut gone).cast(),
                    Some(count),
                );
            }
        }
    }
    offered.pool.set_active(false).unwrap();
    assert_eq!(gone, 6);
}

/// As a decoder that replaces the memory of a buffer.
#[test]
fn a_buffer_with_another_memory_has_no_slot() {
    gst::init().unwrap();
    let offered = Offered::new();
    let mut buffer = offered.acquire();
    let other = gst::Memory::with_size(SIZE);
    buffer.make_mut().replace_all_memory(other);
    assert_eq!(offered.held(), 0);
    drop(buffer);
    assert!(slot_of(&offered.acquire()).is_some());
}

#[test]
fn an_inactive_pool_keeps_nothing() {
    gst::init().unwrap();
    let offered = Offered::new();
    let weak = {
        let buffer = offered.acquire();
        let memory = buffer.peek_memory(0);
        memory.allocator().unwrap().downgrade()
    };
    let out = offered.acquire();
    offered.pool.set_active(false).unwrap();
    drop(out);
    assert_eq!(offered.held(), 0);
    let _ = offered.sink.set_state(gst::State::Null);
    // Only the pool has a reference. A kept memory would have another one.
    let references = weak.upgrade().unwrap().ref_count();
    assert_eq!(references, 2, "the pool's and this test's");
}

#[test]
fn a_stopped_sink_keeps_nothing() {
    gst::init().unwrap();
    let offered = Offered::new();
    let buffer = offered.acquire();
    let allocator = buffer.peek_memory(0).allocator().unwrap().clone();
    drop(buffer);
    let before = allocator.ref_count();
    offered.sink.set_state(gst::State::Null).unwrap();
    // The sink's reference, and that of the kept memory.
    assert!(allocator.ref_count() < before - 1);
    assert!(slot_of(&offered.acquire()).is_none());
}
