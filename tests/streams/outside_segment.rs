// SPDX-License-Identifier: MPL-2.0

//! Encoded frames outside of their segment: those of a cut film, and those before the target of a seek. Decoders need them.

use std::{fs, path::Path, process::Command};

use crate::support::{
    process::*,
    records::{Record, catcher, caught, difference},
    *,
};
use gst::prelude::*;

/// Writes a film of two seconds that has a key frame every second.
fn write_film(file: &Path, encoder: &str, muxer: &str) {
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
            "xmemsrc pool=p timestamp-mode={mode} on-producer-lost=eos ! {decoder} ! filesink location={}",
            pictures.display()
        );
        let mut consumer = Launch::new(&pools, mode, &["-q"], &consumer);
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
        let is_reset = !["opusdec", "avdec_ac3"].contains(&decoder);
        assert!(
            received == expected || !(is_reset || parts.is_empty()),
            "{what}"
        );
        assert_eq!(producer.warnings(), [""; 0]);
    }
}

const PARTS: [&[(u64, u64)]; 3] = [&[], &[(437, 813)], &[(1_100, 1_500), (437, 813)]];

/// Writes two seconds of sound, encoded.
fn write_sound(pools: &Pools, encoder: &str, format: &str) -> String {
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

/// A pause of the consumer holds up a lossless stream: the rest of it has later times.
#[test]
fn of_sound_that_is_paused() {
    let pools = Pools::new();
    let source = write_sound(&pools, "flacenc", "");
    let elements = format!("{source} ! flacparse");
    let parts = [(437, 1_313)];
    let decoder = "flacdec ! audioconvert ! audio/x-raw,format=S16LE";
    let expected = samples(&pools, &format!("{elements} ! {decoder}"), &parts);
    let file = pools.file("paused");
    let consumer = pools.launch(&format!(
        "xmemsrc pool=POOL ! {decoder} ! filesink sync=true location={}",
        file.display()
    ));
    consumer.play();
    let producer = pools.launch(&format!(
        "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
    ));
    play_last(&producer, &parts);
    until("it plays", || producer.stat("sink", "published") > 2);
    consumer.settle(gst::State::Paused);
    std::thread::sleep(std::time::Duration::from_millis(300));
    consumer.play();
    consumer.wait_eos();
    assert!(fs::read(file).unwrap() == expected);
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
