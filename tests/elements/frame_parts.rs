// SPDX-License-Identifier: MPL-2.0

//! Buffers that are published without a copy although they are not in a slot: descriptors of other software, several memories, and
//! frames that are forwarded.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::descriptors::*;
use crate::support::*;
use gst::prelude::*;
use rustix::fs::SealFlags;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";
const SIZE: usize = 64 * 64;

/// Increments a counter when the buffer is freed.
fn counted(memory: gst::Memory, gone: &Arc<AtomicU32>) -> gst::Buffer {
    struct Count(Arc<AtomicU32>, Vec<u8>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    impl AsRef<[u8]> for Count {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }
    let mut buffer = gst::Buffer::new();
    {
        let buffer = buffer.get_mut().unwrap();
        buffer.append_memory(memory);
        // The parent is released when the buffer is freed, not when its memory is.
        let parent = gst::Buffer::from_slice(Count(gone.clone(), vec![0]));
        gst::ParentBufferMeta::add(buffer, &parent);
    }
    buffer
}

#[test]
fn memory_with_a_descriptor_travels_as_it_is() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "history=1");
    let receiver = pools.receiver("").connected();
    let memories: Vec<_> = (0..3u8)
        .map(|fill| fd_memory(memfd(fill, SIZE, SEALED), SIZE))
        .collect();
    let gone = Arc::<AtomicU32>::default();
    let mut last = None;
    for n in 0..30usize {
        let memory = memories[n % 3].clone();
        sender.push(counted(memory, &gone));
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        assert_eq!(bytes(buffer), vec![(n % 3) as u8; SIZE]);
        // The bytes are mapped from the producer's file.
        let (file, offset) = place(buffer);
        let expected = inode_of(&memories[n % 3]);
        assert!(file.ends_with(&format!(" {expected}")), "{file}");
        assert_eq!(offset, 0);
        // The memory is read-only: an in-place filter gets a copy.
        assert!(is_read_only(buffer));
        last = Some(sample);
    }
    let sink = sender.pipeline.sink();
    assert_eq!(stat(&sink, "copied"), 0);
    assert_eq!(stat(&sink, "zero-copy"), 30);
    assert_eq!(receiver.stat("copied"), 0);
    // Upstream has its buffers back, except for those that the history and the consumer hold.
    until("upstream has its buffers back", || {
        gone.load(Ordering::Relaxed) >= 28
    });
    assert!(gone.load(Ordering::Relaxed) < 30);
    drop(last);
}

#[test]
fn a_dma_buffer_stays_a_dma_buffer() {
    let pools = Pools::new();
    let caps: gst::Caps =
        "video/x-raw(memory:DMABuf),format=GRAY8,width=64,height=64,framerate=30/1"
            .parse()
            .unwrap();
    let sender = pools.sender(&caps, "copy=forbid");
    let receiver = pools.receiver("").connected();
    let memory = dmabuf_memory(7, SIZE + 4096);
    for offset in [0, 4096, 0] {
        let mut buffer = gst::Buffer::new();
        buffer
            .get_mut()
            .unwrap()
            .append_memory(memory.share(offset..offset + SIZE));
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        assert!(sample.caps().unwrap().is_strictly_equal(&caps));
        let received = sample.buffer().unwrap().peek_memory(0);
        assert!(received.is_memory_type::<gst_allocators::DmaBufMemory>());
        assert_eq!((received.offset(), received.size()), (offset, SIZE));
        assert_eq!(inode_of(received), inode_of(&memory));
        assert_eq!(bytes(sample.buffer().unwrap()), [7; SIZE]);
        assert!(received.flags().contains(gst::MemoryFlags::READONLY));
    }
}

#[test]
fn memory_that_could_shrink_or_get_holes_is_copied() {
    let pools = Pools::new();
    let buffer = |seals| {
        let memory = fd_memory(memfd(5, SIZE, seals), SIZE);
        let mut buffer = gst::Buffer::new();
        buffer.get_mut().unwrap().append_memory(memory);
        buffer
    };
    let sender = pools.sender(&VIDEO.parse().unwrap(), "");
    let receiver = pools.receiver("").connected();
    for (copies, seals) in [SealFlags::empty(), SealFlags::SHRINK]
        .into_iter()
        .enumerate()
    {
        sender.push(buffer(seals));
        assert_eq!(bytes(receiver.next().unwrap().buffer().unwrap()), [5; SIZE]);
        assert_eq!(stat(&sender.pipeline.sink(), "copied"), copies as u64 + 1);
    }
    drop(sender);
    let sender = pools.sender(&VIDEO.parse().unwrap(), "copy=forbid");
    sender.push(buffer(SealFlags::SHRINK));
    let (_, text) = sender.pipeline.wait_error();
    assert_contains(&text, "F_SEAL_FUTURE_WRITE");
}

#[test]
fn planes_in_memories_of_their_own_stay_there() {
    let pools = Pools::new();
    let caps: gst::Caps = "video/x-raw,format=NV12,width=64,height=64,framerate=30/1"
        .parse()
        .unwrap();
    let sender = pools.sender(&caps, "copy=forbid");
    let receiver = pools.receiver("").connected();
    let mut buffer = gst::Buffer::new();
    {
        let buffer = buffer.get_mut().unwrap();
        buffer.append_memory(fd_memory(memfd(1, SIZE, SEALED), SIZE));
        buffer.append_memory(fd_memory(memfd(2, SIZE / 2, SEALED), SIZE / 2));
        gst_video::VideoMeta::add_full(
            buffer,
            gst_video::VideoFrameFlags::empty(),
            gst_video::VideoFormat::Nv12,
            64,
            64,
            &[0, SIZE],
            &[64, 64],
        )
        .unwrap();
    }
    sender.push(buffer);
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(buffer.n_memory(), 2);
    let planes = pixels(&sample);
    assert_eq!(planes[..SIZE], [1; SIZE]);
    assert_eq!(planes[SIZE..], [2; SIZE / 2]);
}

/// A buffer of several memories that are in slots of the pool.
#[test]
fn slots_side_by_side_make_one_frame() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "copy=forbid history=1");
    let receiver = pools.receiver("").connected();
    let sink = sender.pipeline.sink();
    let query = ask(&sink, &VIDEO.parse().unwrap(), false);
    let (allocator, params) = query.allocation_params().next().unwrap();
    let allocator = allocator.unwrap();
    for n in 0..20u8 {
        let mut buffer = gst::Buffer::new();
        for half in 0..2u8 {
            let mut memory = allocator.alloc(SIZE / 2, Some(&params)).unwrap();
            memory
                .get_mut()
                .unwrap()
                .map_writable()
                .unwrap()
                .fill(2 * n + half);
            buffer.get_mut().unwrap().append_memory(memory);
        }
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        let received = bytes(sample.buffer().unwrap());
        assert_eq!(received[..SIZE / 2], [2 * n; SIZE / 2]);
        assert_eq!(received[SIZE / 2..], [2 * n + 1; SIZE / 2]);
    }
    assert_eq!(stat(&sink, "copied"), 0);
    until("slots come back", || stat(&sink, "slots-held") <= 6);
}

/// Frames are forwarded through three pools without a copy.
#[test]
fn a_chain_passes_slots_on() {
    const LOSSLESS: &str = "delivery=lossless wait-for-connection=true sync=false";
    let pools = Pools::new();
    let (second, third) = (pools.pool("second"), pools.pool("third"));
    let sender = pools.sender(&VIDEO.parse().unwrap(), "copy=forbid delivery=lossless");
    let sink = sender.pipeline.sink();
    let pool = offered_pool(&sink, &VIDEO.parse().unwrap());
    let hop = |from: &str, to: &str| {
        let hop = pools.launch(&format!(
            "xmemsrc name=src pool={from} ! queue ! identity ! xmemsink name=sink pool={to} {LOSSLESS}"
        ));
        hop.play();
        hop
    };
    let one = hop(&pools.pool("p"), &second);
    let two = hop(&second, &third);
    let end = pools.launch(&format!(
        "xmemsrc name=src pool={third} ! appsink name=app sync=false max-buffers=1"
    ));
    let app: gst_app::AppSink = end.by_name("app").downcast().unwrap();
    end.play();
    let sources = [&one, &two, &end].map(|pipeline| pipeline.by_name("src"));
    for src in &sources {
        until("connected", || stat(src, "budget") > 0);
    }
    pool.set_active(true).unwrap();
    // Sends a frame. Returns whether it arrives in the memory in which it was written.
    let frame = |fill: u8| {
        // Slots are released along the chain with a delay. A source copies if its budget is used up.
        for src in &sources {
            until("room in the budget", || {
                stat(src, "held") < stat(src, "budget")
            });
        }
        let mut buffer = pool.acquire_buffer(None).unwrap();
        buffer.make_mut().map_writable().unwrap().fill(fill);
        let there = place(&buffer);
        sender.push(buffer);
        let sample = app.try_pull_sample(SOON).expect("a frame");
        let buffer = sample.buffer().unwrap();
        assert_eq!(bytes(buffer), [fill; SIZE]);
        place(buffer) == there
    };
    for n in 0..50 {
        assert!(frame(n), "frame {n} lies elsewhere");
    }
    for hop in [&one, &two] {
        assert_eq!(hop.stat("sink", "copied"), 0);
    }
    assert_eq!(stat(&sink, "copied"), 0);
    drop((one, two, end));
    until("slots come back", || stat(&sink, "slots-held") <= 4);
}
