// SPDX-License-Identifier: MPL-2.0

//! GstMeta are transported with their frames.
//!
//! This program runs both sides. It starts itself as the test `child` with a role in `XMEM_TEST_ROLE` and the path of a pool in
//! `XMEM_TEST_POOL`. It can therefore also run with another version of GStreamer: the producer adds the metas that its version has
//! since 1.22, and the consumer checks those that its own version has.

#[path = "support/newer_metas.rs"]
mod newer_metas;
mod support;

use std::process::{Child, Command, Stdio};

use gst::{meta::CustomMeta, prelude::*};
use gst_audio::AudioMeta;
use gst_video::{
    VideoCaptionMeta, VideoCaptionType, VideoCropMeta, VideoFrameFlags, VideoMeta,
    VideoRegionOfInterestMeta, VideoTimeCode, VideoTimeCodeMeta,
};
use support::*;
use xmem_core::{Attachments, FrameMeta, Producer, SlotSpec, Sticky, Text, VideoLayout};

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=48,framerate=30/1";
const SIZE: usize = 64 * 48;
const AUDIO: &str =
    "audio/x-raw,format=S16LE,rate=8000,channels=2,channel-mask=(bitmask)3,layout=non-interleaved";
const CUSTOM: &str = "XmemTestCustomMeta";
const FRAMES: u32 = 5;

fn caps(text: &str) -> gst::Caps {
    init();
    text.parse().unwrap()
}

fn region(buffer: &mut gst::BufferRef, kind: &str, number: u32) {
    let mut region = VideoRegionOfInterestMeta::add(buffer, kind, (number, 2, 3, 4));
    region.set_id(i32::try_from(number).unwrap());
    region.set_parent_id(-7);
    region.add_param(
        gst::Structure::builder("detection")
            .field("confidence", 0.5)
            .field("label", "Käse; \"quoted\", {")
            .build(),
    );
    region.add_param(
        gst::Structure::builder("roi/x264")
            .field("delta-qp", -3)
            .build(),
    );
}

/// A frame with all video metas of GStreamer 1.22.
fn video_frame(number: u32) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_mut_slice(vec![7; SIZE]);
    let b = buffer.make_mut();
    VideoMeta::add(
        b,
        VideoFrameFlags::TFF,
        gst_video::VideoFormat::Gray8,
        64,
        48,
    )
    .unwrap();
    VideoCropMeta::add(b, (1, 2, 30, 40));
    region(b, "face", number);
    region(b, "hand", number + 1);
    let clock = gst::Caps::new_empty_simple("timestamp/x-ntp");
    let time = gst::ClockTime::from_seconds(u64::from(number));
    gst::ReferenceTimestampMeta::add(b, &clock, time, gst::ClockTime::SECOND);
    let code = VideoTimeCode::new(
        gst::Fraction::new(30, 1),
        None,
        gst_video::VideoTimeCodeFlags::empty(),
        1,
        2,
        3,
        number,
        0,
    );
    VideoTimeCodeMeta::add(b, &code.try_into().unwrap());
    VideoCaptionMeta::add(b, VideoCaptionType::Cea708Raw, &[1, 2, number as u8]);
    if !CustomMeta::is_registered(CUSTOM) {
        CustomMeta::register(CUSTOM, &[]);
    }
    let mut custom = CustomMeta::add(b, CUSTOM).unwrap();
    custom.mut_structure().set("number", number);
    buffer
}

/// As `video_frame`, with metas newer than 1.22, which the frame lists.
fn newer_video_frame(number: u32) -> gst::Buffer {
    let mut buffer = video_frame(number);
    let b = buffer.make_mut();
    let mut newer = Vec::new();
    if newer_metas::register_foreign() {
        newer_metas::add_foreign(b, number);
        newer.push(newer_metas::FOREIGN);
    }
    if let Some(analytics) = newer_metas::Analytics::load() {
        analytics.add(b, number as i32);
        newer.push(newer_metas::ANALYTICS);
    }
    let mut custom = CustomMeta::from_mut_buffer(b, CUSTOM).unwrap();
    custom.mut_structure().set("newer", newer.join(" "));
    buffer
}

/// Checks metas newer than 1.22. Returns the names of those that this process does not support.
fn check_newer(buffer: &gst::BufferRef, number: u32) -> Vec<&'static str> {
    let custom = CustomMeta::from_buffer(buffer, CUSTOM).unwrap();
    let newer = custom.structure().get::<&str>("newer").unwrap();
    println!("frame {number} has {newer:?} besides what 1.22 has");
    let mut lost = Vec::new();
    if newer.contains(newer_metas::FOREIGN) {
        if newer_metas::register_foreign() {
            assert_eq!(newer_metas::foreign_of(buffer), Some(number));
        } else {
            lost.push(newer_metas::FOREIGN);
        }
    }
    if newer.contains(newer_metas::ANALYTICS) {
        match newer_metas::Analytics::load() {
            Some(analytics) => analytics.check(buffer, number as i32),
            None => lost.push(newer_metas::ANALYTICS),
        }
    }
    lost
}

fn check_video_frame(buffer: &gst::BufferRef, number: u32) {
    assert_eq!(bytes(buffer), [7; SIZE]);
    let video = buffer.meta::<VideoMeta>().unwrap();
    assert_eq!(video.video_frame_flags(), VideoFrameFlags::TFF);
    let crop = buffer.meta::<VideoCropMeta>().unwrap();
    assert_eq!(crop.rect(), (1, 2, 30, 40));
    let regions: Vec<_> = buffer.iter_meta::<VideoRegionOfInterestMeta>().collect();
    assert_eq!(regions.len(), 2);
    for (region, (kind, number)) in regions.iter().zip([("face", number), ("hand", number + 1)]) {
        assert_eq!(region.roi_type(), kind);
        assert_eq!(region.rect(), (number, 2, 3, 4));
        assert_eq!(region.id(), number as i32);
        assert_eq!(region.parent_id(), -7);
        assert_eq!(region.params().count(), 2);
        let detection = region.param("detection").unwrap();
        assert_eq!(detection.get::<f64>("confidence"), Ok(0.5));
        assert_eq!(
            detection.get::<&str>("label").unwrap(),
            "Käse; \"quoted\", {"
        );
        let encoder = region.param("roi/x264").unwrap();
        assert_eq!(encoder.get::<i32>("delta-qp"), Ok(-3));
    }
    let reference = buffer.meta::<gst::ReferenceTimestampMeta>().unwrap();
    assert!(
        reference
            .reference()
            .structure(0)
            .unwrap()
            .has_name("timestamp/x-ntp")
    );
    assert_eq!(reference.timestamp().seconds(), u64::from(number));
    assert_eq!(reference.duration(), Some(gst::ClockTime::SECOND));
    let code = buffer.meta::<VideoTimeCodeMeta>().unwrap().tc();
    assert_eq!((code.hours(), code.frames()), (1, number));
    assert_eq!(code.fps(), gst::Fraction::new(30, 1));
    let caption = buffer.meta::<VideoCaptionMeta>().unwrap();
    assert_eq!(caption.caption_type(), VideoCaptionType::Cea708Raw);
    assert_eq!(caption.data(), [1, 2, number as u8]);
    let custom = CustomMeta::from_buffer(buffer, CUSTOM).unwrap();
    assert_eq!(custom.structure().get::<u32>("number"), Ok(number));
}

/// Two channels, the second one first, with a gap between them.
fn audio_frame() -> gst::Buffer {
    let info = gst_audio::AudioInfo::from_caps(&caps(AUDIO)).unwrap();
    let mut buffer = gst::Buffer::from_mut_slice((0..100).collect::<Vec<u8>>());
    AudioMeta::add(buffer.make_mut(), &info, 20, &[60, 0]).unwrap();
    gst_audio::AudioLevelMeta::add(buffer.make_mut(), 30, true);
    buffer
}

fn check_audio_frame(sample: &gst::Sample) {
    let buffer = sample.buffer().unwrap();
    assert_eq!(bytes(buffer), (0..100).collect::<Vec<u8>>());
    let meta = buffer.meta::<AudioMeta>().unwrap();
    assert_eq!((meta.samples(), meta.offsets()), (20, &[60, 0][..]));
    let info = gst_audio::AudioInfo::from_caps(sample.caps().unwrap()).unwrap();
    assert_eq!(meta.info(), &info);
    let channels = gst_audio::AudioBufferRef::from_buffer_ref_readable(buffer, &info).unwrap();
    assert_eq!(channels.plane_data(0).unwrap()[0], 60);
    assert_eq!(channels.plane_data(1).unwrap()[0], 0);
    let level = buffer.meta::<gst_audio::AudioLevelMeta>().unwrap();
    assert_eq!((level.level(), level.voice_activity()), (30, true));
}

/// Publishes frames in a pool that waits for its consumer, and ends the stream.
fn produce(pool: &str, format: &str, frames: impl IntoIterator<Item = gst::Buffer>) {
    let pools = Pools::new();
    let sender = pools.sender(&caps(format), &format!("pool={pool} {LOSSLESS}"));
    frames.into_iter().for_each(|frame| sender.push(frame));
    sender.finish();
    assert_eq!(sender.pipeline.stat("sink", "metas-dropped"), 0);
}

fn consume(pool: &str) -> (Receiver, Vec<gst::Sample>) {
    let receiver = Pools::new().receiver(&format!("pool={pool} max-held=16"));
    let samples = receiver.rest();
    assert_eq!(samples.len(), FRAMES as usize);
    (receiver, samples)
}

/// Runs one side of a test in a child process. Does nothing in a normal test run.
#[test]
fn child() {
    let (Ok(role), Ok(pool)) = (
        std::env::var("XMEM_TEST_ROLE"),
        std::env::var("XMEM_TEST_POOL"),
    ) else {
        return;
    };
    init();
    match role.as_str() {
        "produce-video" => produce(&pool, VIDEO, (0..FRAMES).map(newer_video_frame)),
        "consume-video" => {
            newer_metas::register_foreign();
            let (receiver, samples) = consume(&pool);
            let mut lost = Vec::new();
            for (number, sample) in (0..).zip(samples) {
                check_video_frame(sample.buffer().unwrap(), number);
                lost.extend(check_newer(sample.buffer().unwrap(), number));
            }
            // Unsupported metas are counted, and have no other effect.
            assert_eq!(receiver.stat("metas-dropped"), lost.len() as u64);
            for name in lost {
                assert_eq!(dropped_metas(&receiver.src(), name), u64::from(FRAMES));
            }
        }
        "produce-audio" => produce(&pool, AUDIO, (0..FRAMES).map(|_| audio_frame())),
        "consume-audio" => {
            let (receiver, samples) = consume(&pool);
            samples.iter().for_each(check_audio_frame);
            assert_eq!(receiver.stat("metas-dropped"), 0);
        }
        other => panic!("no role {other:?}"),
    }
    println!("done: {role}, {}", gst::version_string());
}

/// A child process. It is killed when it is dropped.
struct Role(Child);

impl Role {
    fn start(role: &str, pool: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("XMEM_TEST_ROLE", role)
            .env("XMEM_TEST_POOL", pool)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    #[track_caller]
    fn succeeds(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn between_processes(what: &str) {
    let pools = Pools::new();
    let consumer = Role::start(&format!("consume-{what}"), &pools.pool("p"));
    let producer = Role::start(&format!("produce-{what}"), &pools.pool("p"));
    producer.succeeds();
    consumer.succeeds();
}

#[test]
fn video_metas_arrive_in_another_process() {
    between_processes("video");
}

#[test]
fn audio_metas_arrive_in_another_process() {
    between_processes("audio");
}

/// Buffers in slots of the sink, as upstream gets them.
fn slot_frames(sender: &Sender) -> impl Fn() -> gst::Buffer {
    let caps = caps(VIDEO);
    let pool = offered_pool(&sender.sink(), &caps);
    let mut config = pool.config();
    config.set_params(Some(&caps), SIZE as u32, 2, 0);
    pool.set_config(config).unwrap();
    pool.set_active(true).unwrap();
    move || pool.acquire_buffer(None).unwrap()
}

#[test]
fn with_more_regions_than_a_slot_has_room_for_no_frame_is_copied() {
    const REGIONS: u32 = 1000;
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(VIDEO), LOSSLESS);
    let frame = slot_frames(&sender);
    for number in 0..10 {
        let mut buffer = frame();
        for region_number in 0..REGIONS {
            region(buffer.make_mut(), "face", region_number);
        }
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        let regions: Vec<_> = buffer.iter_meta::<VideoRegionOfInterestMeta>().collect();
        assert_eq!(regions.len(), REGIONS as usize);
        for (region, number) in regions.iter().zip(0..) {
            assert_eq!(region.rect(), (number, 2, 3, 4));
        }
        let copied = sender.pipeline.stat("sink", "copied");
        assert_eq!(copied, 0, "frame {number}");
    }
    sender.finish();
    assert_eq!(sender.pipeline.stat("sink", "zero-copy"), 10);
}

#[test]
fn a_slot_without_room_for_metas_is_passed_on_as_a_part() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(VIDEO), &format!("copy=forbid meta-room=0 {LOSSLESS}"));
    let frame = slot_frames(&sender);
    let mut buffer = frame();
    buffer.make_mut().map_writable().unwrap().fill(5);
    let there = place(&buffer);
    (0..20).for_each(|number| region(buffer.make_mut(), "face", number));
    sender.push(buffer);
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(place(buffer), there);
    assert_eq!(bytes(buffer), vec![5; SIZE]);
    let regions = buffer.iter_meta::<VideoRegionOfInterestMeta>();
    assert_eq!(regions.count(), 20);
    sender.finish();
}

/// A published frame cannot become a part, and its slot has limited space.
#[test]
fn a_repeated_frame_that_gets_more_metas_names_the_room_it_needs() {
    let pools = Pools::new();
    let sender = pools.sender(&caps(VIDEO), "copy=forbid meta-room=64");
    let frame = slot_frames(&sender);
    let buffer = frame();
    sender.push(buffer.copy());
    let mut again = buffer.copy();
    // The frame's slot is one page.
    let caption = vec![5; rustix::param::page_size()];
    VideoCaptionMeta::add(again.make_mut(), VideoCaptionType::Cea708Raw, &caption);
    sender.push(again);
    sender.fails_with(gst::ResourceError::Settings, "meta-room");
}

#[test]
fn a_repeated_frame_keeps_its_metas() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(VIDEO), &format!("copy=forbid {LOSSLESS}"));
    let frame = slot_frames(&sender);
    let mut buffer = frame();
    region(buffer.make_mut(), "face", 3);
    VideoCaptionMeta::add(buffer.make_mut(), VideoCaptionType::Cea708Raw, &[5; 300]);
    for _ in 0..20 {
        // As videorate does.
        sender.push(buffer.copy());
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        assert!(buffer.meta::<VideoRegionOfInterestMeta>().is_some());
        assert_eq!(buffer.meta::<VideoCaptionMeta>().unwrap().data(), [5; 300]);
    }
    sender.finish();
}

fn dropped_metas(element: &gst::Element, name: &str) -> u64 {
    let stats = element.property::<gst::Structure>("stats");
    let metas = stats.get::<gst::Structure>("dropped-metas").unwrap();
    metas.get(name).unwrap_or(0)
}

#[test]
fn metas_that_cannot_be_transported_are_named_once() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = pools.sender(&caps(VIDEO), LOSSLESS);
    let name = "GstVideoOverlayCompositionMeta";
    for _ in 0..3 {
        let mut buffer = gst::Buffer::from_mut_slice(vec![7; SIZE]);
        let mut pixels = gst::Buffer::from_mut_slice(vec![0; 4 * 4 * 4]);
        VideoMeta::add(
            pixels.make_mut(),
            VideoFrameFlags::empty(),
            gst_video::VideoFormat::Bgra,
            4,
            4,
        )
        .unwrap();
        let rectangle = gst_video::VideoOverlayRectangle::new_raw(
            &pixels,
            0,
            0,
            4,
            4,
            gst_video::VideoOverlayFormatFlags::PREMULTIPLIED_ALPHA,
        );
        let overlay = gst_video::VideoOverlayComposition::new(Some(&rectangle)).unwrap();
        gst_video::VideoOverlayCompositionMeta::add(buffer.make_mut(), &overlay);
        let param = gst::Structure::builder("param")
            .field("pad", gst::Pad::new(gst::PadDirection::Src))
            .build();
        VideoRegionOfInterestMeta::add(buffer.make_mut(), "face", (0, 0, 1, 1)).add_param(param);
        let mut custom = {
            if !CustomMeta::is_registered(CUSTOM) {
                CustomMeta::register(CUSTOM, &[]);
            }
            CustomMeta::add(buffer.make_mut(), CUSTOM).unwrap()
        };
        custom.mut_structure().set("good", 1);
        custom
            .mut_structure()
            .set("bad", gst::Pad::new(gst::PadDirection::Src));
        sender.push(buffer);
        let sample = receiver.next().unwrap();
        let custom = CustomMeta::from_buffer(sample.buffer().unwrap(), CUSTOM).unwrap();
        assert_eq!(custom.structure().n_fields(), 1, "the rest comes along");
    }
    let warnings = sender.pipeline.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.iter().any(|text| text.contains(name)));
    sender.finish();
    let sink = sender.sink();
    assert_eq!(dropped_metas(&sink, name), 3);
    assert_eq!(dropped_metas(&sink, &format!("{CUSTOM}/bad")), 3);
    let of_region = "GstVideoRegionOfInterestMeta/pad";
    assert_eq!(dropped_metas(&sink, of_region), 3);
    assert_eq!(stat(&sink, "metas-dropped"), 9);
    sender.pipeline.stop();
    assert_eq!(dropped_metas(&sink, name), 3, "it stays to be read");
}

/// Publishes a frame with these attachments, without GStreamer.
fn raw_frame(producer: &Producer, attachments: Attachments) {
    let mut sticky = Sticky::new();
    sticky.set("caps", VIDEO);
    producer.set_sticky(&sticky).unwrap();
    let mut meta = FrameMeta::new(SIZE);
    meta.layout_mut().video = Some(VideoLayout {
        format: Text::new("GRAY8"),
        width: 64,
        height: 48,
        n_planes: 1,
        strides: [64, 0, 0, 0],
        ..VideoLayout::default()
    });
    let room = attachments.encoded_len();
    meta.attachments = attachments;
    let lease = producer
        .acquire(SlotSpec::new(SIZE).attachments(room))
        .unwrap();
    lease.publish(meta).unwrap();
}

#[test]
fn corrupt_metas_are_named_once_and_the_stream_goes_on() {
    let pools = Pools::new();
    let producer = Producer::builder(pools.pool("p")).build().unwrap();
    let receiver = pools.receiver("").connected();
    for _ in 0..3 {
        let mut attachments = Attachments::new();
        attachments.set("meta:GstVideoCropMeta/1", [0xff; 10]);
        attachments.set("meta:GstVideoRegionOfInterestMeta/1", "nonsense");
        attachments.set("meta:GstFromTheFuture/1", "?");
        attachments.set("another program's", "?");
        raw_frame(&producer, attachments);
        let sample = receiver.next().unwrap();
        let metas = sample.buffer().unwrap().iter_meta::<gst::Meta>().count();
        assert_eq!(metas, 1, "only where the planes are");
    }
    let src = receiver.src();
    for name in [
        "GstVideoCropMeta",
        "GstVideoRegionOfInterestMeta",
        "GstFromTheFuture",
    ] {
        assert!(dropped_metas(&src, name) >= 3, "{name}");
    }
    let warnings = receiver.pipeline.warnings();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    drop(producer);
}

#[test]
fn metas_survive_a_change_of_layout_unless_they_are_about_it() {
    let pools = Pools::new();
    let receiver = pools.simple_receiver("");
    let sender = pools.sender(&caps(VIDEO), LOSSLESS);
    let mut buffer = gst::Buffer::from_mut_slice(vec![7; 100 * 60]);
    let b = buffer.make_mut();
    VideoMeta::add_full(
        b,
        VideoFrameFlags::empty(),
        gst_video::VideoFormat::Gray8,
        100,
        60,
        &[0],
        &[100],
    )
    .unwrap();
    VideoCropMeta::add(b, (70, 0, 20, 20));
    region(b, "face", 1);
    if !CustomMeta::is_registered("XmemTestLayoutMeta") {
        CustomMeta::register("XmemTestLayoutMeta", &["memory"]);
    }
    CustomMeta::add(b, "XmemTestLayoutMeta").unwrap();
    sender.push(buffer);
    sender.finish();
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(buffer.size(), SIZE);
    assert!(buffer.meta::<VideoMeta>().is_none());
    assert!(buffer.meta::<VideoRegionOfInterestMeta>().is_some());
    assert!(CustomMeta::from_buffer(buffer, "XmemTestLayoutMeta").is_err());
    assert!(
        buffer.meta::<VideoCropMeta>().is_none(),
        "that part is gone"
    );
}
