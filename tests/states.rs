// SPDX-License-Identifier: MPL-2.0

//! State changes in any order, flushes and seeks, with and without the other side.

#![allow(unsafe_code)] // calls a function of GstBaseSrc's class

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use gst::prelude::*;
use support::*;
use xmem_core::Consumer;

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=100/1";

const PRODUCER: &str = "videotestsrc is-live=true \
     ! video/x-raw,format=GRAY8,width=64,height=64,framerate=100/1 ! xmemsink name=sink pool=POOL";
const CONSUMER: &str = "xmemsrc name=src pool=POOL ! fakesink name=out sync=false";

/// Random numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn up_and_down(description: &str) {
    let pools = Pools::new();
    let pipeline = pools.launch(description);
    for _ in 0..100 {
        pipeline.play();
        pipeline.stop();
    }
    let bus = pipeline.0.bus().unwrap();
    assert!(bus.pop_filtered(&[gst::MessageType::Error]).is_none());
}

#[test]
fn the_sink_alone_up_and_down() {
    up_and_down(PRODUCER);
}

#[test]
fn the_lossless_sink_alone_up_and_down() {
    up_and_down(&format!("{PRODUCER} {LOSSLESS}"));
}

#[test]
fn the_source_alone_up_and_down() {
    up_and_down(CONSUMER);
}

/// Since 1.24, GstBaseSrc's streaming thread calls `unlock_stop` before `create` after each start, and another thread may have
/// called `unlock` just before, to stop the element.
#[test]
fn the_source_stops_although_an_unlock_is_undone() {
    let pools = Pools::new();
    let pipeline = pools.launch(CONSUMER);
    let src = pipeline.by_name("src");
    let undo = || {
        let src: *mut gst_base::ffi::GstBaseSrc = src.as_ptr().cast();
        // SAFETY: an instance of a subclass of GstBaseSrc, whose class begins with GstBaseSrcClass.
        unsafe {
            let class = *src.cast::<*const gst_base::ffi::GstBaseSrcClass>();
            (*class).unlock_stop.map(|unlock_stop| unlock_stop(src));
        }
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                undo();
            }
        });
        for _ in 0..20 {
            pipeline.play();
            pipeline.stop();
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Each side changes its state at random. Afterwards both work.
fn in_any_order(properties: &str, seed: u64) {
    let pools = Pools::new();
    let producer = pools.launch(&format!("{PRODUCER} {properties}"));
    let consumer = pools.launch(CONSUMER);
    thread::scope(|scope| {
        for (pipeline, seed) in [(&producer, seed), (&consumer, seed.rotate_left(32))] {
            scope.spawn(move || {
                let mut random = Random(seed);
                let states = [
                    gst::State::Null,
                    gst::State::Ready,
                    gst::State::Paused,
                    gst::State::Playing,
                ];
                for _ in 0..150 {
                    pipeline.0.set_state(states[random.below(4)]).unwrap();
                    thread::sleep(std::time::Duration::from_millis(random.below(8) as u64));
                }
                pipeline.stop();
            });
        }
    });
    consumer.play();
    producer.play();
    let src = consumer.by_name("src");
    until("frames flow", || stat(&src, "received") > 10);
    for pipeline in [&producer, &consumer] {
        let bus = pipeline.0.bus().unwrap();
        if let Some(error) = bus.pop_filtered(&[gst::MessageType::Error]) {
            panic!("{error:?}");
        }
    }
}

#[test]
fn states_in_any_order() {
    for seed in 1..4 {
        in_any_order("", 0x9e37_79b9_7f4a_7c15_u64.rotate_left(seed));
    }
}

#[test]
fn states_in_any_order_lossless() {
    for seed in 1..4 {
        in_any_order(LOSSLESS, 0x9e37_79b9_7f4a_7c15_u64.rotate_left(seed));
    }
}

/// Sends a flush to the element itself, so that its own waits are interrupted. GStreamer holds the element's state lock meanwhile,
/// and a pipeline that changes its state because of the flush may need this lock while it holds others. Therefore the sink does not
/// lose its state (`async=false`), and the running time is not reset (`false`).
fn flush(element: &gst::Element) {
    assert!(element.send_event(gst::event::FlushStart::new()));
    assert!(element.send_event(gst::event::FlushStop::new(false)));
}

#[test]
fn a_flush_while_the_source_waits() {
    let pools = Pools::new();
    let receiver = pools.receiver("");
    receiver.app.set_property("async", false);
    let src = receiver.src();
    // While it waits for a producer.
    for _ in 0..5 {
        flush(&src);
    }
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    producer.push(gst::Buffer::from_slice([1; 64 * 64]));
    assert!(receiver.next().is_some());
    // While it waits for a frame.
    for _ in 0..5 {
        flush(&src);
    }
    producer.push(gst::Buffer::from_slice([2; 64 * 64]));
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap())[0], 2);
    producer.finish();
    assert!(receiver.next().is_none());
}

#[test]
fn a_flush_while_the_lossless_sink_waits() {
    let pools = Pools::new();
    let producer = pools.sender(&VIDEO.parse().unwrap(), &format!("{LOSSLESS} async=false"));
    // The consumer does not receive yet.
    let mut consumer = Consumer::builder(pools.pool("p")).connect().unwrap();
    let sink = producer.sink();
    let fill = || {
        let before = stat(&sink, "published");
        for number in 0..30 {
            producer.push(gst::Buffer::from_slice([number; 64 * 64]));
        }
        until("it waits", || {
            let published = stat(&sink, "published");
            thread::sleep(std::time::Duration::from_millis(50));
            published >= before.max(8) && stat(&sink, "published") == published
        });
        assert!(stat(&sink, "published") < 30);
    };
    fill();
    let app: &gst::Element = producer.app.upcast_ref();
    flush(app);
    fill();
    flush(app);
    producer.push(gst::Buffer::from_slice([99; 64 * 64]));
    loop {
        let frame = consumer.receive(Some(SOON.into())).unwrap();
        if frame.bytes().unwrap()[0] == 99 {
            break;
        }
    }
    // The sink can be stopped while it waits.
    fill();
    producer.pipeline.stop();
}

#[test]
fn a_seek_while_the_lossless_sink_waits() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc ! {VIDEO} ! xmemsink name=sink pool=POOL sync=false {LOSSLESS}"
    ));
    producer.play();
    let pool = pools.pool("p");
    until("the pool", || xmem_core::discovery::query(&pool).is_ok());
    // The consumer does not receive yet.
    let mut consumer = Consumer::builder(&pool).connect().unwrap();
    let sink = producer.sink();
    until("it waits", || stat(&sink, "published") >= 8);
    let minute = gst::ClockTime::from_seconds(60);
    for number in 1..6 {
        producer
            .0
            .seek_simple(gst::SeekFlags::FLUSH, minute * number)
            .unwrap();
    }
    loop {
        let frame = consumer.receive(Some(SOON.into())).unwrap();
        if frame.meta().pts >= Some((minute * 5).nseconds()) {
            break;
        }
    }
}

#[test]
fn the_source_cannot_seek() {
    let pools = Pools::new();
    let producer = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("");
    producer.push(gst::Buffer::from_slice([1; 64 * 64]));
    assert!(receiver.next().is_some());
    let mut query = gst::query::Seeking::new(gst::Format::Time);
    assert!(receiver.src().query(&mut query));
    assert!(!query.result().0);
    for flags in [gst::SeekFlags::FLUSH, gst::SeekFlags::empty()] {
        let seek = receiver.pipeline.0.seek_simple(flags, gst::ClockTime::ZERO);
        assert!(seek.is_err());
        let seek = receiver.src().seek_simple(flags, gst::ClockTime::ZERO);
        assert!(seek.is_err());
    }
    producer.push(gst::Buffer::from_slice([2; 64 * 64]));
    let sample = receiver.next().unwrap();
    assert_eq!(bytes(sample.buffer().unwrap())[0], 2);
    producer.finish();
    assert!(receiver.next().is_none());
}
