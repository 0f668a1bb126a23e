// SPDX-License-Identifier: MPL-2.0

//! Encoded frames outside of their segment: those of a cut film, and those before the target of a seek. Decoders need them.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::support::{
    process::*,
    records::{Record, catcher, caught, difference},
    *,
};
use gst::prelude::*;
use xmem_core::Consumer;

/// Writes a film of two seconds that has a key frame every second.
pub(crate) fn write_film(file: &Path, encoder: &str, muxer: &str) {
    let description = format!(
        "videotestsrc num-buffers=50 pattern=ball ! video/x-raw,format=I420,width=320,height=240,framerate=25/1 ! {encoder} ! {muxer} \
         ! filesink location={}",
        file.display()
    );
    let pipeline = gst::parse::launch(&description).unwrap();
    let pipeline = Pipeline(pipeline.downcast().unwrap());
    pipeline.play();
    pipeline.wait_eos();
}

/// Plays a pipeline from one time to another, as an editor does.
fn play_part(pipeline: &Pipeline, part: Option<(u64, u64)>) {
    play_last(pipeline, part.as_slice());
}

/// Seeks to each part in turn, and plays the last one.
fn play_last(pipeline: &Pipeline, parts: &[(u64, u64)]) {
    for (from, to) in parts {
        pipeline.settle(gst::State::Paused);
        let [from, to] = [from, to].map(|time| gst::ClockTime::from_mseconds(*time));
        let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
        let set = gst::SeekType::Set;
        pipeline.0.seek(1.0, flags, set, from, set, to).unwrap();
    }
    pipeline.play();
}

/// The buffers of a part without a pool.
fn without_pool(elements: &str, part: Option<(u64, u64)>) -> Vec<Record> {
    init();
    let description = format!("{elements} ! appsink name=app sync=false");
    let pipeline = gst::parse::launch(&description).unwrap();
    let pipeline = Pipeline(pipeline.downcast().unwrap());
    let app = catcher(&pipeline.0, "app");
    play_part(&pipeline, part);
    caught(&app)
}

/// Each buffer passes, and each consumer that decodes them gets the same pictures as without a pool.
fn passes_whole(elements: &str, decoder: &str, part: Option<(u64, u64)>) {
    let encoded = without_pool(elements, part);
    let decoded = without_pool(&format!("{elements} ! {decoder}"), part);
    assert!(
        !decoded.is_empty() && decoded.len() < encoded.len(),
        "{elements}: nothing is outside"
    );

    let pools = prepared();
    for mode in ["clock", "passthrough"] {
        let pictures = pools.file(&format!("{mode}.pictures"));
        let consumer = format!(
            "-q xmemsrc pool=p timestamp-mode={mode} on-producer-lost=eos ! {decoder} ! filesink location={}",
            pictures.display()
        );
        let mut consumer = Launch::new(&pools, mode, &consumer);
        let pool = pool_path(&pools, "p");
        let receiver = format!(
            "xmemsrc name=src pool={pool} timestamp-mode={mode} ! appsink name=app sync=false"
        );
        let receiver = pools.launch(&receiver);
        let app = catcher(&receiver.0, "app");
        receiver.play();
        let producer = pools.launch(&format!(
            "{elements} ! xmemsink name=sink pool={pool} delivery=lossless sync=false"
        ));
        producer.settle(gst::State::Ready);
        until("two consumers", || {
            producer.sink().property::<u32>("num-clients") == 2
        });
        play_part(&producer, part);
        let received = caught(&app);
        if mode == "passthrough" {
            assert_eq!(difference(&encoded, &received), None, "{elements}");
        } else {
            let contents =
                |records: &[Record]| -> Vec<_> { records.iter().map(Record::content).collect() };
            assert_eq!(contents(&encoded), contents(&received), "{elements} {mode}");
        }
        consumer.succeeds();
        let size: usize = decoded.iter().map(|record| record.content().0).sum();
        assert_eq!(fs::read(pictures).unwrap().len(), size, "{elements} {mode}");
    }
}

#[test]
fn of_a_seek() {
    let pools = Pools::new();
    for (name, encoder, muxer, demuxer, decoder) in [
        (
            "mp4",
            "x264enc key-int-max=25 bframes=2 b-adapt=false",
            "mp4mux",
            "qtdemux ! h264parse",
            "h264parse ! avdec_h264",
        ),
        (
            "mkv",
            "x264enc key-int-max=25 bframes=2 b-adapt=false",
            "matroskamux",
            "matroskademux ! h264parse",
            "h264parse ! openh264dec",
        ),
        (
            "webm",
            "vp8enc deadline=1 keyframe-max-dist=25",
            "webmmux",
            "matroskademux",
            "vp8dec",
        ),
    ] {
        let film = pools.file(name);
        write_film(&film, encoder, muxer);
        let elements = format!("filesrc location={} ! {demuxer}", film.display());
        passes_whole(&elements, decoder, Some((560, 1400)));
    }
}

/// A playing pipeline that seeks has another base time once it plays again.
#[test]
fn frames_before_the_target_of_a_seek_have_the_times_of_the_others() {
    let pools = Pools::new();
    let film = pools.file("film");
    let encoder = "x264enc key-int-max=25 bframes=2 b-adapt=false";
    write_film(&film, encoder, "mp4mux");
    let producer = pools.launch(&format!(
        "filesrc location={} ! qtdemux ! h264parse ! xmemsink name=sink pool=POOL",
        film.display()
    ));
    producer.settle(gst::State::Ready);
    let consumer = Consumer::builder(pools.pool("p")).max_held(1);
    let mut consumer = consumer.connect().unwrap();
    let mut next = || {
        let lease = consumer.receive(Some(SOON.into())).unwrap();
        let pts = lease.meta().pts.unwrap().cast_signed();
        (pts, lease.meta().timestamp.unwrap() - pts)
    };
    producer.play();
    for _ in 0..5 {
        next();
    }
    let target = gst::ClockTime::from_mseconds(1_560);
    let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
    producer.0.seek_simple(flags, target).unwrap();
    // From the second key frame on.
    let after = std::iter::repeat_with(next).skip_while(|(pts, _)| *pts < 1_000_000_000);
    let after: Vec<_> = after.take(20).collect();
    assert!(
        after.iter().all(|(_, shift)| *shift == after[0].1),
        "{after:?}"
    );
}

/// ffmpeg writes an edit list.
#[test]
fn of_a_cut_film() {
    let pools = Pools::new();
    let (film, cut) = (pools.file("film.mp4"), pools.file("cut.mp4"));
    write_film(
        &film,
        "x264enc key-int-max=50 bframes=2 b-adapt=false",
        "mp4mux",
    );
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg
        .args(["-v", "error", "-ss", "0.52", "-t", "1", "-i"])
        .arg(&film);
    match ffmpeg.args(["-c", "copy"]).arg(&cut).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return not_run(&format!("no ffmpeg: {error}")),
    }
    let elements = format!("filesrc location={} ! qtdemux ! h264parse", cut.display());
    passes_whole(&elements, "h264parse ! avdec_h264", None);
}

/// Plays elements into a file. Returns the samples.
fn samples(pools: &Pools, elements: &str, parts: &[(u64, u64)]) -> Vec<u8> {
    let file = pools.file("samples");
    let pipeline = pools.launch(&format!(
        "{elements} ! filesink location={}",
        file.display()
    ));
    play_last(&pipeline, parts);
    pipeline.wait_eos();
    fs::read(file).unwrap()
}

/// A consumer that decodes gets the same samples as without a pool.
#[track_caller]
fn sounds_the_same(pools: &Pools, elements: &str, decoder: &str, parts: &[(u64, u64)]) {
    // Noise would differ.
    let decoded = format!(
        "{decoder} ! audioconvert dithering=none ! audio/x-raw,format=S16LE,layout=interleaved"
    );
    let expected = samples(pools, &format!("{elements} ! {decoded}"), parts);
    assert!(!expected.is_empty(), "{elements}");
    for mode in ["clock", "passthrough"] {
        let file = pools.file(mode);
        let consumer = pools.launch(&format!(
            "xmemsrc pool=POOL timestamp-mode={mode} ! {decoded} ! filesink location={}",
            file.display()
        ));
        consumer.play();
        let producer = pools.launch(&format!(
            "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
        ));
        play_last(&producer, parts);
        consumer.wait_eos();
        let received = fs::read(file).unwrap();
        let what = format!("{elements} {decoder} {parts:?} {mode}");
        assert_eq!(received.len(), expected.len(), "{what}");
        // A flush leaves something in some decoders.
        let is_reset = !["opusdec", "avdec_ac3", "avdec_mp3"].contains(&decoder);
        let differs = received.iter().zip(&expected).position(|(a, b)| a != b);
        assert!(
            differs.is_none() || !(is_reset || parts.is_empty()),
            "{what}: byte {differs:?} of {}",
            expected.len()
        );
        assert_eq!(producer.warnings(), [""; 0]);
    }
}

const PARTS: [&[(u64, u64)]; 3] = [&[], &[(437, 813)], &[(1_100, 1_500), (437, 813)]];

/// Writes two seconds of sound, encoded.
pub(crate) fn write_sound(pools: &Pools, encoder: &str, format: &str) -> String {
    let file = pools.file("sound");
    let description = format!(
        "audiotestsrc num-buffers=94 wave=sine ! audio/x-raw,rate=48000,channels=2 ! audioconvert ! {format} {encoder} \
         ! filesink location={}",
        file.display()
    );
    pools.run(&description);
    format!("filesrc location={}", file.display())
}

/// The first and the last packet are partly outside.
#[test]
fn of_encoded_sound() {
    let pools = Pools::new();
    for (encoder, demuxer, decoder) in [
        ("avenc_aac aac-pns=false ! mp4mux", "qtdemux", "avdec_aac"),
        ("vorbisenc ! oggmux", "oggdemux", "vorbisdec"),
        ("vorbisenc ! matroskamux", "matroskademux", "vorbisdec"),
        ("opusenc ! oggmux", "oggdemux", "opusdec"),
        (
            "flacenc ! flacparse ! matroskamux",
            "matroskademux",
            "flacparse ! flacdec",
        ),
        ("flacenc", "flacparse", "flacdec"),
        ("lamemp3enc ! mpegaudioparse", "mpegaudioparse", "avdec_mp3"),
        (
            "avenc_ac3 ! ac3parse ! matroskamux",
            "matroskademux",
            "avdec_ac3",
        ),
        ("avenc_alac ! mp4mux", "qtdemux", "avdec_alac"),
    ] {
        let source = write_sound(&pools, encoder, "");
        for parts in PARTS {
            sounds_the_same(&pools, &format!("{source} ! {demuxer}"), decoder, parts);
        }
    }
}

/// A pause of the consumer holds up a lossless stream: the rest of it has later times, by less than a frame if the consumer is slow.
#[test]
fn of_sound_that_is_paused() {
    let pools = Pools::new();
    let source = write_sound(&pools, "flacenc", "");
    let elements = format!("{source} ! flacparse");
    let parts = [(437, 1_313)];
    let decoder = "flacdec ! audioconvert ! audio/x-raw,format=S16LE";
    let expected = samples(&pools, &format!("{elements} ! {decoder}"), &parts);
    for and_then in ["", "! identity sleep-time=110000"] {
        let file = pools.file("paused");
        let consumer = pools.launch(&format!(
            "xmemsrc name=src pool=POOL ! {decoder} {and_then} ! filesink sync=true location={}",
            file.display()
        ));
        consumer.play();
        let producer = pools.launch(&format!(
            "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
        ));
        play_last(&producer, &parts);
        until("it plays", || consumer.stat("src", "received") > 3);
        consumer.settle(gst::State::Paused);
        std::thread::sleep(Duration::from_millis(300));
        consumer.play();
        consumer.wait_eos();
        let received = fs::read(file).unwrap();
        let differs = received.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(
            (received.len(), differs),
            (expected.len(), None),
            "{and_then}: the length, and the first byte that differs"
        );
    }
}

/// ffmpeg cuts between two packets.
#[test]
fn of_a_cut_sound() {
    let pools = Pools::new();
    write_sound(&pools, "avenc_aac aac-pns=false ! mp4mux", "");
    let (sound, cut) = (pools.file("sound"), pools.file("cut.m4a"));
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-ss", "0.5", "-i"]).arg(&sound);
    match ffmpeg.args(["-t", "1", "-c", "copy"]).arg(&cut).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return not_run(&format!("no ffmpeg: {error}")),
    }
    let elements = format!("filesrc location={} ! qtdemux", cut.display());
    sounds_the_same(&pools, &elements, "avdec_aac", &[]);
}

/// The samples that a sink plays.
fn played(pools: &Pools, elements: &str, parts: &[(u64, u64)]) -> Vec<u8> {
    let pipeline = pools.launch(&format!("{elements} ! appsink name=app sync=false"));
    play_last(&pipeline, parts);
    let app: gst_app::AppSink = pipeline.by_name("app").downcast().unwrap();
    let each = std::iter::from_fn(|| app.pull_sample().ok()).filter_map(|sample| {
        let info = gst_audio::AudioInfo::from_caps(sample.caps().unwrap()).unwrap();
        let (buffer, segment) = (sample.buffer_owned().unwrap(), sample.segment().unwrap());
        gst_audio::audio_buffer_clip(buffer, segment, info.rate(), info.bpf())
    });
    each.flat_map(|buffer| bytes(&buffer)).collect()
}

/// Each reader gets only the samples inside, also one that does not know segments.
#[test]
fn of_raw_sound() {
    let pools = Pools::new();
    for (format, muxer, demuxer) in [
        ("S16LE", "matroskamux", "matroskademux"),
        ("S24LE", "matroskamux", "matroskademux"),
        ("F32LE", "matroskamux", "matroskademux"),
        ("S16LE", "wavenc", "wavparse"),
        ("S16LE", "avimux", "avidemux"),
        ("S16LE", "qtmux", "qtdemux"),
    ] {
        let source = write_sound(&pools, muxer, &format!("audio/x-raw,format={format} !"));
        let elements = format!("{source} ! {demuxer} ! audio/x-raw");
        for parts in PARTS {
            let expected = played(&pools, &elements, parts);
            assert!(!expected.is_empty(), "{elements}");
            for properties in ["", "timestamp-mode=passthrough"] {
                let receiver = pools.receiver(properties);
                let producer = pools.launch(&format!(
                    "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
                ));
                play_last(&producer, parts);
                let received: Vec<_> = receiver
                    .rest()
                    .iter()
                    .flat_map(|sample| bytes(sample.buffer().unwrap()))
                    .collect();
                assert_eq!(received.len(), expected.len(), "{elements} {parts:?}");
                assert!(received == expected, "{elements} {parts:?}");
            }
        }
    }
}

/// One second of sound, whose samples are numbers, in a segment that begins and ends between two samples of the buffer.
fn clipped(layout: &str, with_duration: bool) {
    let pools = Pools::new();
    let caps = format!(
        "audio/x-raw,format=S32LE,rate=1000,channels=2,channel-mask=(bitmask)3,layout={layout}"
    );
    let caps: gst::Caps = caps.parse().unwrap();
    let sender = pools.sender(&caps, LOSSLESS);
    sender.app.set_property("handle-segment-change", true);
    let receiver = pools.receiver("").connected();
    // Otherwise appsrc would end the stream at the end of a segment.
    sender.app.set_automatic_eos(false);
    let query = ask(&sender.sink(), &caps, false);
    let allocator = query.allocation_params().next().unwrap().0.unwrap();
    let mut memory = allocator.alloc(8_000, None).unwrap();
    let numbers = (0..2_000).flat_map(i32::to_le_bytes).collect::<Vec<_>>();
    memory
        .get_mut()
        .unwrap()
        .map_writable()
        .unwrap()
        .copy_from_slice(&numbers);
    let mut buffer = gst::Buffer::new();
    let own = buffer.get_mut().unwrap();
    own.append_memory(memory);
    own.set_pts(gst::ClockTime::from_seconds(1));
    own.set_duration(with_duration.then_some(gst::ClockTime::SECOND));
    if layout == "non-interleaved" {
        let info = gst_audio::AudioInfo::from_caps(&caps).unwrap();
        gst_audio::AudioMeta::add(own, &info, 1_000, &[]).unwrap();
    }
    let mut segment = gst::FormattedSegment::<gst::ClockTime>::new();
    segment.set_start(gst::ClockTime::from_mseconds(1_200));
    segment.set_stop(gst::ClockTime::from_mseconds(1_700));
    let whole = buffer.clone();
    for _ in 0..2 {
        let sample = gst::Sample::builder()
            .segment(&segment)
            .buffer(&buffer)
            .build();
        sender.app.push_sample(&sample).unwrap();
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        let info = gst_audio::AudioInfo::from_caps(sample.caps().unwrap()).unwrap();
        let audio = gst_audio::AudioBufferRef::from_buffer_ref_readable(buffer, &info).unwrap();
        assert_eq!(audio.n_samples(), 500);
        let planes: Vec<_> = (0..audio.n_planes())
            .map(|n| audio.plane_data(n).unwrap().to_vec())
            .collect();
        let part = |range: std::ops::Range<usize>| numbers[range].to_vec();
        if layout == "interleaved" {
            assert!(planes == [part(200 * 8..700 * 8)]);
        } else {
            assert!(planes == [part(200 * 4..700 * 4), part(1_200 * 4..1_700 * 4)]);
        }
        let duration = with_duration.then_some(gst::ClockTime::from_mseconds(500));
        assert_eq!(buffer.duration(), duration);
    }
    // Samples that others have are not changed.
    if let Some(meta) = whole.meta::<gst_audio::AudioMeta>() {
        assert_eq!(
            (meta.samples(), meta.offsets()),
            (1_000, [0, 4_000].as_slice())
        );
    }
    assert_eq!(sender.pipeline.stat("sink", "copied"), 0);
    assert_eq!(sender.pipeline.stat("sink", "clipped"), 2 * 500);
    segment.set_start(gst::ClockTime::from_mseconds(2_000));
    segment.set_stop(gst::ClockTime::from_mseconds(2_700));
    let sample = gst::Sample::builder()
        .segment(&segment)
        .buffer(&buffer)
        .build();
    sender.app.push_sample(&sample).unwrap();
    sender.finish();
    assert!(receiver.next().is_none());
    let [skipped, clipped] = ["skipped", "clipped"].map(|it| sender.pipeline.stat("sink", it));
    assert_eq!((skipped, clipped), (1, 2 * 500));
}

#[test]
fn samples_are_clipped_without_a_copy() {
    for layout in ["interleaved", "non-interleaved"] {
        clipped(layout, true);
        clipped(layout, false);
    }
}
