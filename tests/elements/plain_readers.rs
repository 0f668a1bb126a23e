// SPDX-License-Identifier: MPL-2.0

//! Elements that do not know GstVideoMeta get frames of exactly the caps' size, whatever the decoder pads. Producer and consumer are
//! processes of their own.

use std::fs;

use crate::support::{process::*, *};

/// What a decoder gives, frame by frame, without a pool and through one. The frames are encoded once, because some encoders also read
/// what lies behind the rows.
#[track_caller]
fn is_the_same_in_a_file(raw: &str, encoder: &str, decoder: &str) {
    let pools = prepared();
    let encoded = pools.file("encoded");
    let encoded = encoded.to_str().unwrap();
    pools.run(&format!(
        "{raw} ! {encoder} ! gdppay ! filesink location={encoded}"
    ));
    let decoded = &format!("filesrc location={encoded} ! gdpdepay ! {decoder}");
    let right = reference(decoded);
    let caps = right[0].caps_owned().unwrap();
    let info = gst_video::VideoInfo::from_caps(&caps).unwrap();
    let file = pools.file("frames");
    let consumer = format!(
        "-q xmemsrc pool=p on-producer-lost=eos ! filesink location={}",
        file.display()
    );
    let mut consumer = Launch::new(&pools, "consumer", &consumer);
    let producer = format!("-q {decoded} ! xmemsink pool=p {LOSSLESS} sync=false");
    Launch::new(&pools, "producer", &producer).succeeds();
    consumer.succeeds();
    let bytes = fs::read(file).unwrap();
    assert_eq!(bytes.len(), right.len() * info.size(), "{raw} ! {decoded}");
    for (number, (frame, right)) in bytes.chunks(info.size()).zip(&right).enumerate() {
        let frame = gst::Buffer::from_slice(frame.to_vec());
        let frame = gst::Sample::builder().buffer(&frame).caps(&caps).build();
        let (frame, right) = (pixels(&frame), pixels(right));
        let wrong = frame
            .iter()
            .zip(&right)
            .position(|(one, other)| one != other);
        assert_eq!(wrong, None, "frame {number} of {raw} ! {decoded}");
    }
}

/// Each decoder with formats of one plane and of many, and with sizes that it pads.
fn are_the_same(formats: &[&str], sizes: &[(u32, u32)], coders: &[&str]) {
    for coder in coders {
        for format in formats {
            for (width, height) in sizes {
                let raw = format!(
                    "videotestsrc num-buffers=3 ! video/x-raw,format={format},width={width},height={height},framerate=30/1"
                );
                let (encoder, decoder) = coder.split_once(" ! ").unwrap();
                is_the_same_in_a_file(&raw, encoder, decoder);
            }
        }
    }
}

const ODD: [(u32, u32); 2] = [(320, 240), (37, 23)];

#[test]
fn behind_png_decoders() {
    let formats = ["GRAY8", "GRAY16_BE", "RGB", "RGBA"];
    are_the_same(&formats, &ODD, &["pngenc ! avdec_png"]);
    are_the_same(&["GRAY8", "RGB"], &ODD, &["pngenc ! pngdec"]);
}

#[test]
fn behind_jpeg_decoders() {
    let coders = ["jpegenc ! jpegparse ! avdec_mjpeg", "jpegenc ! jpegdec"];
    are_the_same(&["GRAY8", "I420", "Y444"], &ODD, &coders);
}

#[test]
fn behind_lossless_libav_decoders() {
    let ffv1 = ["avenc_ffv1 ! avdec_ffv1"];
    let formats = ["GRAY8", "GRAY16_LE", "BGRA", "I420", "Y42B", "I420_10LE"];
    are_the_same(&formats, &[(320, 240)], &ffv1);
    are_the_same(&["GRAY8", "Y444"], &[(37, 23)], &ffv1);
    for (format, coder) in [
        ("BGR", "avenc_bmp ! avdec_bmp"),
        // With a palette.
        ("GRAY8", "avenc_bmp ! avdec_bmp"),
        ("GRAY8", "avenc_pcx ! avdec_pcx"),
        ("GRAY8", "avenc_targa ! avdec_targa"),
        ("RGB", "avenc_tiff ! avdec_tiff"),
        ("GRAY8", "avenc_tiff ! avdec_tiff"),
        ("BGRx", "avenc_zmbv ! avdec_zmbv"),
        ("RGB", "avenc_qtrle ! avdec_qtrle"),
        ("BGR", "avenc_flashsv ! avdec_flashsv"),
    ] {
        are_the_same(&[format], &[(322, 242)], &[coder]);
    }
    are_the_same(&["RGB"], &[(320, 240)], &["avenc_cinepak ! avdec_cinepak"]);
}

#[test]
fn behind_video_decoders() {
    for (format, size, coder) in [
        ("I420", (322, 242), "x264enc ! avdec_h264 max-threads=1"),
        ("I420", (322, 242), "x264enc ! h264parse ! openh264dec"),
        ("Y444", (323, 241), "x264enc ! avdec_h264 max-threads=1"),
        ("I420", (321, 241), "vp8enc deadline=1 ! vp8dec"),
        ("I420", (321, 241), "vp8enc deadline=1 ! avdec_vp8"),
        ("I420", (321, 241), "vp9enc deadline=1 ! vp9dec"),
        ("I420", (321, 241), "theoraenc ! theoradec"),
        ("I420", (322, 242), "avenc_mpeg4 ! avdec_mpeg4"),
    ] {
        are_the_same(&[format], &[size], &[coder]);
    }
}

/// Each frame has a file of its own, and each packet of a raw muxer has the size of a frame.
#[test]
fn files_of_one_frame_and_raw_muxers() {
    let decoded = "videotestsrc num-buffers=3 ! video/x-raw,format=GRAY8,width=320,height=240,framerate=30/1 ! pngenc ! avdec_png";
    let pools = prepared();
    for (name, sink) in [
        ("many", "multifilesink location=DIR/frame-%d"),
        ("avi", "videoconvert ! avimux ! filesink location=DIR/avi"),
        (
            "mkv",
            "videoconvert ! matroskamux ! filesink location=DIR/mkv",
        ),
        ("fd", "fdsink"),
    ] {
        let sink = sink.replace("DIR", pools.path().to_str().unwrap());
        let consumer = format!("-q xmemsrc pool={name} on-producer-lost=eos ! {sink}");
        let mut consumer = Launch::new(&pools, name, &consumer);
        let producer = format!("-q {decoded} ! xmemsink pool={name} {LOSSLESS} sync=false");
        Launch::new(&pools, "producer", &producer).succeeds();
        consumer.succeeds();
    }
    let frame = 320 * 240;
    for number in 0..3 {
        let file = pools.file(&format!("frame-{number}"));
        assert_eq!(fs::metadata(file).unwrap().len(), frame);
    }
    assert_eq!(fs::metadata(pools.file("fd.log")).unwrap().len(), 3 * frame);
    for (file, demuxer) in [("avi", "avidemux"), ("mkv", "matroskademux")] {
        let file = pools.file(file);
        let packets = reference(&format!("filesrc location={} ! {demuxer}", file.display()));
        let sizes: Vec<_> = packets
            .iter()
            .map(|packet| packet.buffer().unwrap().size() as u64)
            .collect();
        assert_eq!(sizes, [frame; 3], "{demuxer}");
    }
}
