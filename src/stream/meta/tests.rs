// SPDX-License-Identifier: MPL-2.0

use gst::{glib, meta::CustomMeta};
use gst_video::{
    VideoAFDMeta, VideoAFDSpec, VideoAFDValue, VideoAffineTransformationMeta, VideoBarMeta,
    VideoCaptionMeta, VideoCaptionType, VideoCropMeta, VideoFormat, VideoFrameFlags, VideoMeta,
    VideoRegionOfInterestMeta, VideoTimeCode, VideoTimeCodeMeta,
};
use proptest::prelude::*;

use super::*;

const WIDTH: u32 = 64;
const HEIGHT: u32 = 48;
const SIZE: usize = 64 * 48;

fn video() -> Format {
    gst::init().unwrap();
    Format::from_caps(
        &"video/x-raw,format=GRAY8,width=64,height=48"
            .parse::<gst::Caps>()
            .unwrap(),
    )
}

/// A buffer with memory and planes, before a consumer adds its metas.
fn frame() -> gst::Buffer {
    gst::init().unwrap();
    let mut buffer = gst::Buffer::with_size(SIZE).unwrap();
    VideoMeta::add(
        buffer.make_mut(),
        VideoFrameFlags::empty(),
        VideoFormat::Gray8,
        WIDTH,
        HEIGHT,
    )
    .unwrap();
    buffer
}

/// A frame with each kind of meta for video.
fn decorated() -> gst::Buffer {
    gst::init().unwrap();
    let mut buffer = gst::Buffer::with_size(SIZE).unwrap();
    let b = buffer.make_mut();
    VideoMeta::add(b, VideoFrameFlags::TFF, VideoFormat::Gray8, WIDTH, HEIGHT).unwrap();
    VideoCropMeta::add(b, (1, 2, 3, 4));
    VideoAffineTransformationMeta::add(b, Some(&[[0.5; 4]; 4]));
    for number in 0..3 {
        let mut region = VideoRegionOfInterestMeta::add(b, "face", (number, 2, 3, u32::MAX));
        region.set_id(7);
        region.set_parent_id(-1);
        region.add_param(gst::Structure::builder("a/b").field("x", 0.1).build());
        region.add_param(gst::Structure::builder("c").field("text", "ü;,\"").build());
    }
    let clock = gst::Caps::new_empty_simple("timestamp/x-ntp");
    let time = gst::ClockTime::from_nseconds(5);
    gst::ReferenceTimestampMeta::add(b, &clock, time, None);
    gst::ReferenceTimestampMeta::add(b, &clock, time, time);
    let jam = glib::DateTime::from_iso8601("2024-05-06T07:08:09.25+02:00", None).unwrap();
    let code = VideoTimeCode::new(
        gst::Fraction::new(30_000, 1001),
        Some(&jam),
        gst_video::VideoTimeCodeFlags::DROP_FRAME,
        1,
        2,
        3,
        4,
        0,
    );
    VideoTimeCodeMeta::add(b, &code.try_into().unwrap());
    VideoCaptionMeta::add(b, VideoCaptionType::Cea708Raw, b"captions");
    VideoAFDMeta::add(b, 1, VideoAFDSpec::AtscA53, VideoAFDValue::_43Full169Full);
    VideoBarMeta::add(b, 0, true, 5, 6);
    if !CustomMeta::is_registered("TestsCustomMeta") {
        CustomMeta::register("TestsCustomMeta", &["video", "test-tag"]);
    }
    let mut custom = CustomMeta::add(b, "TestsCustomMeta").unwrap();
    custom.mut_structure().set("answer", 42);
    gst::ProtectionMeta::add(
        b,
        gst::Structure::builder("application/x-cenc")
            .field("iv", gst::Buffer::from_slice([1, 2, 3]))
            .build(),
    );
    buffer
}

fn names(buffer: &gst::BufferRef) -> Vec<String> {
    buffer
        .iter_meta::<gst::Meta>()
        .map(|meta| meta.type_().name().to_owned())
        .collect()
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

#[test]
fn all_metas_of_a_video_frame_round_trip() {
    let (format, losses) = (video(), Losses::default());
    let sent = decorated();
    let attachments = of_buffer(&sent, &losses);
    let mut back = frame();
    onto_buffer(&attachments, back.make_mut(), &format, &losses);
    assert_eq!(losses.news(), []);
    assert_eq!(sorted(names(&back)), sorted(names(&sent)));
    assert_eq!(of_buffer(&back, &losses), attachments);
}

/// Without the library, the meta counts as lost.
#[test]
fn analytics_round_trip() {
    let (format, losses) = (video(), Losses::default());
    let mut attachments = Attachments::new();
    attachments.set(analytics::KEY, analytics::sample());
    let mut buffer = frame();
    onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
    if losses.total() == 0 {
        assert_eq!(of_buffer(&buffer, &losses), attachments);
    } else {
        assert!(losses.news()[0].1.contains("libgstanalytics"));
        assert_eq!(names(&buffer), ["GstVideoMeta"]);
    }
}

#[test]
fn a_plain_frame_has_no_attachments() {
    gst::init().unwrap();
    let mut buffer = frame();
    gst::ParentBufferMeta::add(buffer.make_mut(), &gst::Buffer::new());
    let losses = Losses::default();
    assert!(of_buffer(&buffer, &losses).is_empty());
    assert_eq!(losses.total(), 0, "what keeps memory is nobody's loss");
}

#[test]
fn audio_round_trips_within_the_buffer() {
    use gst_audio::{AudioClippingMeta, AudioLevelMeta, AudioMeta};
    gst::init().unwrap();
    for layout in ["interleaved", "non-interleaved"] {
        let caps = format!("audio/x-raw,format=S16LE,rate=8000,channels=2,layout={layout}");
        let format = Format::from_caps(&caps.parse::<gst::Caps>().unwrap());
        let info = format.audio_info.as_ref().unwrap();
        let losses = Losses::default();
        let mut sent = gst::Buffer::with_size(100).unwrap();
        let offsets: &[usize] = if layout == "interleaved" {
            &[]
        } else {
            &[60, 0]
        };
        AudioMeta::add(sent.make_mut(), info, 20, offsets).unwrap();
        AudioLevelMeta::add(sent.make_mut(), 30, true);
        let time = gst::ClockTime::from_nseconds;
        AudioClippingMeta::add(sent.make_mut(), time(1), time(2));
        let samples = gst::format::Default::from_u64;
        AudioClippingMeta::add(sent.make_mut(), samples(3), samples(0));
        let attachments = of_buffer(&sent, &losses);
        let mut back = gst::Buffer::with_size(100).unwrap();
        onto_buffer(&attachments, back.make_mut(), &format, &losses);
        assert_eq!(losses.news(), []);
        assert_eq!(of_buffer(&back, &losses), attachments);
        assert_eq!(names(&back).len(), 4);

        // The buffer is smaller than the meta states.
        let mut small = gst::Buffer::with_size(79).unwrap();
        onto_buffer(&attachments, small.make_mut(), &format, &losses);
        assert!(small.meta::<AudioMeta>().is_none());
        assert_eq!(losses.total(), 1);
    }
}

#[test]
fn the_alpha_frame_round_trips() {
    gst::init().unwrap();
    let (format, losses) = (Format::default(), Losses::default());
    // An array of one item: the bytes "alpha".
    let record = b"\x81\x45alpha";
    let mut attachments = Attachments::new();
    attachments.set("meta:GstVideoCodecAlphaMeta/1", record);
    let mut buffer = gst::Buffer::from_slice([1]);
    buffer.make_mut().set_pts(gst::ClockTime::SECOND);
    onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
    assert_eq!(names(&buffer), ["GstVideoCodecAlphaMeta"]);
    assert_eq!(of_buffer(&buffer, &losses), attachments);
    assert_eq!(losses.total(), 0);
}

#[test]
fn invalid_records_are_left_out() {
    let format = video();
    let refused = |key: &str, record: &[u8]| {
        let losses = Losses::default();
        let mut attachments = Attachments::new();
        attachments.set(key, record);
        let mut buffer = frame();
        onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
        assert_eq!(names(&buffer), ["GstVideoMeta"], "{key} {record:?}");
        assert_eq!(losses.total(), 1, "{key} {record:?}");
    };
    let crop = "meta:GstVideoCropMeta/1";
    refused(crop, &[0x84, 10, 0, 0x18, 60, 1]);
    refused(crop, &[0x84, 0, 0, 0, 1]);
    refused(crop, &[0x84, 0, 0, 1]);
    refused(
        "meta:GstVideoMeta/1",
        &[0x84, 0, 0, 0x84, 0, 0, 0, 0, 0x84, 2, 0, 0, 0],
    );
    refused("meta:GstVideoCaptionMeta/1", &[0x82, 9, 0x41, 1]);
    refused("meta:GstVideoCaptionMeta/1", &[0x82, 1, 0x40]);
    refused("meta:GstVideoAFDMeta/1", &[0x83, 0, 0, 0]);
    refused("meta:GstVideoBarMeta/1", &[0x84, 2, 0xf5, 0, 0]);
    refused(
        "meta:GstVideoTimeCodeMeta/1",
        &[0x83, 0x82, 1, 0, 0, 0x85, 0, 0, 0, 0, 0],
    );
    refused("meta:custom/1", b"\x83\x63a b\x80\x64a b;");
    refused(
        "meta:custom/1",
        b"\x83\x6cGstVideoMeta\x80\x6dGstVideoMeta;",
    );
    refused("meta:GstFromTheFuture/1", &[0]);
    refused("meta:GstVideoCropMeta/2", &[0]);
    refused("meta:", &[0]);
}

#[test]
fn an_invalid_record_does_not_affect_the_next_one() {
    let losses = Losses::default();
    let mut attachments = Attachments::new();
    attachments.set(
        "meta:GstVideoCropMeta/1",
        // Outside of the frame; with one more field, as a later version may write; not a record.
        [
            &[0x84, 10, 0, 0x18, 60, 1][..],
            &[0x85, 1, 2, 3, 4, 0x61, b'x'],
            &[0x61, b'x'],
        ]
        .concat(),
    );
    attachments.set("not ours", "at all");
    let mut buffer = frame();
    onto_buffer(&attachments, buffer.make_mut(), &video(), &losses);
    assert_eq!(losses.total(), 2, "{:?}", losses.news());
    let crop = buffer.meta::<VideoCropMeta>().unwrap();
    assert_eq!(crop.rect(), (1, 2, 3, 4));
}

#[test]
fn custom_metas_are_registered() {
    let (format, losses) = (video(), Losses::default());
    let mut attachments = Attachments::new();
    let record = b"\x83\x6dTestsNewMeta1\x81\x66memory\x78\x18TestsNewMeta1, x=(int)1;".to_vec();
    attachments.set("meta:custom/1", record);
    let mut buffer = frame();
    onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
    assert_eq!(losses.news(), []);
    let meta = CustomMeta::from_buffer(&buffer, "TestsNewMeta1").unwrap();
    assert_eq!(meta.structure().get::<i32>("x"), Ok(1));
    assert!(meta.has_tag::<tags::Memory>());
}

#[test]
fn metas_and_names_are_limited() {
    let (format, losses) = (video(), Losses::default());
    let mut attachments = Attachments::new();
    attachments.set(
        "meta:GstVideoBarMeta/1",
        [0x84, 0, 0xf5, 0, 0].repeat(70_000),
    );
    let mut buffer = frame();
    onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
    assert_eq!(names(&buffer).len(), 1 + MAX_METAS);

    // Registered names stay until the process ends.
    let mut known = 0;
    for number in 0..400 {
        let name = format!("TestsEndless{number:03}");
        let mut record = vec![0x83, 0x6f];
        record.extend_from_slice(name.as_bytes());
        record.extend_from_slice(&[0x80, 0x70]);
        record.extend_from_slice(format!("{name};").as_bytes());
        attachments = Attachments::new();
        attachments.set("meta:custom/1", record);
        let mut buffer = frame();
        onto_buffer(&attachments, buffer.make_mut(), &format, &losses);
        known += names(&buffer).len() - 1;
    }
    // Another test of this process may have registered some.
    assert!((200..=256).contains(&known), "{known}");
}

#[test]
fn too_many_bytes_are_left_out() {
    gst::init().unwrap();
    let losses = Losses::default();
    let mut buffer = frame();
    let big = vec![0; MAX_NAMED_SIZE];
    VideoCaptionMeta::add(buffer.make_mut(), VideoCaptionType::Cea708Raw, &big);
    VideoCropMeta::add(buffer.make_mut(), (0, 0, 1, 1));
    let attachments = of_buffer(&buffer, &losses);
    assert_eq!(attachments.iter().count(), 1);
    assert_eq!(losses.news()[0].0, "GstVideoCaptionMeta");
}

/// GStreamer logs a critical message for invalid names of structures. The test must not end there.
fn allow_critical_messages() {
    gst::init().unwrap();
    glib::log_set_always_fatal(glib::LogLevels::LEVEL_ERROR);
}

fn keys() -> Vec<&'static str> {
    let ours = CODECS.iter().map(|codec| codec.key);
    ours.chain([structure::CUSTOM_KEY, foreign::KEY, analytics::KEY])
        .collect()
}

proptest! {
    // Proptest stores no failures in a file.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_no_harm(
        key in prop::sample::select(keys()),
        record in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        allow_critical_messages();
        let mut attachments = Attachments::new();
        attachments.set(key, record);
        onto_buffer(&attachments, frame().make_mut(), &video(), &Losses::default());
    }

    #[test]
    fn random_changes_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        allow_critical_messages();
        let format = video();
        let mut attachments = of_buffer(&decorated(), &Losses::default());
        attachments.set(analytics::KEY, analytics::sample());
        let mut changed = Attachments::new();
        for (key, record) in attachments.iter() {
            let mut record = record.to_vec();
            for (at, byte) in &changes {
                let at = at.index(record.len());
                record[at] = *byte;
            }
            if cuts {
                record.truncate(cut.index(record.len()));
            }
            changed.set(key, record);
        }
        let mut buffer = frame();
        onto_buffer(&changed, buffer.make_mut(), &format, &Losses::default());
        // A meta that was accepted must be usable.
        if let Some(crop) = buffer.meta::<VideoCropMeta>() {
            let (x, y, width, height) = crop.rect();
            prop_assert!(x + width <= WIDTH && y + height <= HEIGHT);
        }
        of_buffer(&buffer, &Losses::default());
        buffer.copy_deep().unwrap();
    }
}
