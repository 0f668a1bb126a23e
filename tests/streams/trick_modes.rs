// SPDX-License-Identifier: MPL-2.0

//! Films and sound that the producer plays backward, faster, or with fewer frames.

use crate::{
    outside_segment::{write_film, write_sound},
    support::{
        records::{caught, difference},
        *,
    },
};
use gst::{SeekFlags, prelude::*};

/// Plays the first second at this rate.
fn play_at(pipeline: &Pipeline, rate: f64, flags: SeekFlags) {
    pipeline.settle(gst::State::Paused);
    let flags = flags | SeekFlags::FLUSH | SeekFlags::ACCURATE;
    let (from, to) = (gst::ClockTime::ZERO, gst::ClockTime::SECOND);
    let set = gst::SeekType::Set;
    pipeline.0.seek(rate, flags, set, from, set, to).unwrap();
    pipeline.play();
}

const DECODED: &str = "avdec_h264 ! appsink name=app sync=false";

/// Writes a film, and returns the elements that read it.
fn film(pools: &Pools) -> String {
    let film = pools.file("film");
    let encoder = "x264enc key-int-max=10 bframes=2 b-adapt=false";
    write_film(&film, encoder, "mp4mux");
    format!("filesrc location={} ! qtdemux ! h264parse", film.display())
}

/// The pictures of a film at a rate: without a pool, and from a pool with the warnings of its consumer.
fn pictures(
    pools: &Pools,
    rate: f64,
    flags: SeekFlags,
    mode: &str,
) -> [(Vec<records::Record>, Vec<String>); 2] {
    let elements = film(pools);
    let pictures = |pipeline: &Pipeline| {
        let app: gst_app::AppSink = pipeline.by_name("app").downcast().unwrap();
        (caught(&app), pipeline.warnings())
    };
    let alone = pools.launch(&format!("{elements} ! {DECODED}"));
    play_at(&alone, rate, flags);
    let expected = pictures(&alone);
    let consumer = pools.launch(&format!(
        "xmemsrc pool=POOL timestamp-mode={mode} ! {DECODED}"
    ));
    consumer.play();
    let producer = pools.launch(&format!(
        "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
    ));
    play_at(&producer, rate, flags);
    [expected, pictures(&consumer)]
}

/// Decoders reverse each group of pictures, if the segment says so.
#[test]
fn a_film_is_played_backward() {
    let pools = Pools::new();
    let [(expected, _), (received, warnings)] =
        pictures(&pools, -1.0, SeekFlags::empty(), "passthrough");
    assert_eq!(expected.len(), 25);
    assert_eq!(difference(&expected, &received), None);
    assert_eq!(warnings, [""; 0]);
    let [_, (_, warnings)] = pictures(&pools, -1.0, SeekFlags::empty(), "clock");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("in reverse"), "{warnings:?}");
}

/// Decoders leave out the same frames as without a pool.
#[test]
fn a_film_is_played_with_fewer_frames() {
    let pools = Pools::new();
    let key_frames = SeekFlags::TRICKMODE | SeekFlags::TRICKMODE_KEY_UNITS;
    for (rate, flags, number) in [
        (4.0, SeekFlags::empty(), 25..=25),
        (4.0, SeekFlags::TRICKMODE, 4..=24),
        (4.0, key_frames, 3..=3),
        (-4.0, key_frames, 3..=3),
    ] {
        for mode in ["clock", "passthrough"] {
            let [(expected, _), (received, warnings)] = pictures(&pools, rate, flags, mode);
            let what = format!("{rate} {flags:?} {mode}");
            assert!(
                number.contains(&expected.len()),
                "{what}: {}",
                expected.len()
            );
            let contents = |records: &[records::Record]| -> Vec<_> {
                records.iter().map(records::Record::content).collect()
            };
            assert_eq!(contents(&expected), contents(&received), "{what}");
            assert_eq!(warnings, [""; 0], "{what}");
        }
    }
}

/// The samples come in the order in which they are heard.
#[test]
fn raw_sound_is_played_backward() {
    let pools = Pools::new();
    let source = write_sound(&pools, "avenc_alac ! mp4mux", "");
    for layout in ["interleaved", "non-interleaved"] {
        let elements = format!(
            "{source} ! qtdemux ! avdec_alac ! audioconvert ! audio/x-raw,format=S24LE,layout={layout}"
        );
        let heard = |rate, properties, is_reversed| {
            let behind = "audioconvert ! audio/x-raw,layout=interleaved !";
            let receiver = pools.receiver_behind(properties, behind);
            let producer = pools.launch(&format!(
                "{elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
            ));
            play_at(&producer, rate, SeekFlags::empty());
            let samples = receiver.rest();
            let what = format!("{layout} {rate} {properties}");
            if is_reversed {
                assert_eq!(receiver.stat("copied"), samples.len() as u64, "{what}");
            }
            let buffers = samples.iter().map(|sample| bytes(sample.buffer().unwrap()));
            let bytes = buffers.collect::<Vec<_>>().concat();
            bytes.chunks(6).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let mut expected = heard(1.0, "", false);
        assert!(expected.len() >= 48_000, "{layout}");
        expected.reverse();
        for mode in ["timestamp-mode=clock", "timestamp-mode=arrival"] {
            assert!(heard(-1.0, mode, true) == expected, "{layout} {mode}");
        }
        // Sinks reverse the samples, by the producer's segment.
        let received = heard(-1.0, "timestamp-mode=passthrough", false);
        assert!(
            received.len() == expected.len() && received != expected,
            "{layout}"
        );
    }
}

/// scaletempo makes the times of sound fit its samples.
#[test]
fn sound_that_is_played_wrongly_is_reported() {
    let pools = Pools::new();
    let source = write_sound(&pools, "avenc_alac ! mp4mux", "");
    let (coded, decoded) = ("", "! avdec_alac ! audioconvert");
    let fitted = "! avdec_alac ! audioconvert ! scaletempo";
    let speed = Some("another speed");
    for (elements, rate, mode, reported) in [
        (coded, 2.0, "clock", speed),
        (decoded, 2.0, "clock", speed),
        (decoded, 0.5, "arrival", speed),
        (decoded, 2.0, "passthrough", None),
        (fitted, 2.0, "clock", None),
        (coded, -1.0, "clock", Some("in reverse")),
        (coded, -1.0, "passthrough", None),
        (decoded, -1.0, "clock", None),
    ] {
        let consumer = pools.launch(&format!(
            "xmemsrc pool=POOL timestamp-mode={mode} ! appsink name=app sync=false"
        ));
        consumer.play();
        let producer = pools.launch(&format!(
            "{source} ! qtdemux {elements} ! xmemsink name=sink pool=POOL {LOSSLESS} sync=false"
        ));
        play_at(&producer, rate, SeekFlags::empty());
        let app: gst_app::AppSink = consumer.by_name("app").downcast().unwrap();
        assert!(!caught(&app).is_empty());
        let warnings = consumer.warnings();
        let is_right = match reported {
            Some(part) => warnings.len() == 1 && warnings[0].contains(part),
            None => warnings.is_empty(),
        };
        assert!(is_right, "{elements} {rate} {mode} {warnings:?}");
    }
}
