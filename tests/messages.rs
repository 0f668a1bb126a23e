// SPDX-License-Identifier: MPL-2.0

//! Element messages and warnings for applications: lost consumers and producers, missed or copied frames, and a consumer that
//! delays the stream.

mod support;

use std::sync::mpsc;

use gst::prelude::*;
use rustix::process::Signal;
use support::{process::*, *};

const VIDEO: &str = "video/x-raw,format=GRAY8,width=64,height=64,framerate=30/1";

/// Collects element messages as they are posted. Reading a property in the handler would deadlock if the element held a lock.
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
    let posted = messages(&receiver.pipeline);
    let producer = pools.sender(&caps, LOSSLESS);
    producer.push(frame());
    receiver.next().unwrap();
    drop(producer);

    let lost = posted.recv_timeout(SOON.into()).unwrap();
    assert_eq!(lost.name(), "GstXmemProducerLost");
    assert_eq!(lost.get::<String>("pool").unwrap(), pools.pool("p"));
    assert_eq!(lost.get::<u32>("pid").unwrap(), std::process::id());
    assert_eq!(lost.get::<String>("reason").unwrap(), "gone");

    let producer = pools.sender(&caps, LOSSLESS);
    producer.push(frame());
    receiver.next().unwrap();
    let back = posted.recv_timeout(SOON.into()).unwrap();
    assert_eq!(back.name(), "GstXmemProducerBack");
    assert_eq!(back.get::<String>("pool").unwrap(), pools.pool("p"));
    assert_eq!(back.get::<u32>("pid").unwrap(), std::process::id());

    // The end of a stream is not a loss.
    producer.finish();
    receiver.pipeline.wait_eos();
    drop(producer);
    assert!(posted.try_recv().is_err());
}

#[test]
fn a_consumer_that_delays_a_lossless_pool_is_named() {
    let pools = Pools::new();
    let caps = VIDEO.parse().unwrap();
    let producer = pools.sender(
        &caps,
        "delivery=lossless wait-for-connection=true lossless-timeout=300000000",
    );
    let dropped = messages(&producer.pipeline);
    // No frame is taken, so the appsink and the source wait.
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
        // The source detects this when it can continue.
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
fn the_reason_of_a_disconnect_is_reported() {
    let pools = prepared();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true ! {VIDEO} ! xmemsink name=sink pool={}",
        pool_path(&pools, "p")
    ));
    let posted = messages(&producer);
    producer.play();
    let consumer = |name: &str| {
        let consumer = Launch::new(
            &pools,
            name,
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
    let dropped = posted.recv_timeout(SOON.into()).unwrap();
    assert_eq!(dropped.name(), "GstXmemClientDropped");
    assert_eq!(dropped.get::<String>("name").unwrap(), "killed");
    assert_eq!(dropped.get::<u32>("pid").unwrap(), killed.pid());
    assert_eq!(dropped.get::<String>("reason").unwrap(), "died");
    producer.stop();
    assert!(posted.try_recv().is_err());
}

/// The text of the next warning on the bus.
fn warning(pipeline: &Pipeline) -> String {
    let message = pipeline.wait(&[gst::MessageType::Warning]);
    let gst::MessageView::Warning(warning) = message.view() else {
        unreachable!()
    };
    warning.error().to_string()
}

#[test]
fn a_sink_with_many_consumers() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), "max-slots=24");
    let sink = sender.sink();
    let limit = || {
        let stats = sink.property::<gst::Structure>("stats");
        stats.get::<String>("budget-limit").unwrap()
    };
    let consumer = || {
        xmem_core::Consumer::builder(pools.pool("p"))
            .connect()
            .unwrap()
    };
    // They hold 15 of the 24 slots.
    let one = consumer();
    assert_eq!(limit(), "");
    let others = [(); 2].map(|()| consumer());
    let text = warning(&sender.pipeline);
    for part in [
        "max-slots leaves each of them a budget of 6 (2 connected)",
        "Raise max-slots",
    ] {
        assert_contains(&text, part);
    }
    assert_eq!((limit().as_str(), one.budget()), ("max-slots", 4));
    assert_eq!(sender.pipeline.warnings().len(), 0);
    drop(others);
    until("all have left", || limit().is_empty());
}

#[test]
fn a_source_that_may_hold_few_slots() {
    for (settings, limit) in [
        ("max-slots=8", "max-slots"),
        ("max-slots=6", "max-slots"),
        ("max-held=3", "max-held"),
        ("max-bytes=30000", "max-bytes"),
    ] {
        let pools = Pools::new();
        let sender = pools.sender(&VIDEO.parse().unwrap(), settings);
        let receiver = pools.receiver("");
        let sink = sender.sink();
        until("it is there", || sink.property::<u32>("num-clients") > 0);
        let mut held = Vec::new();
        while receiver.stat("copied") == 0 {
            sender.push(frame());
            held.push(receiver.next().unwrap());
        }
        let text = warning(&receiver.pipeline);
        for part in ["are copied", limit] {
            assert!(text.contains(part), "{settings}: {text}");
        }
        let stats = receiver.src().property::<gst::Structure>("stats");
        assert_eq!(stats.get::<&str>("budget-limit"), Ok(limit));
        assert_eq!(receiver.pipeline.warnings().len(), 0);
        assert_eq!(stat(&sink, "dropped"), 0);
    }
    // The consumer has the budget that it requested.
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    let receiver = pools.receiver("max-held=2");
    let _held = [(); 4].map(|()| {
        sender.push(frame());
        receiver.next().unwrap()
    });
    assert!(receiver.stat("copied") > 0);
    assert_eq!(receiver.pipeline.warnings().len(), 0);
}

#[test]
fn a_consumer_that_a_lossless_sink_waits_for() {
    let pools = Pools::new();
    let sender = pools.sender(&VIDEO.parse().unwrap(), LOSSLESS);
    // No frame is taken, so the appsink and the source wait.
    let receiver = pools.receiver("client-name=sluggish").connected();
    for _ in 0..40 {
        sender.push(frame());
    }
    let text = warning(&sender.pipeline);
    for part in [
        "sluggish",
        &std::process::id().to_string(),
        "lossless-timeout",
    ] {
        assert_contains(&text, part);
    }
    let sink = sender.sink();
    let waited_for = || {
        let stats = sink.property::<gst::Structure>("stats");
        let clients = stats.get::<gst::Array>("clients").unwrap();
        let client = clients.as_slice()[0].get::<gst::Structure>().unwrap();
        client.get::<u64>("waited-for").unwrap()
    };
    assert!(waited_for() >= 2_000_000_000);
    (0..40).for_each(|_| drop(receiver.next().unwrap()));
    assert_eq!(waited_for(), 0);
    assert_eq!(sender.pipeline.warnings().len(), 0);
}

/// The warnings of a debug category while a function runs.
fn warnings(category: &'static str, act: impl FnOnce()) -> Vec<String> {
    let (send, logged) = mpsc::channel();
    let log = gst::log::add_log_function(move |of, level, _, _, _, _, message| {
        let message = message.get().map(|text| text.to_string());
        if of.name() == category && level == gst::DebugLevel::Warning {
            let _ = send.send(message.unwrap_or_default());
        }
    });
    gst::log::set_threshold_for_name(category, gst::DebugLevel::Warning);
    act();
    gst::log::remove_log_function(log);
    logged.try_iter().collect()
}

/// The warnings that contain a word. Other tests of this process also log warnings.
fn with<'a>(logged: &'a [String], word: &str) -> Vec<&'a String> {
    logged.iter().filter(|text| text.contains(word)).collect()
}

/// Missed frames look like a lower frame rate, which can have many reasons.
#[test]
fn a_source_that_misses_frames_reports_the_reason_once() {
    let pools = Pools::new();
    let logged = warnings("GST_PERFORMANCE", || {
        let sender = pools.sender(&VIDEO.parse().unwrap(), "history=1");
        let receiver = pools.receiver("").connected();
        let sink = sender.sink();
        for round in 1..4 {
            // The appsink holds one frame, and the source waits with another.
            for _ in 0..20 {
                sender.push(frame());
            }
            until("they are out", || stat(&sink, "published") == round * 20);
            while receiver.stat("received") + receiver.stat("missed") < round * 20 {
                receiver.next().unwrap();
            }
        }
        assert!(receiver.stat("missed") > 0);
        let text = warning(&receiver.pipeline);
        assert_contains(&text, "Frames are missed");
        assert_eq!(receiver.pipeline.warnings().len(), 0);
    });
    assert_eq!(with(&logged, "missed").len(), 1, "{logged:?}");
}

/// Dropping frames past the budget is a setting, but the pool's statistics must show it.
#[test]
fn a_source_that_drops_frames_reports_it_once_and_to_the_producer() {
    let pools = Pools::new();
    let logged = warnings("GST_PERFORMANCE", || {
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
    assert_eq!(with(&logged, "over-budget=drop").len(), 1, "{logged:?}");
    assert!(with(&logged, "missed").is_empty(), "{logged:?}");
}

/// The sink keeps its last frame until it gets a newer one.
#[test]
fn a_source_whose_sink_holds_its_whole_budget_reports_it() {
    let pools = Pools::new();
    let producer = pools.launch(&format!(
        "videotestsrc is-live=true ! {VIDEO} ! xmemsink pool=POOL"
    ));
    producer.play();
    let consumer = pools.launch("xmemsrc pool=POOL max-held=1 over-budget=drop ! fakesink");
    consumer.play();
    let text = warning(&consumer);
    for part in ["All frames of pool", "holds 1", "Raise max-held"] {
        assert_contains(&text, part);
    }
}

#[test]
fn a_source_with_less_than_its_requested_budget_reports_it() {
    let pools = Pools::new();
    let _sender = pools.sender(&VIDEO.parse().unwrap(), "max-held=3");
    let logged = warnings("xmemsrc", || {
        let _asked = pools.receiver("max-held=20").connected();
    });
    let logged = with(&logged, "hold 20 slots");
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["granted 3", "raise max-held on xmemsink"] {
        assert!(logged[0].contains(part), "{logged:?}");
    }
    // A source with the default value has not requested a budget.
    let logged = warnings("xmemsrc", || {
        let default = pools.receiver("").connected();
        assert_eq!(default.stat("budget"), 3);
    });
    assert!(with(&logged, "granted").is_empty(), "{logged:?}");
}
