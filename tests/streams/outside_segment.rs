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
    let Some((from, to)) = part else {
        return pipeline.play();
    };
    let (from, to) = (
        gst::ClockTime::from_mseconds(from),
        gst::ClockTime::from_mseconds(to),
    );
    pipeline.settle(gst::State::Paused);
    let flags = gst::SeekFlags::FLUSH | gst::SeekFlags::ACCURATE;
    let to = (gst::SeekType::Set, to);
    pipeline
        .0
        .seek(1.0, flags, gst::SeekType::Set, from, to.0, to.1)
        .unwrap();
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
