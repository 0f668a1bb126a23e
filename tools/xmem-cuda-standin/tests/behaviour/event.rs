// SPDX-License-Identifier: MPL-2.0

//! Events, including those of other processes.

use crate::stream::gate;
use crate::{Remote, fails, machine};
use xmem_cuda_standin::Machine;

const DISABLE_TIMING: u64 = 2;
const INTERPROCESS: u64 = 4 | DISABLE_TIMING;

#[test]
fn a_consumer_waits_for_the_producers_work() {
    let (_folder, machine) = machine();
    let (mut producer, mut consumer) = (Remote::new(&machine), Remote::new(&machine));
    let memory = producer.one("alloc", &[4096]);
    let event = producer.one("event", &[INTERPROCESS]);
    let handle = producer.handle(memory);
    let seen = consumer.one("open", &handle);
    let handle = producer.call("event_handle", &[event]).expect("a handle");
    let opened = consumer.one("open_event", &handle);
    consumer.done("query_event", &[opened]);
    let own = consumer.one("alloc", &[4096]);

    let (gate, there) = gate(&mut producer);
    producer.done("wait_value", &[there, 1, 0]);
    producer.done("set", &[memory, 1, 4096, 0]);
    producer.done("record", &[event, 0]);
    // The consumer's stream waits. The consumer's CPU thread does not.
    consumer.done("wait_event", &[opened, 0]);
    consumer.done("copy", &[own, seen, 4096, 0]);
    fails(consumer.call("query", &[0]), "CUDA_ERROR_NOT_READY");
    fails(
        consumer.call("query_event", &[opened]),
        "CUDA_ERROR_NOT_READY",
    );
    producer.done("poke", &[gate, 1]);
    consumer.done("sync_event", &[opened]);
    assert_eq!(consumer.call("uniform", &[own, 4096]), Ok(vec![1, 4096]));

    // A wait is for the latest record at the time of the call, not for later ones.
    let stream = consumer.one("stream", &[1]);
    consumer.done("wait_event", &[opened, stream]);
    producer.done("poke", &[gate, 0]);
    producer.done("wait_value", &[there, 1, 0]);
    producer.done("record", &[event, 0]);
    consumer.done("sync", &[stream]);
    fails(
        consumer.call("query_event", &[opened]),
        "CUDA_ERROR_NOT_READY",
    );
    producer.done("poke", &[gate, 1]);
}

#[test]
fn a_killed_producers_event_never_completes() {
    let (_folder, machine) = machine();
    machine.only_here("blocked streams");
    let (mut producer, mut consumer) = (Remote::new(&machine), Remote::new(&machine));
    let (one, two) = (
        producer.one("event", &[INTERPROCESS]),
        producer.one("event", &[INTERPROCESS]),
    );
    let handles =
        [one, two].map(|event| producer.call("event_handle", &[event]).expect("a handle"));
    producer.done("record", &[one, 0]);
    producer.done("synchronize", &[]);
    let hold = machine.hold(Some(producer.id()));
    producer.done("record", &[two, 0]);
    let opened = handles
        .clone()
        .map(|handle| consumer.one("open_event", &handle));
    producer.kill();
    drop(hold);
    consumer.done("query_event", &[opened[0]]);
    fails(
        consumer.call("query_event", &[opened[1]]),
        "CUDA_ERROR_NOT_READY",
    );
    for handle in handles {
        fails(
            consumer.call("open_event", &handle),
            "CUDA_ERROR_INVALID_HANDLE",
        );
    }
    // A stream that waits for the event is blocked. The process can still exit.
    consumer.done("wait_event", &[opened[1], 0]);
    fails(consumer.call("query", &[0]), "CUDA_ERROR_NOT_READY");
    consumer.done("release_primary", &[0]);
    assert_eq!(consumer.end(), Some(0));
}

#[test]
fn a_destroyed_event_is_an_error_for_importers() {
    let (_folder, machine) = machine();
    machine.only_here("undefined");
    let (mut producer, mut consumer) = (Remote::new(&machine), Remote::new(&machine));
    let event = producer.one("event", &[INTERPROCESS]);
    let handle = producer.call("event_handle", &[event]).expect("a handle");
    let opened = consumer.one("open_event", &handle);
    let again = consumer.one("open_event", &handle);
    consumer.done("destroy_event", &[again]);
    consumer.done("wait_event", &[opened, 0]);
    producer.done("destroy_event", &[event]);
    fails(
        consumer.call("wait_event", &[opened, 0]),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    fails(
        consumer.call("open_event", &handle),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    consumer.done("destroy_event", &[opened]);
    consumer.done("synchronize", &[]);
}

#[test]
fn interprocess_events_need_their_flags() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    fails(remote.call("event", &[4]), "CUDA_ERROR_INVALID_VALUE");
    let plain = remote.one("event", &[DISABLE_TIMING]);
    fails(
        remote.call("event_handle", &[plain]),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    let event = remote.one("event", &[INTERPROCESS]);
    let handle = remote.call("event_handle", &[event]).expect("a handle");
    fails(
        remote.call("open_event", &handle),
        "CUDA_ERROR_INVALID_CONTEXT",
    );
    fails(
        remote.call("open_event", &[1; 8]),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    // An event belongs to a context and can be recorded only on its streams.
    remote.one("new_context", &[0]);
    fails(
        remote.call("record", &[event, 0]),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    // Its streams cannot even wait for an interprocess event.
    assert_ne!(remote.dies_of("wait_event", &[event, 0]), None);
    if Machine::is_real() {
        return;
    }
    let mut remote = Remote::new(&machine.with("QUIRKS", "no-ipc-events"));
    fails(
        remote.call("event", &[INTERPROCESS]),
        "CUDA_ERROR_NOT_SUPPORTED",
    );
}
