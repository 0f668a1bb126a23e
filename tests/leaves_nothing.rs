// SPDX-License-Identifier: MPL-2.0

//! Elements that were started and stopped leave no resources. A separate test program, because it counts resources of the whole
//! process.

mod support;

use std::{collections::BTreeMap, fs, sync::mpsc};

use gst::prelude::*;
use support::*;

/// The resources that a process can leak.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    descriptors: BTreeMap<String, usize>,
    mappings: usize,
    threads: usize,
    files: Vec<String>,
}

impl Belongings {
    fn of_this_process(pools: &Pools) -> Self {
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            if let Ok(target) = fs::read_link(entry.path()) {
                // The inode numbers of sockets and pipes differ each time.
                let kind = target
                    .to_string_lossy()
                    .split([':', '['])
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                *descriptors.entry(kind).or_default() += 1;
            }
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut files: Vec<_> = fs::read_dir(pools.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        files.sort();
        Self {
            descriptors,
            mappings: maps
                .lines()
                .filter(|line| line.contains("memfd:") || line.contains("/dev/shm"))
                .count(),
            // GStreamer keeps threads of its own. The plugin's threads have names.
            threads: threads
                .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
                .filter(|name| name.starts_with("xmem"))
                .count(),
            files,
        }
    }
}

#[test]
fn ten_starts_and_stops_leave_nothing_behind() {
    let pools = Pools::new();
    let producer = pools.launch(
        "videotestsrc is-live=true ! video/x-raw,format=I420,width=320,height=240,framerate=100/1 \
         ! xmemsink name=sink pool=POOL",
    );
    // fakesink, because an appsink keeps the last sample.
    let consumer = pools.launch(
        "xmemsrc name=src pool=POOL \
         ! fakesink name=out sync=false signal-handoffs=true enable-last-sample=false",
    );
    let (send, arrived) = mpsc::channel();
    consumer
        .by_name("out")
        .connect("handoff", false, move |values| {
            let _ = send.send(values[1].get::<gst::Buffer>().unwrap());
            None
        });
    let run = |held: &mut Vec<gst::Buffer>| {
        producer.play();
        consumer.play();
        held.extend((0..5).map(|_| arrived.recv().unwrap()));
        producer.stop();
        consumer.stop();
        arrived.try_iter().for_each(drop);
    };
    // GStreamer itself opens some files at the first use.
    run(&mut Vec::new());
    // A joined thread is listed for a short time.
    until("no thread and no memory is left", || {
        let left = Belongings::of_this_process(&pools);
        (left.mappings, left.threads) == (0, 0)
    });
    let before = Belongings::of_this_process(&pools);
    assert!(
        before.files.iter().all(|file| file.ends_with(".lock")),
        "{before:?}"
    );

    for _ in 0..10 {
        run(&mut Vec::new());
    }
    until("what was there before", || {
        Belongings::of_this_process(&pools) == before
    });

    // Held frames need their memory, and nothing else.
    let mut held = Vec::new();
    run(&mut held);
    let copies: Vec<_> = held.iter().map(|buffer| bytes(buffer)).collect();
    for _ in 0..3 {
        run(&mut Vec::new());
    }
    assert!(Belongings::of_this_process(&pools).mappings > 0);
    for (buffer, copy) in held.iter().zip(&copies) {
        assert!(bytes(buffer) == *copy, "a held frame has changed");
    }
    drop(held);
    until("what was there before", || {
        Belongings::of_this_process(&pools) == before
    });
}
