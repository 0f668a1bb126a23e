// SPDX-License-Identifier: MPL-2.0

//! Stream headers in the caps: a late joiner gets the headers of container formats as demuxers need them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::support::*;
use gst::prelude::*;
use gst_video::UpstreamForceKeyUnitEvent;

const HEADER: gst::BufferFlags = gst::BufferFlags::HEADER;
const KEY: gst::BufferFlags = gst::BufferFlags::empty();
const CONTAINER: &str = "video/webm, streamheader=(buffer)<0102, 03>";

fn push(sender: &Sender, bytes: &[u8], flags: gst::BufferFlags) {
    let mut buffer = gst::Buffer::from_slice(bytes.to_vec());
    buffer.get_mut().unwrap().set_flags(flags);
    sender.push(buffer);
}

/// A producer that has sent its header and a frame.
fn running(pools: &Pools, caps: &str, properties: &str) -> Sender {
    let sender = pools.sender(&caps.parse().unwrap(), properties);
    push(&sender, &[1, 2], HEADER);
    push(&sender, &[3], HEADER);
    push(&sender, &[10], KEY);
    sender.until_published(3);
    sender
}

#[track_caller]
fn expect(receiver: &Receiver, bytes_and_flags: &[(&[u8], gst::BufferFlags)]) {
    for (right, flags) in bytes_and_flags {
        let sample = receiver.next().unwrap();
        let buffer = sample.buffer().unwrap();
        assert_eq!(bytes(buffer), *right);
        assert_eq!(buffer.flags() & HEADER, *flags, "{right:?}");
        assert_eq!((buffer.pts(), buffer.dts()), (None, None), "{right:?}");
    }
}

#[test]
fn a_late_joiner_gets_the_header_first() {
    for mode in ["clock", "arrival", "passthrough"] {
        let pools = Pools::new();
        let sender = running(&pools, CONTAINER, "");
        let properties = format!("timestamp-mode={mode} num-buffers=2");
        let receiver = pools.receiver(&properties).connected();
        for number in 11..=13 {
            push(&sender, &[number], KEY);
        }
        let header: [(&[u8], _); 2] = [(&[1, 2], HEADER), (&[3], HEADER)];
        expect(&receiver, &header);
        let mut frames = 0;
        while let Some(sample) = receiver.next() {
            frames += 1;
            assert_eq!(bytes(sample.buffer().unwrap()), [10 + frames]);
        }
        assert_eq!(frames, 2, "the header is no frame");
        assert_eq!(receiver.stat("zero-copy") + receiver.stat("copied"), 2);
    }
}

#[test]
fn a_consumer_that_starts_from_the_oldest_frame_gets_the_header() {
    let pools = Pools::new();
    let sender = running(&pools, CONTAINER, "delivery=lossless history=1");
    let receiver = pools.receiver("start-from=oldest");
    expect(
        &receiver,
        &[(&[1, 2], HEADER), (&[3], HEADER), (&[10], KEY)],
    );
    sender.app.end_of_stream().unwrap();
    assert!(receiver.next().is_none());
    assert_eq!(receiver.stat("received"), 1);
    assert!(receiver.stat("latency") > 0, "what there was at the end");
}

#[test]
fn a_consumer_from_the_beginning_gets_the_header_once() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let sender = running(&pools, CONTAINER, LOSSLESS);
    sender.app.end_of_stream().unwrap();
    expect(
        &receiver,
        &[(&[1, 2], HEADER), (&[3], HEADER), (&[10], KEY)],
    );
    assert!(receiver.next().is_none());
}

/// The header is sent from the function that creates frames.
#[test]
fn a_header_that_downstream_does_not_take_delays_no_pause_and_no_stop() {
    for goes_on in [true, false] {
        let pools = Pools::new();
        let sender = running(&pools, CONTAINER, "");
        let receiver = pools.receiver("").connected();
        let pad = receiver.app.static_pad("sink").unwrap();
        let came = note(&pad, gst::PadProbeType::BUFFER, |_| Some(()));
        push(&sender, &[11], KEY);
        // The appsink has space for the first part only.
        until("the second part", || came.lock().unwrap().len() == 2);
        receiver.pipeline.settle(gst::State::Paused);
        if goes_on {
            receiver.pipeline.settle(gst::State::Playing);
            expect(
                &receiver,
                &[(&[1, 2], HEADER), (&[3], HEADER), (&[11], KEY)],
            );
        }
        receiver.pipeline.stop();
    }
}

#[test]
fn the_next_producers_header_is_delivered() {
    let pools = Pools::new();
    let first = running(&pools, CONTAINER, "");
    let receiver = pools.receiver("").connected();
    push(&first, &[11], KEY);
    let header: [(&[u8], _); 2] = [(&[1, 2], HEADER), (&[3], HEADER)];
    expect(&receiver, &header);
    expect(&receiver, &[(&[11], KEY)]);
    drop(first);
    let caps = "video/webm, streamheader=(buffer)<0405>";
    let second = pools.sender(&caps.parse().unwrap(), "");
    until("the next producer", || receiver.stat("reconnects") == 1);
    push(&second, &[12], KEY);
    begins_anew(&receiver, &[4, 5]);
    expect(&receiver, &[(&[12], KEY)]);
    // The header arrives as a frame.
    drop(second);
    let third = pools.sender(&caps.parse().unwrap(), "");
    until("the next producer", || receiver.stat("reconnects") == 2);
    push(&third, &[4, 5], HEADER);
    begins_anew(&receiver, &[4, 5]);
}

/// The pool goes on with another stream, and the consumer was too slow for its first frames.
#[test]
fn a_header_that_was_missed_with_the_start_of_a_stream_is_delivered() {
    let pools = Pools::new();
    let sender = running(&pools, CONTAINER, "");
    let receiver = pools.receiver("newest-only=true").connected();
    push(&sender, &[11], KEY);
    let header: [(&[u8], _); 2] = [(&[1, 2], HEADER), (&[3], HEADER)];
    expect(&receiver, &header);
    expect(&receiver, &[(&[11], KEY)]);
    // The appsink holds one, and the source waits with another.
    for number in 12..=13 {
        push(&sender, &[number], KEY);
        until("it is taken", || {
            receiver.stat("received") == u64::from(number) - 10
        });
    }
    sender.pipeline.settle(gst::State::Ready);
    let caps = "video/webm, streamheader=(buffer)<0405>";
    sender.app.set_caps(Some(&caps.parse().unwrap()));
    sender.pipeline.play();
    push(&sender, &[4, 5], HEADER);
    push(&sender, &[20], KEY);
    push(&sender, &[21], KEY);
    sender.until_published(9);
    expect(&receiver, &[(&[12], KEY), (&[13], KEY)]);
    begins_anew(&receiver, &[4, 5]);
    expect(&receiver, &[(&[21], KEY)]);
}

/// Asserts that the next buffer is a header and is marked as a discontinuity.
#[track_caller]
fn begins_anew(receiver: &Receiver, right: &[u8]) {
    let sample = receiver.next().unwrap();
    let buffer = sample.buffer().unwrap();
    assert_eq!(bytes(buffer), right);
    assert!(buffer.flags().contains(HEADER | gst::BufferFlags::DISCONT));
    assert_eq!(buffer.offset(), 0);
}

#[test]
fn headers_that_decoders_read_from_caps_and_invalid_ones_are_not_sent() {
    for caps in [
        "audio/x-opus, streamheader=(buffer)<0102, 03>",
        "video/webm, streamheader=(int)<1, 2>",
        "video/webm, streamheader=(string)x",
        "video/webm",
    ] {
        let pools = Pools::new();
        let sender = running(&pools, caps, "");
        let receiver = pools.receiver("").connected();
        push(&sender, &[11], KEY);
        expect(&receiver, &[(&[11], KEY)]);
    }
}

/// Checks that a late joiner can decode a live stream.
fn is_decodable_late(encoder: &str, decoder: &str) {
    let pools = Pools::new();
    let producer = pools.launch(&format!("{encoder} ! xmemsink name=sink pool=POOL"));
    producer.play();
    let sink = producer.sink();
    until("a stream", || stat(&sink, "published") > 10);
    let receiver = pools.receiver_behind("", &format!("{decoder} !"));
    assert!(receiver.next().is_some(), "{encoder}");
}

const VIDEO: &str = "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=50/1";
const AUDIO: &str = "audiotestsrc is-live=true samplesperbuffer=480 ! audio/x-raw,rate=48000";

/// Muxers and demuxers. Ogg is not tested: its header is also in the caps, but oggdemux of GStreamer 1.22 warns about each segment
/// in time format, and a warning ends a test.
const CONTAINERS: [(&str, &str); 2] = [
    (
        "vp8enc deadline=1 keyframe-max-dist=5 ! webmmux streamable=true",
        "matroskademux ! vp8dec",
    ),
    (
        "x264enc key-int-max=5 tune=zerolatency ! h264parse ! flvmux streamable=true",
        "flvdemux ! h264parse ! avdec_h264",
    ),
];

#[test]
fn containers_are_demultiplexed_late() {
    for (muxer, demuxer) in CONTAINERS {
        is_decodable_late(&format!("{VIDEO} ! {muxer}"), demuxer);
    }
}

/// webmmux sends the header in two buffers, and only then the caps that contain it.
#[test]
fn a_source_that_joins_in_the_middle_of_a_header_begins_after_it() {
    let (muxer, demuxer) = CONTAINERS[0];
    let muxed = reference(&format!(
        "videotestsrc num-buffers=20 ! video/x-raw,width=64,height=48,framerate=50/1 ! {muxer}"
    ));
    for before in 0..3 {
        let pools = Pools::new();
        let sender = pools.sender(
            &muxed[0].caps().unwrap().to_owned(),
            "history=64 max-slots=128",
        );
        let push = |samples: &[gst::Sample]| {
            for sample in samples {
                sender.app.push_sample(sample).unwrap();
            }
        };
        push(&muxed[..before]);
        sender.until_published(before as u64);
        let receiver = pools.receiver_behind("", &format!("{demuxer} !"));
        let receiver = receiver.connected();
        push(&muxed[before..]);
        assert!(receiver.next().is_some(), "{before}");
        // The second part of the header, if the first is missed.
        let is_within = before == 1;
        assert_eq!(receiver.stat("undecodable") > 0, is_within, "{before}");
    }
}

/// The demuxer has the first part of the header, and gets the whole one.
#[test]
fn a_source_that_misses_the_rest_of_a_header_begins_again() {
    let (muxer, demuxer) = CONTAINERS[0];
    let muxed = reference(&format!(
        "videotestsrc num-buffers=60 ! video/x-raw,width=64,height=48,framerate=50/1 ! {muxer}"
    ));
    let pools = Pools::new();
    let caps = muxed[0].caps().unwrap().to_owned();
    let sender = pools.sender(&caps, "history=1 max-slots=8");
    let receiver = pools
        .receiver_behind("", &format!("{demuxer} !"))
        .connected();
    let (go_on, wait) = mpsc::channel::<()>();
    let came = Arc::new(AtomicUsize::new(0));
    let counted = came.clone();
    let wait = Mutex::new(wait);
    let pad = receiver.src().static_pad("src").unwrap();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = wait.lock().unwrap().recv();
        gst::PadProbeReturn::Ok
    });
    sender.app.push_sample(&muxed[0]).unwrap();
    until("the first part", || came.load(Ordering::SeqCst) == 1);
    let (middle, end) = muxed[1..].split_at(40);
    for sample in middle {
        sender.app.push_sample(sample).unwrap();
    }
    let before = 1 + middle.len() as u64;
    sender.until_published(before);
    drop(go_on);
    let all = || receiver.stat("received") + receiver.stat("missed");
    until("the gap", || all() == before);
    assert!(receiver.stat("missed") > 0);
    let is_shown = end.iter().zip(1..).any(|(sample, number)| {
        sender.app.push_sample(sample).unwrap();
        let mut shown = None;
        until("one more", || {
            shown = receiver.app.try_pull_sample(gst::ClockTime::ZERO);
            shown.is_some() || all() == before + number
        });
        shown.is_some()
    });
    assert!(is_shown || receiver.next().is_some());
}

/// A demuxer in the middle of one stream treats the header as the beginning of the next stream.
#[test]
fn containers_are_demultiplexed_over_a_restart_of_their_producer() {
    for (muxer, demuxer) in CONTAINERS {
        let pools = Pools::new();
        let produce = || pools.launch(&format!("{VIDEO} ! {muxer} ! xmemsink name=sink pool=POOL"));
        let first = produce();
        first.play();
        let receiver = pools.receiver_behind("", &format!("{demuxer} !"));
        assert!(receiver.next().is_some());
        drop(first);
        let second = produce();
        // The pool exists and is empty: usually the header comes with the frames.
        second.settle(gst::State::Ready);
        until("the next producer", || {
            // The source notices the new producer only when the appsink takes the remaining frames of the first one.
            receiver.app.try_pull_sample(gst::ClockTime::ZERO);
            receiver.stat("reconnects") == 1
        });
        second.play();
        // More frames than were in flight.
        for _ in 0..100 {
            assert!(receiver.next().is_some(), "{muxer}");
        }
    }
}

#[test]
fn elementary_streams_are_decoded_late() {
    is_decodable_late(
        &format!("{VIDEO} ! theoraenc keyframe-force=4"),
        "theoradec",
    );
    for (encoder, decoder) in [
        ("vorbisenc", "vorbisdec"),
        ("opusenc", "opusdec"),
        ("flacenc blocksize=480", "flacparse ! flacdec"),
        (
            "audioresample ! audio/x-raw,rate=32000 ! speexenc",
            "speexdec",
        ),
    ] {
        is_decodable_late(&format!("{AUDIO} ! audioconvert ! {encoder}"), decoder);
    }
}

/// Parsers and muxers that read the headers from the stream. vorbisparse reads them only there.
#[test]
fn elementary_streams_are_parsed_and_muxed_late() {
    for (encoder, parser, demuxer) in [
        ("vorbisenc", "vorbisparse ! matroskamux", "matroskademux"),
        ("vorbisenc", "vorbisparse ! webmmux", "matroskademux"),
        (
            "flacenc blocksize=480",
            "flacparse ! matroskamux",
            "matroskademux",
        ),
        ("opusenc", "opusparse ! matroskamux", "matroskademux"),
        (
            "audioresample ! audio/x-raw,rate=32000 ! speexenc",
            "audio/x-speex ! matroskamux",
            "matroskademux",
        ),
        ("avenc_aac", "aacparse ! matroskamux", "matroskademux"),
    ] {
        is_decodable_late(
            &format!("{AUDIO} ! audioconvert ! {encoder}"),
            &format!("{parser} streamable=true ! {demuxer}"),
        );
    }
    is_decodable_late(
        &format!("{VIDEO} ! theoraenc keyframe-force=4"),
        "theoraparse ! matroskamux streamable=true ! matroskademux",
    );
}

/// A consumer gets exactly what was published.
#[test]
fn an_elementary_stream_without_headers_stays_so_from_the_beginning() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    let caps = "audio/x-vorbis, streamheader=(buffer)<0102, 03>";
    let sender = pools.sender(&caps.parse().unwrap(), LOSSLESS);
    push(&sender, &[10], KEY);
    expect(&receiver, &[(&[10], KEY)]);
    let late = pools.receiver("").connected();
    push(&sender, &[11], KEY);
    expect(&late, &[(&[1, 2], HEADER), (&[3], HEADER), (&[11], KEY)]);
    expect(&receiver, &[(&[11], KEY)]);
}

/// A muxer of several streams. Its video has a key frame each second.
fn muxed(pools: &Pools, muxer: &str, video: &str, sound: &str) -> Pipeline {
    pools.launch(&format!(
        "videotestsrc is-live=true ! video/x-raw,format=I420,width=160,height=120,framerate=25/1 ! {video} ! queue ! m. \
         audiotestsrc is-live=true ! audio/x-raw,rate=48000,channels=2 ! audioconvert ! {sound} ! queue ! m. \
         {muxer} name=m ! xmemsink name=sink pool=POOL"
    ))
}

/// A requested key frame would end a cluster early, so that the next one would begin without it.
#[test]
fn late_consumers_of_several_streams_begin_at_the_next_key_frame() {
    const H264: &str = "x264enc name=encoder tune=zerolatency key-int-max=25 ! h264parse";
    const VP8: &str = "vp8enc name=encoder deadline=1 keyframe-max-dist=25";
    const THEORA: &str = "theoraenc name=encoder keyframe-force=25";
    thread::scope(|scope| {
        for (muxer, video, sound, heeds_requests) in [
            (
                "matroskamux streamable=true",
                H264,
                "avenc_aac ! aacparse",
                false,
            ),
            ("matroskamux streamable=true", H264, "opusenc", false),
            ("webmmux streamable=true", VP8, "opusenc", false),
            ("oggmux", THEORA, "vorbisenc", false),
            (
                "flvmux streamable=true",
                H264,
                "avenc_aac ! aacparse",
                false,
            ),
            ("mpegtsmux", H264, "avenc_aac ! aacparse", true),
        ] {
            scope.spawn(move || begins_at_the_next_key_frame(muxer, video, sound, heeds_requests));
        }
    });
}

fn begins_at_the_next_key_frame(muxer: &str, video: &str, sound: &str, heeds_requests: bool) {
    let pools = Pools::new();
    let producer = muxed(&pools, muxer, video, sound);
    let encoder = producer.by_name("encoder").static_pad("src").unwrap();
    let requests = note(&encoder, gst::PadProbeType::EVENT_UPSTREAM, |info| {
        UpstreamForceKeyUnitEvent::parse(info.event()?).ok()
    });
    producer.play();
    let published = || producer.stat("sink", "published");
    until("the stream runs", || published() > 0);
    let begin = (xmem_core::monotonic_ns(), published());
    until("three seconds", || {
        xmem_core::monotonic_ns() > begin.0 + 3_000_000_000
    });
    // The units of one second, at the rate at which this machine makes them.
    let second = (published() - begin.1) / 3;
    for _ in 0..4 {
        let receiver = pools.receiver("").connected();
        let before = published();
        receiver.next().unwrap();
        let waited = published() - before;
        assert!(
            waited <= 2 * second,
            "{muxer}: {waited} of {second} a second"
        );
    }
    if !heeds_requests {
        assert_eq!(requests.lock().unwrap().len(), 0, "{muxer}");
    }
}
