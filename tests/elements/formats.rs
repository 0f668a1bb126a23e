// SPDX-License-Identifier: MPL-2.0

//! Any caps, size and layout.

use crate::support::*;
use gst::prelude::*;
use gst_video::prelude::*;

/// Sends the output of `description` through a pool, and checks that it arrives as without a pool.
fn arrives(description: &str, frames: usize, copied: u64) {
    let pools = Pools::new();
    let right = reference(description);
    assert_eq!(right.len(), frames);
    let producer = pools.launch(&format!(
        "{description} ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    producer.play();
    let video = right[0]
        .caps()
        .unwrap()
        .structure(0)
        .unwrap()
        .has_name("video/x-raw");
    for (number, right) in right.iter().enumerate() {
        let sample = receiver
            .next()
            .unwrap_or_else(|| panic!("frame {number} is missing"));
        assert_eq!(sample.caps(), right.caps());
        let (buffer, right_buffer) = (sample.buffer().unwrap(), right.buffer().unwrap());
        if video {
            assert!(pixels(&sample) == pixels(right), "frame {number} differs");
        } else {
            assert!(
                bytes(buffer) == bytes(right_buffer),
                "frame {number} differs"
            );
        }
        assert_eq!(buffer.duration(), right_buffer.duration());
        assert_eq!(buffer.offset(), right_buffer.offset());
        assert_eq!(buffer.offset_end(), right_buffer.offset_end());
        let unset = gst::BufferFlags::TAG_MEMORY | gst::BufferFlags::DISCONT;
        assert_eq!(buffer.flags() - unset, right_buffer.flags() - unset);
    }
    assert!(receiver.next().is_none());
    producer.wait_eos();
    assert_eq!(producer.stat("sink", "published"), frames as u64);
    assert_eq!(producer.stat("sink", "copied"), copied);
    assert_eq!(receiver.stat("received"), frames as u64);
    assert_eq!(receiver.stat("missed"), 0);
    assert_eq!(receiver.stat("copied"), 0);
}

fn raw_video(format: &str) {
    for (width, height) in [(320, 240), (853, 480), (1366, 768), (1, 1)] {
        arrives(
            &format!(
                "videotestsrc num-buffers=4 ! video/x-raw,format={format},width={width},height={height}"
            ),
            4,
            0,
        );
    }
}

#[test]
fn i420() {
    raw_video("I420");
}

#[test]
fn nv12() {
    raw_video("NV12");
}

#[test]
fn yuy2() {
    raw_video("YUY2");
}

#[test]
fn rgb() {
    raw_video("RGB");
}

#[test]
fn rgba() {
    raw_video("RGBA");
}

#[test]
fn p010() {
    raw_video("P010_10LE");
}

#[test]
fn gray8() {
    raw_video("GRAY8");
}

#[test]
fn audio() {
    arrives(
        "audiotestsrc num-buffers=10 ! audio/x-raw,format=S16LE,rate=48000,channels=2",
        10,
        0,
    );
}

#[test]
fn encoded_video_is_copied_once() {
    arrives(
        "videotestsrc num-buffers=10 ! video/x-raw,width=320,height=240 ! x264enc tune=zerolatency threads=1 \
         ! h264parse ! video/x-h264,stream-format=byte-stream,alignment=au",
        10,
        10,
    );
}

#[test]
fn all_pictures_arrive() {
    arrives(
        "videotestsrc num-buffers=10 ! video/x-raw,width=320,height=240 ! pngenc",
        10,
        10,
    );
}

#[test]
fn frames_behind_a_tee_are_copied_once() {
    arrives(
        "videotestsrc num-buffers=10 ! video/x-raw,format=NV12,width=853,height=480 ! tee ! queue",
        10,
        10,
    );
}

#[test]
fn a_frame_in_several_memories_is_copied_into_one() {
    let pools = Pools::new();
    let caps = gst::Caps::new_empty_simple("application/x-test");
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps, LOSSLESS);
    let mut buffer = gst::Buffer::new();
    for part in [&b"one "[..], b"two ", b"three"] {
        buffer
            .make_mut()
            .append_memory(gst::Memory::from_slice(part));
    }
    sender.push(buffer);
    sender.push(gst::Buffer::from_slice(b""));
    sender.finish();
    assert_eq!(
        bytes(receiver.next().unwrap().buffer().unwrap()),
        b"one two three"
    );
    assert_eq!(bytes(receiver.next().unwrap().buffer().unwrap()), b"");
    assert_eq!(sender.pipeline.stat("sink", "copied"), 2);
}

/// Frames with other offsets and strides than the caps imply, sent from the sink's own pool.
fn padded(format: gst_video::VideoFormat) {
    let pools = Pools::new();
    let info = gst_video::VideoInfo::builder(format, 322, 242)
        .fps(gst::Fraction::new(30, 1))
        .build()
        .unwrap();
    let caps = info.to_caps().unwrap();
    let knows_meta = pools.receiver("client-name=knows-meta");
    let knows_none = pools.simple_receiver("client-name=knows-none");
    let sender = pools.sender(&caps, "delivery=lossless copy=forbid");
    until("both are connected", || {
        sender.sink().property::<u32>("num-clients") == 2
    });

    let pool = offered_pool(&sender.sink(), &caps);
    let mut config = pool.config();
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT);
    config.set_video_alignment(&gst_video::VideoAlignment::new(6, 10, 16, 32, &[63; 4]));
    config.set_params(Some(&caps), u32::try_from(info.size()).unwrap(), 2, 0);
    pool.set_config(config).unwrap();
    let (_, size, _, _) = pool.config().params().unwrap();
    assert!(size as usize > info.size(), "the aligned size is reported");
    pool.set_active(true).unwrap();

    let mut sent = Vec::new();
    for number in 0..3 {
        let mut buffer = pool.acquire_buffer(None).unwrap();
        {
            let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
            assert_ne!(meta.stride(), info.stride());
            assert!(meta.stride().iter().all(|stride| stride % 64 == 0));
            assert!(meta.alignment().padding_left() >= 16);
        }
        assert_eq!(
            buffer.map_readable().unwrap().as_ptr() as usize % 64,
            0,
            "the memory is aligned"
        );
        paint(&mut buffer, &info, number);
        sent.push(pixels(
            &gst::Sample::builder().buffer(&buffer).caps(&caps).build(),
        ));
        sender.push(buffer);
    }
    sender.app.end_of_stream().unwrap();
    for (number, sent) in sent.iter().enumerate() {
        let sample = knows_meta.next().unwrap();
        assert!(pixels(&sample) == *sent, "frame {number} differs");
        assert!(slot_of(sample.buffer().unwrap()).is_some());
        let sample = knows_none.next().unwrap();
        assert!(
            pixels(&sample) == *sent,
            "frame {number} differs after its copy"
        );
        assert_eq!(sample.buffer().unwrap().size(), info.size());
        assert!(slot_of(sample.buffer().unwrap()).is_none());
    }
    sender.pipeline.wait_eos();
    assert_eq!(sender.pipeline.stat("sink", "zero-copy"), 3);
    assert_eq!(
        (knows_meta.stat("zero-copy"), knows_meta.stat("copied")),
        (3, 0)
    );
    assert_eq!(
        (knows_none.stat("zero-copy"), knows_none.stat("copied")),
        (0, 3)
    );
}

#[test]
fn padded_i420() {
    padded(gst_video::VideoFormat::I420);
}

#[test]
fn padded_nv12() {
    padded(gst_video::VideoFormat::Nv12);
}

#[test]
fn padded_rgb() {
    padded(gst_video::VideoFormat::Rgb);
}

#[test]
fn padded_p010() {
    padded(gst_video::VideoFormat::P01010le);
}

#[test]
fn a_foreign_frame_keeps_its_layout() {
    let pools = Pools::new();
    let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, 64, 48)
        .build()
        .unwrap();
    let caps = info.to_caps().unwrap();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps, LOSSLESS);
    // The chroma plane comes first, and rows have 96 bytes.
    let mut buffer = gst::Buffer::with_size(96 * 24 + 96 * 48).unwrap();
    gst_video::VideoMeta::add_full(
        buffer.make_mut(),
        gst_video::VideoFrameFlags::empty(),
        gst_video::VideoFormat::Nv12,
        64,
        48,
        &[96 * 24, 0],
        &[96, 96],
    )
    .unwrap();
    paint(&mut buffer, &info, 7);
    let sent = pixels(&gst::Sample::builder().buffer(&buffer).caps(&caps).build());
    sender.push(buffer);
    sender.finish();
    let sample = receiver.next().unwrap();
    let meta = sample
        .buffer()
        .unwrap()
        .meta::<gst_video::VideoMeta>()
        .unwrap();
    assert_eq!(
        (meta.offset(), meta.stride()),
        (&[96 * 24, 0][..], &[96, 96][..])
    );
    assert!(pixels(&sample) == sent);
    assert_eq!(sender.pipeline.stat("sink", "copied"), 1);
}

/// As from decoders that only support tiled formats.
#[test]
fn padded_tiles_keep_their_layout() {
    let pools = Pools::new();
    let format = gst_video::VideoFormat::Nv1264z32;
    let info = |width, height| gst_video::VideoInfo::builder(format, width, height).build();
    let padded = info(256, 96).unwrap();
    let caps = info(128, 64).unwrap().to_caps().unwrap();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps, LOSSLESS);
    let mut buffer = gst::Buffer::with_size(padded.size()).unwrap();
    gst_video::VideoMeta::add_full(
        buffer.make_mut(),
        gst_video::VideoFrameFlags::empty(),
        format,
        128,
        64,
        padded.offset(),
        padded.stride(),
    )
    .unwrap();
    sender.push(buffer);
    sender.finish();
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
    assert_eq!(meta.offset(), padded.offset());
    assert_eq!(meta.stride(), padded.stride());
    assert_eq!((meta.width(), meta.height()), (128, 64));
}

#[test]
fn interlaced_flags_arrive() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc num-buffers=3 ! video/x-raw,format=I420,width=64,height=64,framerate=30/1 \
         ! interlace top-field-first=true field-pattern=1:1 ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    let receiver = pools.receiver("");
    producer.play();
    let sample = receiver.next().unwrap();
    let flags = sample.buffer().unwrap().video_flags();
    assert!(
        flags.contains(gst_video::VideoBufferFlags::TFF),
        "{flags:?}"
    );
}
