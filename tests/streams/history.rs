// SPDX-License-Identifier: MPL-2.0

//! The frames that the pool keeps for a slow consumer, for example one whose sink waits for a frame's time.

use std::time::Duration;

use crate::support::*;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=16,height=16,framerate=240/1";
const SOUND: &str = "audio/x-raw,format=U8,rate=8000,channels=1,layout=interleaved";
const JPEG: &str = "image/jpeg,width=16,height=16,framerate=240/1";

/// The number of frames out of 21 that a consumer gets if it takes only the first before all are published, the last one after this
/// time.
fn received(caps: &str, apart: gst::ClockTime, properties: &str, late: Duration) -> usize {
    let pools = Pools::new();
    let sender = pools.sender(&caps.parse().unwrap(), properties);
    let receiver = pools.receiver("").connected();
    let push = |number: u32| {
        let mut buffer = gst::Buffer::from_slice([u8::try_from(number).unwrap(); 256]);
        let times = buffer.make_mut();
        times.set_pts(apart * u64::from(number));
        times.set_duration(apart);
        sender.push(buffer);
    };
    push(0);
    let first = receiver.next().unwrap();
    // The appsink holds one frame, and the source waits with another.
    (1..20).for_each(&push);
    std::thread::sleep(late);
    push(20);
    sender.finish();
    let rest = receiver.rest();
    assert_eq!(rest.len() as u64 + receiver.stat("missed"), 20);
    assert_eq!(bytes(rest.last().unwrap().buffer().unwrap())[0], 20);
    drop(first);
    1 + rest.len()
}

/// The time since the publication counts, not the times of the frames: the consumer of a burst is not behind.
#[test]
fn a_burst_is_kept() {
    for caps in [VIDEO, SOUND] {
        for apart in [5, 30, 1_000] {
            let apart = gst::ClockTime::from_mseconds(apart);
            assert_eq!(received(caps, apart, "", Duration::ZERO), 21);
        }
    }
}

/// A consumer that is late by more than 100 ms.
#[test]
fn all_but_raw_video_is_kept_for_a_second() {
    let frame = gst::ClockTime::SECOND / 240;
    let late = Duration::from_millis(150);
    assert!(received(VIDEO, frame, "", late) < 21);
    for caps in [SOUND, JPEG] {
        assert_eq!(received(caps, frame, "", late), 21);
    }
}

#[test]
fn a_set_history_is_not_exceeded() {
    let frame = gst::ClockTime::SECOND / 240;
    // The pool's frames, the appsink's frame, and the one with which the source waits.
    let most = 1 + 4 + 2;
    assert!(received(VIDEO, frame, "history=4", Duration::ZERO) <= most);
}
