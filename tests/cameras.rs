// SPDX-License-Identifier: MPL-2.0

//! What cameras give that test sources do not: caps of DMA buffers. Here, a sealed memfd in a GstDmaBufMemory is the memory of the driver.

#[path = "support/descriptors.rs"]
mod descriptors;
mod support;

use std::fs;

use descriptors::*;
use gst::prelude::*;
use gst_video::{VideoFormat, VideoFrameFlags, VideoMeta};
use rustix::fs::SealFlags;
use support::{process::*, *};

/// The caps that v4l2src of GStreamer 1.26 prefers for a camera of raw video. Elements upstream of xmemsink, such as decodebin, accept
/// them, and few elements downstream of xmemsrc do.
const DRM: &str =
    "video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=YUYV,width=64,height=64,framerate=30/1";
const PLAIN: &str = "video/x-raw,format=YUY2,width=64,height=64,framerate=30/1";
const ROW: usize = 128;

/// A white frame with rows of this distance. The bytes between the rows are not white.
fn white(memory: gst::Memory, stride: usize) -> gst::Buffer {
    let mut buffer = gst::Buffer::new();
    let content = buffer.get_mut().unwrap();
    content.append_memory(memory);
    for row in content.map_writable().unwrap().chunks_mut(stride) {
        for pixel in row[..ROW].chunks_mut(2) {
            pixel.copy_from_slice(&[235, 128]);
        }
    }
    let strides = [i32::try_from(stride).unwrap()];
    let none = VideoFrameFlags::empty();
    VideoMeta::add_full(content, none, VideoFormat::Yuy2, 64, 64, &[0], &strides).unwrap();
    buffer
}

fn of_driver(stride: usize) -> gst::Memory {
    let size = stride * 64;
    dmabuf_memory(memfd(7, size, SealFlags::SHRINK), size)
}

/// Shares three frames. Returns the pool's caps, and how many frames were copied.
#[track_caller]
fn are_read_in_another_process(caps: &str, frame: impl Fn() -> gst::Buffer) -> (String, u64) {
    let pools = prepared();
    let sender = pools.sender(&caps.parse().unwrap(), LOSSLESS);
    let file = pools.file("rgb");
    let mut consumer = Launch::new(
        &pools,
        "consumer",
        &["-q"],
        &format!(
            "xmemsrc pool={} ! videoconvert ! video/x-raw,format=RGB ! filesink location={}",
            pools.pool("p"),
            file.display()
        ),
    );
    (0..3).for_each(|_| sender.push(frame()));
    sender.finish();
    consumer.succeeds();
    let rgb = fs::read(file).unwrap();
    let dark = rgb.iter().filter(|byte| **byte < 250).count();
    assert_eq!((rgb.len(), dark), (3 * 3 * 64 * 64, 0));
    let stats = stats_of(&pools.pool("p"));
    let (_, caps) = stats.sticky.iter().find(|(key, _)| key == "caps").unwrap();
    (caps.clone(), stats.copied)
}

#[test]
fn linear_dma_buffers_are_read_by_every_consumer() {
    for stride in [ROW, 256] {
        let frame = || white(of_driver(stride), stride);
        for caps in [DRM, &DRM.replace("YUYV", "(string)YUYV:0x0000000000000000")] {
            let (shared, copied) = are_read_in_another_process(caps, frame);
            assert!(
                shared.starts_with("video/x-raw, format=(string)YUY2"),
                "{shared}"
            );
            assert_eq!(copied, 0);
        }
    }
}

/// v4l2src announces DMA buffers for v4l2loopback, which has none.
#[test]
fn frames_that_are_announced_as_dma_buffers_can_lie_elsewhere() {
    let frame = || white(gst::Memory::from_mut_slice(vec![0; ROW * 64]), ROW);
    let (shared, copied) = are_read_in_another_process(DRM, frame);
    assert!(shared.contains("YUY2") && !shared.contains("DMABuf"));
    assert_eq!(copied, 3);
}

/// Tiles, and formats without a name, can only be read with the help of a device.
#[test]
fn other_dma_buffers_keep_their_caps() {
    for drm_format in ["YUYV:0x0100000000000002", "XXXX"] {
        let pools = Pools::new();
        let caps = DRM.replace("YUYV", &format!("(string){drm_format}"));
        let caps: gst::Caps = caps.parse().unwrap();
        let sender = pools.sender(&caps, "");
        let receiver = pools.receiver("").connected();
        sender.push(white(of_driver(ROW), ROW));
        let sample = receiver.next().unwrap();
        assert_eq!(sample.caps_owned().unwrap(), caps);
    }
}

#[test]
fn a_source_that_can_do_without_the_feature_does() {
    let pools = Pools::new();
    let sender = pools.sender(&PLAIN.parse().unwrap(), "");
    let pad = sender.sink().static_pad("sink").unwrap();
    let both: gst::Caps = format!("{DRM};{PLAIN};image/jpeg").parse().unwrap();
    let answer = pad.query_caps(Some(&both));
    let first = answer.features(0).unwrap();
    assert!(!first.contains("memory:DMABuf"), "{answer}");
    assert_eq!(answer, both, "nothing is refused");
    let only: gst::Caps = DRM.parse().unwrap();
    assert_eq!(pad.query_caps(Some(&only)), only);
}
