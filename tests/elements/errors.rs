// SPDX-License-Identifier: MPL-2.0

//! Errors name the remedy, and occur on the side that can apply it.

// GLib's pointers are not `Send`.
#![allow(unsafe_code)]

use std::os::unix::net::UnixListener;

use crate::support::*;
use gst::{glib::translate::*, prelude::*};

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

/// A pipeline that does not start.
fn faulty(pools: &Pools, description: &str) -> Pipeline {
    let pipeline = pools.launch(description);
    let _ = pipeline.0.set_state(gst::State::Playing);
    pipeline
}

#[test]
fn the_error_of_a_second_sink_names_the_first() {
    let pools = Pools::new();
    let first = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    let text = faulty(&pools, "videotestsrc ! xmemsink pool=POOL")
        .fails_with(gst::ResourceError::Busy, &pools.pool("p"));
    assert_contains(&text, &format!("process {}", std::process::id()));
    // The other processes are not affected.
    first.push(gst::Buffer::from_slice([1; 64 * 64]));
    assert!(receiver.next().is_some());
    first.finish();
    drop(first);
    let again = pools.launch("videotestsrc num-buffers=1 ! xmemsink pool=POOL sync=false");
    again.play();
    again.wait_eos();
}

#[test]
fn bad_names_are_refused_by_both_elements() {
    let pools = Pools::new();
    let long = pools.pool(&"x".repeat(200));
    let directory = format!("{}/", pools.path().display());
    for (name, reason) in [
        ("a\nb", "control character"),
        ("", "empty"),
        ("..", "directory"),
        (&directory, "directory"),
        (&long, "shorter"),
    ] {
        for (factory, other) in [("xmemsink", "src"), ("xmemsrc", "sink")] {
            let element = gst::ElementFactory::make(factory)
                .property("pool", name)
                .build()
                .unwrap();
            let peer = if other == "src" {
                "fakesrc"
            } else {
                "fakesink"
            };
            let peer = gst::ElementFactory::make(peer).build().unwrap();
            let pipeline = Pipeline(gst::Pipeline::new());
            pipeline.0.add_many([&element, &peer]).unwrap();
            let (from, to) = if other == "src" {
                (&peer, &element)
            } else {
                (&element, &peer)
            };
            from.link(to).unwrap();
            assert!(
                pipeline.0.set_state(gst::State::Playing).is_err(),
                "{factory} starts with {name:?}"
            );
            let (error, text) = pipeline.wait_error();
            assert!(error.matches(gst::ResourceError::Settings), "{text}");
            assert!(text.contains(reason), "{name:?}: {text}");
        }
    }
}

#[test]
fn a_socket_of_another_program_is_left_unchanged() {
    let pools = Pools::new();
    let _other = UnixListener::bind(pools.pool("p")).unwrap();
    faulty(&pools, "xmemsrc pool=POOL ! fakesink")
        .fails_with(gst::ResourceError::OpenRead, "p.sock");
}

#[test]
fn a_file_is_not_a_pool() {
    let pools = Pools::new();
    std::fs::write(pools.pool("p"), "something").unwrap();
    faulty(&pools, "videotestsrc ! xmemsink pool=POOL")
        .fails_with(gst::ResourceError::OpenReadWrite, "not a socket");
    faulty(&pools, "xmemsrc pool=POOL ! fakesink")
        .fails_with(gst::ResourceError::OpenRead, "not a socket");
    assert_eq!(std::fs::read(pools.pool("p")).unwrap(), b"something");
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let pools = Pools::new();
    for (settings, part) in [
        ("max-slots=3 history=2", "max-slots is 3"),
        ("max-slots=7 min-slots=8", "lower min-slots"),
        ("history=65535", "at most 65534"),
    ] {
        let sink = format!("videotestsrc ! xmemsink pool=POOL {settings}");
        faulty(&pools, &sink).fails_with(gst::ResourceError::Settings, part);
    }
}

/// Whoever has the descriptor of a DMA buffer can write, so both sides must agree to that.
#[test]
fn dma_buffers_that_are_not_to_be_had_are_an_error() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "");
    sender.push(gst::Buffer::with_size(64 * 64).unwrap());
    let source = "xmemsrc pool=POOL dmabuf=true start-from=newest ! fakesink";
    faulty(&pools, source).fails_with(gst::ResourceError::Settings, "set dmabuf=allow on xmemsink");
    drop(sender);

    let sink = "videotestsrc ! xmemsink pool=POOL dmabuf=allow";
    faulty(&pools, &format!("{sink} backing=posix-shm"))
        .fails_with(gst::ResourceError::Settings, "use backing memfd");
    if std::fs::File::open("/dev/udmabuf").is_err() {
        faulty(&pools, sink).fails_with(gst::ResourceError::OpenReadWrite, "/dev/udmabuf");
    }
}

#[test]
fn too_few_slots_for_upstream_are_an_error() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let sender = pools.sender(&caps, "max-slots=8");
    let pool = offered_pool(&sender.sink(), &caps);
    let mut config = pool.config();
    config.set_params(Some(&caps), 64 * 64, 7, 0);
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    sender.push(gst::Buffer::from_slice([1; 64 * 64]));
    let (error, text) = sender.pipeline.wait_error();
    assert!(error.matches(gst::ResourceError::Settings), "{text}");
    assert!(text.contains("max-slots") && text.contains('7'), "{text}");
}

#[test]
fn a_frame_larger_than_the_pool_is_an_error() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "max-bytes=100000");
    sender.push(gst::Buffer::with_size(1 << 20).unwrap());
    sender.fails_with(gst::ResourceError::NoSpaceLeft, "max-bytes");
}

/// The error is in upstream's data, so no consumer ends.
#[test]
fn frames_that_do_not_match_their_caps_are_not_published() {
    init();
    let caps = "video/x-raw,format=RGB,width=100,height=100,framerate=30/1";
    let frame = |format, width, stride| {
        let mut buffer = gst::Buffer::with_size(30_000).unwrap();
        let flags = gst_video::VideoFrameFlags::empty();
        let meta = buffer.make_mut();
        gst_video::VideoMeta::add_full(meta, flags, format, width, 100, &[0], &[stride]).unwrap();
        buffer
    };
    let good = || frame(gst_video::VideoFormat::Rgb, 100, 300);
    for bad in [
        frame(gst_video::VideoFormat::Rgb, 50, 300),
        frame(gst_video::VideoFormat::Bgr, 100, 300),
        frame(gst_video::VideoFormat::Rgb, 100, 301),
        gst::Buffer::with_size(29_999).unwrap(),
    ] {
        let pools = Pools::new();
        let sender = pools.sender(&caps.parse().unwrap(), "");
        let receiver = pools.receiver("on-producer-lost=eos").connected();
        for sent in 1..=2 {
            sender.push(good());
            assert!(receiver.next().is_some());
            sender.push(bad.clone());
            let message = sender.pipeline.wait(&[gst::MessageType::Warning]);
            let gst::MessageView::Warning(warning) = message.view() else {
                unreachable!()
            };
            assert!(warning.error().matches(gst::StreamError::Format));
            let text = warning.error().message().to_owned();
            assert_contains(&text, "GstVideoMeta");
            // Counted when the next frame arrives.
            assert_eq!(stat(&sender.sink(), "skipped"), sent - 1);
        }
        // An upstream element that sends only such frames is at fault.
        (0..9).for_each(|_| sender.push(bad.clone()));
        sender.fails_with(gst::StreamError::Format, "10 frames in a row");
        assert_eq!(stat(&sender.sink(), "published"), 2);
        drop(sender);
        receiver.pipeline.wait_eos();
    }
}

/// All consumers would fail with such caps.
#[test]
fn caps_that_no_other_process_can_read_are_an_error_of_the_producer() {
    let pools = Pools::new();
    let object = gst::Pad::new(gst::PadDirection::Src).to_send_value();
    let inside = gst::Array::new([object.clone()]).to_send_value();
    let pointer = gst::glib::Value::from_type(gst::glib::Type::POINTER);
    // SAFETY: a null pointer may be sent to other threads.
    let pointer = unsafe { from_glib_none::<_, gst::glib::SendValue>(pointer.to_glib_none().0) };
    for value in [object, inside, pointer] {
        let mut caps: gst::Caps = VIDEO.parse().unwrap();
        let sender = pools.sender(&caps, "");
        let receiver = pools.receiver("on-producer-lost=eos").connected();
        sender.push(gst::Buffer::from_slice([1; 64 * 64]));
        assert!(receiver.next().is_some());
        let structure = caps.make_mut().structure_mut(0).unwrap();
        structure.set_value("odd", value);
        sender.app.set_caps(Some(&caps));
        sender.push(gst::Buffer::from_slice([1; 64 * 64]));
        sender.fails_with(gst::StreamError::Format, "the field odd");
        drop(sender);
        // The consumer never got the caps.
        receiver.pipeline.wait_eos();
    }
}

#[test]
fn a_forbidden_copy_names_its_cause() {
    let pools = Pools::new();
    for (upstream, cause) in [
        ("videotestsrc ! tee", "behind a tee"),
        (
            "videotestsrc ! video/x-raw,width=320,height=240 ! x264enc",
            "x264enc",
        ),
    ] {
        let text = faulty(
            &pools,
            &format!("{upstream} ! xmemsink pool=POOL copy=forbid"),
        )
        .fails_with(gst::ResourceError::Settings, "copy=forbid");
        assert_contains(&text, "SystemMemory");
        assert_contains(&text, cause);
    }
    let sender = pools.sender(&VIDEO.parse().unwrap(), "copy=forbid");
    let mut buffer = gst::Buffer::from_slice([1; 32 * 64]);
    buffer
        .make_mut()
        .append_memory(gst::Memory::from_slice([1; 32 * 64]));
    sender.push(buffer);
    let (_, text) = sender.pipeline.wait_error();
    assert_contains(&text, "2 memories");
}

#[test]
fn a_forbidden_copy_for_lack_of_slots_is_reported() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let sender = pools.sender(&caps, "copy=forbid max-slots=4 history=2");
    let pool = offered_pool(&sender.sink(), &caps);
    pool.set_active(true).unwrap();
    let mut buffers: Vec<_> = (0..5).map(|_| pool.acquire_buffer(None).unwrap()).collect();
    sender.push(buffers.pop().unwrap());
    let (_, text) = sender.pipeline.wait_error();
    assert_contains(&text, "raise max-slots");
}

#[test]
fn without_a_free_slot_live_frames_are_dropped_and_counted() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let sender = pools.sender(&caps, "max-slots=4 history=2");
    let pool = offered_pool(&sender.sink(), &caps);
    pool.set_active(true).unwrap();
    let sink = sender.sink();
    // Upstream keeps frames that are published.
    let mut kept = Vec::new();
    for published in 1..=4 {
        let buffer = pool.acquire_buffer(None).unwrap();
        sender.push(buffer.clone());
        sender.until_published(published);
        kept.push(buffer);
    }
    for _ in 0..3 {
        sender.push(pool.acquire_buffer(None).unwrap());
    }
    until("three frames dropped", || stat(&sink, "dropped") == 3);
    assert_eq!(stat(&sink, "published"), 4);
    drop(kept);
    sender.push(pool.acquire_buffer(None).unwrap());
    sender.until_published(5);
}

#[test]
fn caps_of_a_dma_buffer_without_the_feature_are_refused() {
    let pools = Pools::new();
    let caps = "video/x-raw(memory:DMABuf),format=DMA_DRM,drm-format=NV12,width=64,height=64,framerate=30/1";
    let sender = pools.sender(&caps.parse().unwrap(), "");
    sender.push(gst::Buffer::with_size(64 * 96).unwrap());
    let (_, text) = sender.pipeline.wait_error();
    assert_contains(&text, "without that feature");
}

#[test]
fn without_a_producer_the_source_reports_where_it_waits() {
    let pools = Pools::new();
    let pipeline = pools.launch("xmemsrc pool=POOL ! fakesink");
    pipeline.play();
    let message = pipeline.wait(&[gst::MessageType::Warning]);
    let gst::MessageView::Warning(warning) = message.view() else {
        unreachable!()
    };
    assert!(warning.error().matches(gst::ResourceError::NotFound));
    assert_contains(&warning.error().to_string(), &pools.pool("p"));
    assert!(
        warning.error().message().contains("pools in"),
        "{}",
        warning.error()
    );
    // The source still waits.
    let receiver_like = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    receiver_like.push(gst::Buffer::from_slice([1; 64 * 64]));
    receiver_like.finish();
    pipeline.wait_eos();
}

#[test]
fn a_producer_that_does_not_come_in_time_is_an_error() {
    let pools = Pools::new();
    faulty(
        &pools,
        "xmemsrc pool=POOL connection-timeout=50000000 ! fakesink",
    )
    .fails_with(gst::ResourceError::NotFound, &pools.pool("p"));
}

#[test]
fn a_waiting_source_can_be_stopped() {
    let pools = Pools::new();
    for _ in 0..3 {
        let pipeline = pools.launch("xmemsrc pool=POOL ! fakesink");
        pipeline.play();
        pipeline.0.set_state(gst::State::Paused).unwrap();
        pipeline.play();
        pipeline.stop();
    }
}

/// Two versions of GStreamer may place the planes of a format differently.
#[test]
fn an_error_about_planes_names_both_versions_of_gstreamer() {
    use xmem_core::{FrameMeta, Producer, Sticky};
    let pools = Pools::new();
    let own = {
        let sender = pools.sender(&VIDEO.parse().unwrap(), "");
        sender.push(gst::Buffer::with_size(64 * 64).unwrap());
        sender.until_published(1);
        let consumer = xmem_core::Consumer::builder(pools.pool("p"));
        let consumer = consumer.connect().unwrap();
        until("the sticky state", || consumer.sticky().is_some());
        let sticky = consumer.sticky().unwrap();
        sticky.text("gstreamer").unwrap().to_owned()
    };
    let producer = Producer::builder(pools.pool("p")).build().unwrap();
    for (version, is_named) in [("1.999.0", true), (own.as_str(), false)] {
        let mut sticky = Sticky::new();
        sticky.set("caps", VIDEO);
        sticky.set("gstreamer", version);
        producer.set_sticky(&sticky).unwrap();
        let frame = producer.acquire(64 * 63).unwrap();
        frame.publish(FrameMeta::new(64 * 63)).unwrap();
        let (_, text) =
            faulty(&pools, "xmemsrc pool=POOL start-from=newest ! fakesink").wait_error();
        let names = [&own, version].map(|version| text.contains(version));
        assert_eq!(names, [is_named; 2], "{text}");
    }
}

/// Invalid data of a producer must not make a consumer read outside of the frame.
#[test]
fn a_producer_with_invalid_data_is_an_error() {
    use xmem_core::{FrameMeta, Producer, Sticky, Text, VideoLayout};
    let pools = Pools::new();
    let producer = Producer::builder(pools.pool("p")).build().unwrap();
    type Change = dyn Fn(&mut Sticky, &mut FrameMeta);
    let changes: [&Change; 6] = [
        &|sticky, _| sticky.set("caps", "neither, caps, nor"),
        &|sticky, _| sticky.set("caps", "video/x-raw,format={I420,NV12},width=[1,100]"),
        // GStreamer's parser aborts the process on this text.
        &|sticky, _| sticky.set("caps", format!("{VIDEO},x={}", "{".repeat(200_000))),
        &|_, meta| meta.layout_mut().video.as_mut().unwrap().strides[0] = 1 << 20,
        &|_, meta| meta.layout_mut().video.as_mut().unwrap().n_planes = 3,
        &|_, meta| (meta.layout_mut().video, meta.size) = (None, 64 * 63),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut sticky = Sticky::new();
        sticky.set("caps", VIDEO);
        let mut meta = FrameMeta::new(64 * 64);
        meta.layout_mut().video = Some(VideoLayout {
            format: Text::new("GRAY8"),
            width: 64,
            height: 64,
            n_planes: 1,
            strides: [64, 0, 0, 0],
            ..VideoLayout::default()
        });
        change(&mut sticky, &mut meta);
        producer.set_sticky(&sticky).unwrap();
        producer.acquire(64 * 64).unwrap().publish(meta).unwrap();
        let (error, text) =
            faulty(&pools, "xmemsrc pool=POOL start-from=newest ! fakesink").wait_error();
        assert!(
            error.matches(gst::StreamError::Format),
            "change {number}: {text}"
        );
        // The message quotes the producer's text, without Rust's debug format.
        assert!(!text.contains("Some("), "{text}");
    }
}
