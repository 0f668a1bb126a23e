// SPDX-License-Identifier: MPL-2.0

//! A program can identify a frame.

use crate::support::*;
use gst::prelude::*;
use gstxmem::FrameInfo;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

#[test]
fn both_sides_and_all_consumers_agree() {
    let pools = Pools::new();
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let offered = offered_pool(&producer.sink(), &VIDEO.parse().unwrap());
    offered.set_active(true).unwrap();
    let receivers = [(); 2].map(|()| pools.receiver("").connected());
    for number in 0..5 {
        let buffer = offered.acquire_buffer(None).unwrap();
        assert_eq!(FrameInfo::of_buffer(&buffer), None, "not published yet");
        let slot = slot_of(&buffer).unwrap();
        let memory = buffer.memory(0).unwrap();
        producer.push(buffer);
        let infos = receivers.each_ref().map(|receiver| {
            let sample = receiver.next().unwrap();
            FrameInfo::of_buffer(sample.buffer().unwrap()).unwrap()
        });
        assert_eq!(infos[0], infos[1]);
        assert_eq!(infos[0].pool, pools.pool("p"));
        assert_eq!(infos[0].sequence, number);
        assert_eq!((infos[0].slot, infos[0].generation), slot);
        // The producer's memory has the same information after publishing.
        let own = FrameInfo::of(&memory).unwrap();
        assert_eq!(own, infos[0]);
    }
}

#[test]
fn parts_are_the_frame_and_copies_are_not() {
    let pools = Pools::new();
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("max-held=1").connected();
    for number in 0..2 {
        producer.push(gst::Buffer::from_slice([number; 64 * 64]));
    }
    let first = receiver.next().unwrap();
    let first = first.buffer().unwrap();
    let info = FrameInfo::of_buffer(first).unwrap();
    let part = first
        .copy_region(gst::BufferCopyFlags::MEMORY, 100..200)
        .unwrap();
    assert_eq!(FrameInfo::of_buffer(&part).as_ref(), Some(&info));
    let copy = first.copy_deep().unwrap();
    assert_eq!(FrameInfo::of_buffer(&copy), None);
    // The budget is used up, so this frame is copied.
    let second = receiver.next().unwrap();
    assert_eq!(FrameInfo::of_buffer(second.buffer().unwrap()), None);
    let foreign = gst::Memory::from_slice([1, 2, 3]);
    assert_eq!(FrameInfo::of(&foreign), None);

    // The frame is also found if the buffer begins with other memory.
    let mut mixed = gst::Buffer::from_slice([0; 4]);
    mixed.make_mut().append_memory(first.memory(0).unwrap());
    assert_eq!(FrameInfo::of_buffer(&mixed), Some(info));
}

/// A frame that is published twice is one slot with two sequence numbers.
#[test]
fn repeated_frames() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc num-buffers=1 ! {VIDEO} ! imagefreeze num-buffers=3 ! {VIDEO} \
         ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    producer.play();
    let infos: Vec<_> = receiver
        .rest()
        .iter()
        .map(|sample| FrameInfo::of_buffer(sample.buffer().unwrap()).unwrap())
        .collect();
    let numbers: Vec<_> = infos.iter().map(|info| info.sequence).collect();
    assert_eq!(numbers, [0, 1, 2]);
    for info in &infos[1..] {
        assert_eq!(
            (info.slot, info.generation),
            (infos[0].slot, infos[0].generation)
        );
    }
}
