// SPDX-License-Identifier: MPL-2.0

//! Processes that have come to a limit of the system's.

mod support;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use support::{process::*, *};

const PRODUCER: &str =
    "videotestsrc is-live=true ! video/x-raw,width=64,height=48,framerate=100/1 ! xmemsink pool=p";

/// How many descriptors a process may have.
fn set_descriptors(launch: &Launch, most: Option<u64>) {
    let own = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: most.or(own.current),
        ..own
    };
    let pid = Pid::from_raw(launch.pid().cast_signed());
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

/// Whether a consumer has taken a frame.
fn has_consumer(pools: &Pools) -> bool {
    pool_stats(pools, "p")
        .is_some_and(|stats| stats.consumers.iter().any(|consumer| consumer.received > 0))
}

/// A temporary shortage ends no stream that goes on.
#[test]
fn a_source_without_descriptors_reconnects_when_it_has_some() {
    let pools = prepared();
    let mut first = Launch::new(&pools, "first", &[], PRODUCER);
    let mut source = Launch::new(&pools, "source", &["-m"], "xmemsrc pool=p ! fakesink");
    until("connected", || has_consumer(&pools));
    // As many as gst-launch-1.0 has for itself; it could not poll them with less.
    set_descriptors(&source, Some(5));
    first.signal(Signal::KILL);
    first.wait();
    let _second = Launch::new(&pools, "second", &[], PRODUCER);
    until("there is a producer", || pool_stats(&pools, "p").is_some());
    until("it reports what it lacks", || {
        assert!(!source.has_ended(), "{}", source.log());
        source.log().contains("Too many open files")
    });
    assert!(!has_consumer(&pools));
    set_descriptors(&source, None);
    until("connected again", || has_consumer(&pools));
    assert!(!source.has_ended(), "{}", source.log());
}
