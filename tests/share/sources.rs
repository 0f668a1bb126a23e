// SPDX-License-Identifier: MPL-2.0

//! What `xmem share` plays: films, pictures and cameras, also into a second pool.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use super::*;

#[test]
fn a_film_is_played_once_or_in_a_loop() {
    let pools = prepared();
    let film = film(&pools, 10);
    let mut once = share(
        &pools,
        &film,
        &[
            "--set",
            "wait-for-connection=true",
            "--set",
            "delivery=lossless",
        ],
    );
    let first = receiver(&pools);
    while first.next().is_some() {}
    assert_eq!(first.stat("received"), 10);
    once.succeeds();

    let looped = share(&pools, &film, &["--loop", "--format", "any"]);
    let second = receiver(&pools);
    until("the third round", || {
        second.next().unwrap();
        second.stat("reconnects") >= 2
    });
    ends_by(looped, Signal::INT);
}

/// Their demuxers and decoders need more than the name of the media type.
#[test]
fn films_of_all_kinds_are_played() {
    let pools = prepared();
    for kind in ["ts", "mpg", "m1v", "dv", "y4m"] {
        let film = pools.file(&format!("film.{kind}"));
        let film = film.to_str().unwrap();
        let mut ffmpeg = command(&pools, "ffmpeg");
        ffmpeg.args(
            "-v fatal -f lavfi -i testsrc2=s=720x576:r=25 -frames:v 10 -pix_fmt yuv420p".split(' '),
        );
        assert!(ffmpeg.arg(film).status().unwrap().success());
        let lossless = [
            "--set",
            "wait-for-connection=true",
            "--set",
            "delivery=lossless",
        ];
        let mut share = share(&pools, film, &lossless);
        let receiver = receiver(&pools);
        while receiver.next().is_some() {}
        assert_eq!(receiver.stat("received"), 10, "{kind}");
        share.succeeds();
    }
}

/// Their decoders have no caps, so decodebin finds them only if it decodes all streams.
#[test]
fn films_with_alpha_are_played() {
    let pools = prepared();
    for encoder in ["libvpx -auto-alt-ref 0", "libvpx-vp9"] {
        let film = pools.file("film.webm");
        let film = film.to_str().unwrap();
        let mut ffmpeg = command(&pools, "ffmpeg");
        let options = format!(
            "-v fatal -y -f lavfi -i sine=duration=1 -f lavfi -i testsrc2=s=64x48:r=25,format=yuva420p \
             -c:a libvorbis -c:v {encoder} -pix_fmt yuva420p -frames:v 10"
        );
        ffmpeg.args(options.split_whitespace()).arg(film);
        assert!(ffmpeg.status().unwrap().success());
        for (format, is) in [("RGBA", "RGBA"), ("any", "A420")] {
            let mut options = vec!["--format", format];
            options.extend(["--set", "wait-for-connection=true"]);
            options.extend(["--set", "delivery=lossless"]);
            let mut share = share(&pools, film, &options);
            let receiver = receiver(&pools);
            let first = receiver.next().unwrap();
            let caps = first.caps().unwrap().structure(0).unwrap();
            assert_eq!(caps.get::<&str>("format"), Ok(is), "{encoder}");
            drop(first);
            while receiver.next().is_some() {}
            // The decoders of GStreamer 1.26 lose the last frame.
            assert!(receiver.stat("received") >= 9, "{encoder}");
            share.succeeds();
        }
    }
}

#[test]
fn a_picture_stays() {
    let pools = prepared();
    let picture = picture(&pools);
    for options in [&[][..], &["--loop"], &["--also", "small=32x24@5"]] {
        let share = share(&pools, &picture, options);
        let receiver = receiver(&pools);
        (0..15).for_each(|_| drop(receiver.next().unwrap()));
        assert_eq!(receiver.stat("reconnects"), 0);
        assert!(!share.log().contains("problem"), "{}", share.log());
        ends_by(share, Signal::INT);
    }
}

#[test]
fn smaller_frames_of_a_film_in_a_loop_continue() {
    let pools = prepared();
    let film = film(&pools, 20);
    let share = share(&pools, &film, &["--loop", "--also", "small=32x24"]);
    let small = pools.receiver(&format!("pool={}", pool_path(&pools, "small")));
    while small.stat("reconnects") < 2 {
        assert!(small.next().is_some());
    }
    assert!(!share.log().contains("no frame for"), "{}", share.log());
    ends_by(share, Signal::INT);
}

#[test]
fn smaller_frames_are_in_a_pool_of_their_own() {
    let pools = prepared();
    let options = ["--also", "small=160x120@5", "--on-demand"];
    let share = share(&pools, "test", &options);
    let stats = |name| pool_stats(&pools, name);
    until("the pools", || {
        stats("p").is_some() && stats("small").is_some()
    });
    assert_eq!(stats("p").unwrap().published, 0);
    // A consumer of the second pool opens the source.
    let small = pools.receiver(&format!("pool={}", pool_path(&pools, "small")));
    let mut times = Vec::new();
    while times.len() < 5 {
        times.push(small.next().unwrap().buffer().unwrap().pts().unwrap());
    }
    assert!(
        times
            .windows(2)
            .all(|it| it[1] - it[0] >= gst::ClockTime::from_mseconds(190)),
        "{times:?}"
    );
    let (of_p, of_small) = (stats("p").unwrap(), stats("small").unwrap());
    let caps = |stats: &xmem_core::PoolStats| {
        let caps = stats.sticky.iter().find(|(key, _)| key == "caps");
        caps.unwrap().1.clone()
    };
    assert!(caps(&of_p).contains("width=(int)1280"));
    assert!(caps(&of_small).contains("width=(int)160") && caps(&of_small).contains("5/1"));
    // The source still writes into the slots of the first pool.
    assert_eq!(of_p.copied, 0, "{of_p:?}");
    let scaling = &of_p.consumers[0];
    assert_eq!((scaling.name.as_str(), scaling.copied), ("xmem share", 0));
    drop(small);
    until("a closed source", || {
        share.log().matches("closed until a consumer comes").count() == 2
    });
    ends_by(share, Signal::INT);
    fails(
        &pools,
        &[
            "share", "test", "--pool", "p", "--also", "s=64x48", "--format", "any",
        ],
        "name their format",
    );
}

/// The commands of the first page: a camera of the network, and a window that shows it.
#[test]
fn a_camera_of_the_network_is_shown_without_gaps() {
    let pools = prepared();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let served = "( videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=25/1 \
         ! x264enc tune=zerolatency key-int-max=25 ! rtph264pay name=pay0 )";
    let Some(_server) = rtsp_server(&pools, &port.to_string(), served) else {
        return;
    };
    let address = format!("rtsp://127.0.0.1:{port}/cam0");
    std::thread::scope(|scope| {
        for (options, latency) in [
            (&[][..], 200_000_000),
            (&["--latency", "2000"], 2_000_000_000),
            (&["--latency", "0"], 0),
        ] {
            let address = &address;
            scope.spawn(move || is_shown_without_gaps(address, options, latency));
        }
    });
    fails(
        &pools,
        &["share", "test", "--pool", "p", "--latency", "9"],
        "--latency is for",
    );
}

/// Shares the camera and shows it. `latency`: the least that is promised.
fn is_shown_without_gaps(address: &str, options: &[&str], latency: u64) {
    let pools = prepared();
    let share = share(&pools, address, options);
    let consumer = Launch::new(
        &pools,
        "consumer",
        "xmemsrc pool=p ! videoconvert ! fakesink sync=true",
    );
    let mut stats = None;
    until("frames", || {
        stats = pool_stats(&pools, "p");
        let consumers = stats.iter().flat_map(|stats| &stats.consumers);
        consumers.map(|consumer| consumer.received).max() >= Some(60)
    });
    let stats = stats.unwrap();
    let timeline = stats.sticky.iter().find(|(key, _)| key == "timeline");
    let timeline: gst::Structure = timeline.unwrap().1.parse().unwrap();
    let promised = timeline.get::<u64>("latency").unwrap();
    assert!(
        (latency..latency + 150_000_000).contains(&promised),
        "{promised}"
    );
    let missed = stats.consumers[0].missed;
    assert!(
        missed < 5,
        "{missed} missed with {options:?}\n{}",
        consumer.log()
    );
    drop(consumer);
    ends_by(share, Signal::INT);
}

/// Serves FFmpeg's output over HTTP with this content type. Like many cameras, it serves one client at a time, and notices only when it
/// sends the next picture that a client has gone. Returns the address.
fn http_camera(pools: &Pools, kind: &'static str, ffmpeg_args: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/video", listener.local_addr().unwrap());
    let mut ffmpeg = command(pools, "ffmpeg");
    let input = "-v fatal -re -f lavfi -i testsrc2=s=320x240:r=15";
    let args = input.split(' ').chain(ffmpeg_args.split(' '));
    ffmpeg.args(args).arg("-").stdout(Stdio::piped());
    let is_busy = AtomicBool::new(false);
    thread::spawn(move || {
        thread::scope(|scope| {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                let mut request = BufReader::new(client.try_clone().unwrap()).lines();
                request.find(|line| !matches!(line, Ok(line) if !line.is_empty()));
                if is_busy.swap(true, Ordering::Relaxed) {
                    let _ = write!(client, "HTTP/1.1 503 Busy\r\n\r\n");
                    continue;
                }
                let mut ffmpeg = ffmpeg.spawn().unwrap();
                let is_busy = &is_busy;
                scope.spawn(move || {
                    let _ = write!(client, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n");
                    let _ = std::io::copy(ffmpeg.stdout.as_mut().unwrap(), &mut client);
                    ffmpeg.kill().unwrap();
                    ffmpeg.wait().unwrap();
                    is_busy.store(false, Ordering::Relaxed);
                });
            }
        });
    });
    address
}

#[test]
fn a_camera_that_sends_pictures_over_http_is_shown() {
    for options in [&[][..], &["--also", "s=64x48"], &["--on-demand"]] {
        let pools = prepared();
        let kind = "Multipart/X-Mixed-Replace;boundary=ffmpeg";
        let camera = http_camera(&pools, kind, "-f mpjpeg");
        let share = share(&pools, &camera, options);
        let pool = pool_path(&pools, "p");
        pools.run(&format!(
            "xmemsrc pool={pool} num-buffers=30 ! videoconvert ! fakesink sync=true"
        ));
        if options.contains(&"s=64x48") {
            until("smaller frames", || {
                pool_stats(&pools, "s").is_some_and(|stats| stats.published > 5)
            });
        }
        let log = share.log();
        assert_contains(&log, "pool p: NV12 320x240");
        assert!(!log.contains("GStreamer error"), "{log}");
        ends_by(share, Signal::INT);
    }
}

/// Its demuxer ends if it finds the sound first, and nobody takes it.
#[test]
fn flash_video_with_sound_is_shown() {
    let pools = prepared();
    let args = "-re -f lavfi -i sine=r=48000 -c:v libx264 -tune zerolatency -g 15 -pix_fmt yuv420p -c:a aac -f flv";
    let share = share(&pools, &http_camera(&pools, "video/x-flv", args), &[]);
    let pool = pool_path(&pools, "p");
    pools.run(&format!(
        "xmemsrc pool={pool} num-buffers=15 ! videoconvert ! fakesink sync=true"
    ));
    ends_by(share, Signal::INT);
}

#[test]
fn a_film_that_ends_without_a_frame_is_a_failure() {
    let pools = prepared();
    let bytes = fs::read(film(&pools, 1)).unwrap();
    let cluster = bytes.windows(4).position(|it| it == b"\x1f\x43\xb6\x75");
    let cut = pools.file("cut.mkv");
    // The first frame is incomplete.
    fs::write(&cut, &bytes[..cluster.unwrap() + 100]).unwrap();
    let cut = cut.to_str().unwrap();
    fails(
        &pools,
        &["share", cut, "--pool", "p"],
        "cut.mkv: at its end without a frame",
    );
    // It ends before its pool is looked at.
    let short = film(&pools, 1);
    share(&pools, &short, &[]).succeeds();
    share(&pools, &short, &["--format", "any"]).succeeds();
}
