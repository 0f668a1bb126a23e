// SPDX-License-Identifier: MPL-2.0

//! Audio and video of one file stay synchronous if they are shared in two pools.

use std::collections::BTreeMap;

use crate::support::{process::Launch, *};
use gst::prelude::*;
use rustix::process::Signal;

/// Each stream has a frame every 20 ms. All bytes of a frame are its number.
const FRAMES: u8 = 250;
/// The first number in the video.
const LATER: u8 = 15;
const STEP: gst::ClockTime = gst::ClockTime::from_mseconds(20);
const MOST_APART: gst::ClockTime = gst::ClockTime::from_mseconds(5);

const VIDEO: (&str, usize) = (
    "video/x-raw,format=GRAY8,width=32,height=32,framerate=50/1,interlace-mode=progressive,pixel-aspect-ratio=1/1",
    32 * 32,
);
const AUDIO: (&str, usize) = (
    "audio/x-raw,format=S16LE,rate=48000,channels=1,layout=interleaved",
    2 * 960,
);

/// Creates a file with audio and video.
fn film(pools: &Pools) -> String {
    let path = pools.file("film.mkv").to_str().unwrap().to_owned();
    let pipeline = pools.launch(&format!(
        "matroskamux name=mux ! filesink location={path} \
         appsrc name=video format=time ! queue max-size-bytes=0 max-size-buffers=0 max-size-time=0 ! mux.video_0 \
         appsrc name=audio format=time ! queue max-size-bytes=0 max-size-buffers=0 max-size-time=0 ! mux.audio_0"
    ));
    for (name, (caps, size), first) in [("video", VIDEO, LATER), ("audio", AUDIO, 0)] {
        let app = pipeline
            .by_name(name)
            .downcast::<gst_app::AppSrc>()
            .unwrap();
        app.set_caps(Some(&caps.parse().unwrap()));
        app.set_max_bytes(0);
        for number in first..FRAMES {
            let mut buffer = gst::Buffer::from_slice(vec![number; size]);
            let buffer_ref = buffer.make_mut();
            buffer_ref.set_pts(STEP * u64::from(number));
            buffer_ref.set_duration(STEP);
            app.push_buffer(buffer).unwrap();
        }
        app.end_of_stream().unwrap();
    }
    pipeline.play();
    pipeline.wait_eos();
    path
}

/// A process that plays the film into two pools.
fn player(pools: &Pools, film: &str, properties: &str) -> Launch {
    let pool = |name| pools.pool(name);
    Launch::new(
        pools,
        "player",
        &format!(
            "filesrc location={film} ! matroskademux name=demux \
             demux.video_0 ! queue ! xmemsink pool={} {properties} \
             demux.audio_0 ! queue ! xmemsink pool={} {properties}",
            pool("video"),
            pool("audio")
        ),
    )
}

/// One pipeline with an audio and a video source.
struct Both {
    video: Receiver,
    audio: gst_app::AppSink,
}

impl Both {
    fn new(pools: &Pools) -> Self {
        let pipeline = pools.launch(&format!(
            "xmemsrc name=src pool={} ! appsink name=video sync=false \
             xmemsrc name=other pool={} ! appsink name=audio sync=false",
            pools.pool("video"),
            pools.pool("audio")
        ));
        let app = |name| pipeline.by_name(name).downcast().unwrap();
        let (video, audio) = (app("video"), app("audio"));
        pipeline.play();
        Self {
            video: Receiver {
                pipeline,
                app: video,
            },
            audio,
        }
    }

    /// Collects the running times by number for each producer, until both streams have `common` numbers of the newest producer.
    fn follow(&self, sessions: &mut [Session; 2], common: usize) {
        let apps = [&self.video.app, &self.audio];
        until("frames of both", || {
            for (app, session) in apps.iter().zip(&mut *sessions) {
                while let Some(sample) = app.try_pull_sample(gst::ClockTime::ZERO) {
                    session.note(&sample);
                }
            }
            let [video, audio] = sessions.each_ref().map(|session| &session.times);
            video
                .keys()
                .filter(|number| audio.contains_key(number))
                .count()
                >= common
        });
    }
}

/// The frames of one stream from one producer.
#[derive(Default)]
struct Session {
    times: BTreeMap<u8, gst::ClockTime>,
    last: Option<u8>,
}

impl Session {
    fn note(&mut self, sample: &gst::Sample) {
        let buffer = sample.buffer().unwrap();
        let number = bytes(buffer)[0];
        if self.last.is_some_and(|last| number <= last) {
            // The film has started again.
            self.times.clear();
        }
        self.last = Some(number);
        self.times.insert(number, buffer.pts().unwrap());
    }
}

#[track_caller]
fn are_together(sessions: &[Session; 2]) {
    let [video, audio] = sessions.each_ref().map(|session| &session.times);
    for (number, video) in video {
        let Some(audio) = audio.get(number) else {
            continue;
        };
        let apart = video.max(audio).saturating_sub(*video.min(audio));
        assert!(apart <= MOST_APART, "frame {number}: {video} {audio}");
    }
}

#[test]
fn audio_and_video_stay_together_over_a_restart() {
    let pools = Pools::new();
    let film = film(&pools);
    let both = Both::new(&pools);
    let mut sessions = <[Session; 2]>::default();
    for reconnects in 0..3_u64 {
        // The film is longer than the test: its end would also end the consumers' streams.
        let mut player = player(&pools, &film, "");
        // The appsinks still have frames of the previous player.
        until("both are with this player", || {
            let pipeline = &both.video.pipeline;
            ["src", "other"]
                .iter()
                .all(|it| pipeline.stat(it, "reconnects") == reconnects)
        });
        sessions
            .iter_mut()
            .for_each(|session| *session = Session::default());
        both.follow(&mut sessions, 10);
        are_together(&sessions);
        player.signal(Signal::KILL);
        player.wait();
    }
}

/// The producer waits for the consumers, so its streams are late relative to its clock from the beginning.
#[test]
fn streams_that_waited_for_their_consumer_are_shifted_together() {
    let pools = Pools::new();
    let film = film(&pools);
    let player = player(&pools, &film, LOSSLESS);
    until("it plays", || player.log().contains("PLAYING"));
    // The producer's clock runs while its frames wait.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let both = Both::new(&pools);
    let mut sessions = <[Session; 2]>::default();
    both.follow(&mut sessions, 50);
    are_together(&sessions);
    // No frame is lost, and times do not collapse to 0.
    for session in &sessions {
        let times: Vec<_> = session.times.values().collect();
        for pair in times.windows(2) {
            let step = pair[1].saturating_sub(*pair[0]);
            assert!(step >= STEP - MOST_APART, "{times:?}");
        }
    }
}
