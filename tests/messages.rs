// SPDX-License-Identifier: MPL-2.0

//! Element messages say who was lost, to programs that have no other way to know.

mod support;

use std::sync::mpsc;

use gst::prelude::*;
use rustix::process::Signal;
use support::{process::*, *};

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

/// Element messages as they are posted. Looking at a property from there would hang if a lock were held.
fn messages(pipeline: &Pipeline) -> mpsc::Receiver<gst::Structure> {
    let (send, messages) = mpsc::channel();
    pipeline
        .0
        .bus()
        .unwrap()
        .set_sync_handler(move |_, message| {
            if let Some(structure) = message.structure()
                && structure.name().starts_with("GstXmem")
            {
                let element = message.src().unwrap();
                let _ = element.property::<gst::Structure>("stats");
                let _ = send.send(structure.to_owned());
            }
            gst::BusSyncReply::Pass
        });
    messages
}

fn frame() -> gst::Buffer {
    gst::Buffer::from_slice([1; 64 * 64])
}

#[test]
fn a_producer_that_is_lost_and_comes_back() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let receiver = pools.receiver("");
    let said = messages(&receiver.pipeline);
    let producer = pools.sender(&caps, LOSSLESS);
    producer.push(frame());
    receiver.next().unwrap();
    drop(producer);

    let lost = said.recv_timeout(SOON.into()).unwrap();
    assert_eq!(lost.name(), "GstXmemProducerLost");
    assert_eq!(lost.get::<String>("pool").unwrap(), pools.pool("p"));
    assert_eq!(lost.get::<u32>("pid").unwrap(), std::process::id());
    assert_eq!(lost.get::<String>("reason").unwrap(), "gone");

    let producer = pools.sender(&caps, LOSSLESS);
    producer.push(frame());
    receiver.next().unwrap();
    let back = said.recv_timeout(SOON.into()).unwrap();
    assert_eq!(back.name(), "GstXmemProducerBack");
    assert_eq!(back.get::<String>("pool").unwrap(), pools.pool("p"));
    assert_eq!(back.get::<u32>("pid").unwrap(), std::process::id());

    // A stream that ends is not lost.
    producer.finish();
    receiver.pipeline.wait_eos();
    drop(producer);
    assert!(said.try_recv().is_err());
}

#[test]
fn a_consumer_that_held_all_up() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let producer = pools.sender(
        &caps,
        "delivery=lossless wait-for-connection=true lossless-timeout=300000000",
    );
    let dropped = messages(&producer.pipeline);
    // Nobody takes what it has: appsink waits, and with it the source.
    let receiver = pools.receiver("client-name=sluggish").connected();
    let lost = messages(&receiver.pipeline);
    for _ in 0..40 {
        producer.push(frame());
    }
    let dropped = dropped.recv_timeout(SOON.into()).unwrap();
    assert_eq!(dropped.name(), "GstXmemClientDropped");
    assert_eq!(dropped.get::<String>("reason").unwrap(), "timed-out");
    assert_eq!(dropped.get::<String>("name").unwrap(), "sluggish");
    assert_eq!(dropped.get::<u32>("pid").unwrap(), std::process::id());
    dropped.get::<u64>("id").unwrap();

    let lost = loop {
        // The source notices when it can go on.
        let _ = receiver
            .app
            .try_pull_sample(gst::ClockTime::from_mseconds(10));
        if let Ok(lost) = lost.try_recv() {
            break lost;
        }
    };
    assert_eq!(lost.name(), "GstXmemProducerLost");
    assert_eq!(lost.get::<String>("reason").unwrap(), "timed-out");
}

#[test]
fn a_consumer_that_was_killed_and_one_that_left() {
    let pools = prepared();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true ! {VIDEO} ! xmemsink name=sink pool={}",
        pool_path(&pools, "p")
    ));
    let said = messages(&producer);
    producer.play();
    let consumer = |name: &str| {
        let consumer = Launch::new(
            &pools,
            name,
            &[],
            &format!("xmemsrc pool=p client-name={name} ! fakesink"),
        );
        until("connected", || {
            pool_stats(&pools, "p").is_some_and(|stats| !stats.consumers.is_empty())
        });
        consumer
    };
    let mut leaves = consumer("leaves");
    leaves.signal(Signal::INT);
    leaves.wait();
    until("it has left", || {
        pool_stats(&pools, "p").is_some_and(|stats| stats.consumers.is_empty())
    });
    let killed = consumer("killed");
    killed.signal(Signal::KILL);
    let dropped = said.recv_timeout(SOON.into()).unwrap();
    assert_eq!(dropped.name(), "GstXmemClientDropped");
    assert_eq!(dropped.get::<String>("name").unwrap(), "killed");
    assert_eq!(dropped.get::<u32>("pid").unwrap(), killed.pid());
    assert_eq!(dropped.get::<String>("reason").unwrap(), "died");
    producer.stop();
    assert!(said.try_recv().is_err());
}

/// What is said at the level of warnings in a debug category while something runs.
fn warnings(category: &'static str, act: impl FnOnce()) -> Vec<String> {
    let (send, said) = mpsc::channel();
    let log = gst::log::add_log_function(move |of, level, _, _, _, _, message| {
        let message = message.get().map(|text| text.to_string());
        if of.name() == category && level == gst::DebugLevel::Warning {
            let _ = send.send(message.unwrap_or_default());
        }
    });
    gst::log::set_threshold_for_name(category, gst::DebugLevel::Warning);
    act();
    gst::log::remove_log_function(log);
    said.try_iter().collect()
}

/// Those with a word in them: tests that run in the same process are heard as well.
fn with<'a>(said: &'a [String], word: &str) -> Vec<&'a String> {
    said.iter().filter(|text| text.contains(word)).collect()
}

/// Frames that are missed look like a lower rate, for which there can be many reasons.
#[test]
fn a_source_that_misses_frames_says_why_once() {
    let pools = Pools::new();
    let said = warnings("GST_PERFORMANCE", || {
        let sender = pools.sender(&VIDEO.parse().unwrap(), "history=1");
        let receiver = pools.receiver("").connected();
        let sink = sender.sink();
        for round in 1..4 {
            // The appsink takes one, the source waits with another.
            for _ in 0..20 {
                sender.push(frame());
            }
            until("they are out", || stat(&sink, "published") == round * 20);
            while receiver.stat("received") + receiver.stat("missed") < round * 20 {
                receiver.next().unwrap();
            }
        }
        assert!(receiver.stat("missed") > 0);
    });
    assert_eq!(with(&said, "missed").len(), 1, "{said:?}");
}

/// Dropping past the budget is what was asked for, but whoever looks at the pool has to see it.
#[test]
fn a_source_that_drops_frames_says_why_once_and_its_producer_knows() {
    let pools = Pools::new();
    let said = warnings("GST_PERFORMANCE", || {
        let sender = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
        let receiver = pools.receiver("max-held=2 over-budget=drop").connected();
        for _ in 0..5 {
            sender.push(frame());
        }
        let _held = [(); 2].map(|()| receiver.next().unwrap());
        until("all are taken", || receiver.stat("received") == 5);
        until("those past the budget are dropped", || {
            receiver.stat("dropped") == 3
        });
        let stats = stats_of(&pools.pool("p"));
        assert_eq!(
            (stats.consumers[0].received, stats.consumers[0].dropped),
            (5, 3)
        );
        let clients = sender.sink().property::<gst::Structure>("stats");
        let clients = clients.get::<gst::Array>("clients").unwrap();
        let client = clients.as_slice()[0].get::<gst::Structure>().unwrap();
        assert_eq!(client.get::<u64>("dropped"), Ok(3));
    });
    assert_eq!(with(&said, "over-budget=drop").len(), 1, "{said:?}");
    assert!(with(&said, "missed").is_empty(), "{said:?}");
}

#[test]
fn a_source_that_is_granted_less_than_it_asked_for_says_so() {
    let pools = Pools::new();
    let _sender = pools.sender(&VIDEO.parse().unwrap(), "max-held=3");
    let said = warnings("xmemsrc", || {
        let _asked = pools.receiver("max-held=20").connected();
    });
    let said = with(&said, "hold 20 slots");
    assert_eq!(said.len(), 1, "{said:?}");
    for part in ["granted 3", "raise max-held on xmemsink"] {
        assert!(said[0].contains(part), "{said:?}");
    }
    // Who leaves it at its default has not asked.
    let said = warnings("xmemsrc", || {
        let default = pools.receiver("").connected();
        assert_eq!(default.stat("budget"), 3);
    });
    assert!(with(&said, "granted").is_empty(), "{said:?}");
}
