// SPDX-License-Identifier: MPL-2.0

//! Caps that a consumer does not accept are an error of that consumer only.

use crate::support::*;

const GRAY: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";
const WIDER: &str = "video/x-raw,format=GRAY8,width=128,height=32,framerate=30/1";

fn push(sender: &Sender, number: u8) {
    sender.push(gst::Buffer::from_slice([number; 64 * 64]));
}

/// The error names the caps and the remedy.
fn assert_refused(pipeline: &Pipeline, caps: &str) {
    let (error, text) = pipeline.wait_error();
    assert!(error.matches(gst::CoreError::Negotiation), "{text}");
    assert!(
        text.contains(caps) && text.contains("converter"),
        "{caps}: {text}"
    );
}

/// Its list of formats begins with uncommon ones.
#[test]
fn a_source_of_any_format_negotiates_a_common_one() {
    use gst::prelude::*;
    for (upstream, format) in [
        ("videotestsrc", "NV12"),
        ("videotestsrc ! queue ! video/x-raw,width=64", "NV12"),
        // No format is refused.
        ("videotestsrc ! video/x-raw,format=ABGR64_LE", "ABGR64_LE"),
        (
            "videotestsrc ! video/x-raw,format=ABGR64_LE ! videoconvert",
            "ABGR64_LE",
        ),
    ] {
        let pools = Pools::new();
        let producer = pools.launch(&format!("{upstream} ! xmemsink name=sink pool=POOL"));
        producer.settle(gst::State::Paused);
        let caps = producer.sink().static_pad("sink").unwrap().current_caps();
        let caps = caps.unwrap();
        let made = caps.structure(0).unwrap().get::<String>("format").unwrap();
        assert_eq!(made, format, "{upstream}");
    }
}

#[test]
fn caps_that_downstream_refuses() {
    let pools = Pools::new();
    let producer = pools.sender(&GRAY.parse().unwrap(), "history=4");
    push(&producer, 1);
    let refusing = pools
        .launch("xmemsrc name=src pool=POOL start-from=newest ! video/x-raw,format=RGB ! fakesink");
    refusing.play();
    assert_refused(&refusing, "GRAY8");
    // The producer is not affected.
    let receiver = pools.receiver("start-from=newest");
    receiver.next().unwrap();
    push(&producer, 2);
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap())[0], 2);
    producer.finish();
    assert!(receiver.next().is_none());
}

/// No converter accepts them either.
#[test]
fn a_format_that_only_another_gstreamer_knows() {
    let pools = Pools::new();
    let producer = pools.sender(&GRAY.replace("GRAY8", "GRAY9").parse().unwrap(), "");
    push(&producer, 1);
    let refusing = pools.launch("xmemsrc pool=POOL start-from=oldest ! videoconvert ! fakesink");
    refusing.play();
    refusing.fails_with(
        gst::CoreError::Negotiation,
        "does not know the format GRAY9",
    );
}

/// Some elements accept any caps first and then refuse the frames.
#[test]
fn caps_refused_further_downstream_are_an_error() {
    let pools = Pools::new();
    let producer = pools.sender(&GRAY.parse().unwrap(), "history=4");
    push(&producer, 1);
    let refusing = pools.launch(
        "xmemsrc name=src pool=POOL start-from=newest ! videocrop left=2 ! video/x-raw,format=RGB ! fakesink",
    );
    refusing.play();
    assert_refused(&refusing, "GRAY8");
    // It is posted once, followed by GstBaseSrc's own error.
    let (error, text) = refusing.wait_error();
    assert!(error.matches(gst::StreamError::Failed), "{text}");
}

#[test]
fn a_change_that_downstream_refuses() {
    let pools = Pools::new();
    let producer = pools.sender(&GRAY.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("").connected();
    let refusing = pools.launch("xmemsrc name=src pool=POOL ! video/x-raw,width=64 ! fakesink");
    refusing.play();
    let src = refusing.by_name("src");
    until("connected", || stat(&src, "budget") > 0);
    push(&producer, 1);
    receiver.next().unwrap();
    until("a frame", || stat(&src, "received") == 1);

    producer.app.set_caps(Some(&WIDER.parse().unwrap()));
    push(&producer, 2);
    assert_refused(&refusing, "128");
    let sample = receiver.next().unwrap();
    let width = sample
        .caps()
        .unwrap()
        .structure(0)
        .unwrap()
        .get::<i32>("width");
    assert_eq!(width.unwrap(), 128);
    refusing.stop();
    push(&producer, 3);
    receiver.next().unwrap();
    producer.finish();
    assert!(receiver.next().is_none());
}

/// dvbsuboverlay announces attached overlays with any downstream, and blends them nevertheless. A converter
/// would have to blend attached overlays.
#[test]
fn caps_promise_no_metas_that_are_not_transported() {
    let pools = Pools::new();
    let caps = |features: &str| -> gst::Caps {
        let features = format!("x-raw({features})");
        GRAY.replace("x-raw", &features).parse().unwrap()
    };
    let sent = caps("meta:GstVideoOverlayComposition, meta:GstVideoAffineTransformation");
    let sender = pools.sender(&sent, LOSSLESS);
    let receiver = pools.receiver("");
    push(&sender, 1);
    let received = receiver.next().unwrap().caps_owned().unwrap();
    assert_eq!(received, caps("meta:GstVideoAffineTransformation"));
}
