// SPDX-License-Identifier: MPL-2.0

//! Streams are delayed, ordered, and synchronised with one another only as documented.

use crate::{Remote, fails, machine};
use xmem_cuda_standin::Machine;

const NON_BLOCKING: u64 = 1;
/// cuda.h: with an address on the device.
const DEVICEMAP: u64 = 2;

/// A word for which streams can wait: its address for the host and for the device.
pub(crate) fn gate(remote: &mut Remote) -> (u64, u64) {
    let host = remote.one("host", &[4096]);
    remote.done("register", &[host, 4096, DEVICEMAP]);
    let there = remote.one("device_pointer", &[host]);
    (host, there)
}

#[test]
fn work_without_a_wait_is_late() {
    let (_folder, machine) = machine();
    machine.only_here("blocked streams");
    let (mut writer, mut reader) = (Remote::new(&machine), Remote::new(&machine));
    let memory = writer.one("alloc", &[4096]);
    writer.done("set_now", &[memory, 1, 4096]);
    writer.done("synchronize", &[]);
    let handle = writer.handle(memory);
    let seen = reader.one("open", &handle);
    let hold = machine.hold(Some(writer.id()));
    let source = writer.one("host", &[4096]);
    writer.done("host_fill", &[source, 2, 4096]);
    // These calls also return before they are done: fills, and uploads from pageable memory.
    writer.done("set_now", &[memory, 2, 2048]);
    assert_eq!(reader.call("uniform", &[seen, 4096]), Ok(vec![1, 4096]));
    drop(hold);
    writer.done("synchronize", &[]);
    let hold = machine.hold(Some(writer.id()));
    writer.done("upload", &[memory + 2048, source, 2048]);
    assert_eq!(reader.call("uniform", &[seen, 4096]), Ok(vec![2, 2048]));
    drop(hold);
    writer.done("synchronize", &[]);
    assert_eq!(reader.call("uniform", &[seen, 4096]), Ok(vec![2, 4096]));
}

#[test]
fn streams_are_in_order_and_independent() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (host, there) = gate(&mut remote);
    let (one, two) = (
        remote.one("stream", &[NON_BLOCKING]),
        remote.one("stream", &[NON_BLOCKING]),
    );
    let memory = remote.one("alloc", &[4096]);
    remote.done("wait_value", &[there, 1, one]);
    remote.done("set", &[memory, 1, 4096, one]);
    remote.done("set", &[memory, 2, 4096, two]);
    remote.done("sync", &[two]);
    assert_eq!(
        remote.call("uniform_async", &[memory, 4096, two]),
        Ok(vec![2, 4096])
    );
    fails(remote.call("query", &[one]), "CUDA_ERROR_NOT_READY");
    remote.done("poke", &[host, 1]);
    remote.done("sync", &[one]);
    assert_eq!(
        remote.call("uniform_async", &[memory, 4096, two]),
        Ok(vec![1, 4096])
    );
    // Work that is queued on a destroyed stream is still executed.
    remote.done("set", &[memory, 3, 4096, one]);
    remote.done("destroy_stream", &[one]);
    if !Machine::is_real() {
        fails(remote.call("query", &[one]), "CUDA_ERROR_INVALID_HANDLE");
    }
    remote.done("synchronize", &[]);
    assert_eq!(
        remote.call("uniform_async", &[memory, 4096, two]),
        Ok(vec![3, 4096])
    );
}

#[test]
fn host_functions_wait_for_those_of_other_streams() {
    let (_folder, machine) = machine();
    machine.only_here("documented as possible");
    let mut remote = Remote::new(&machine);
    let (one, two) = (
        remote.one("stream", &[NON_BLOCKING]),
        remote.one("stream", &[NON_BLOCKING]),
    );
    let word = remote.one("host", &[4096]);
    remote.done("waiting_host_function", &[one, word]);
    while remote.one("peek", &[word]) == 0 {
        std::thread::yield_now();
    }
    remote.done("host_function", &[two]);
    fails(remote.call("query", &[two]), "CUDA_ERROR_NOT_READY");
    remote.done("poke", &[word, 2]);
    remote.done("sync", &[two]);
    assert_eq!(remote.call("ran", &[]).expect("a count")[0], 1);
}

#[test]
fn the_legacy_default_stream_waits_for_blocking_ones() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (host, there) = gate(&mut remote);
    let (blocking, free) = (
        remote.one("stream", &[0]),
        remote.one("stream", &[NON_BLOCKING]),
    );
    let memory = remote.one("alloc", &[4096]);
    remote.done("set", &[memory, 0, 4096, free]);
    remote.done("wait_value", &[there, 1, blocking]);
    remote.done("set", &[memory, 1, 4096, 0]);
    remote.done("sync", &[free]);
    fails(remote.call("query", &[0]), "CUDA_ERROR_NOT_READY");
    assert_eq!(
        remote.call("uniform_async", &[memory, 4096, free]),
        Ok(vec![0, 4096])
    );
    // A blocking stream also waits for the legacy stream. The thread's default stream is blocking.
    remote.done("set", &[memory, 2, 4096, 2]);
    fails(remote.call("query", &[2]), "CUDA_ERROR_NOT_READY");
    remote.done("poke", &[host, 1]);
    remote.done("synchronize", &[]);
    assert_eq!(
        remote.call("uniform_async", &[memory, 4096, free]),
        Ok(vec![2, 4096])
    );
}

#[test]
fn ordinary_memory_is_read_at_once_and_page_locked_memory_later() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (host, there) = gate(&mut remote);
    let stream = remote.one("stream", &[NON_BLOCKING]);
    let (ordinary, locked) = (
        remote.one("host", &[4096]),
        remote.one("host_alloc", &[4096]),
    );
    let memory = remote.one("alloc", &[8192]);
    remote.done("wait_value", &[there, 1, stream]);
    for (source, to) in [(ordinary, memory), (locked, memory + 4096)] {
        remote.done("host_fill", &[source, 1, 4096]);
        remote.done("upload_async", &[to, source, 4096, stream]);
        remote.done("host_fill", &[source, 2, 4096]);
    }
    remote.done("poke", &[host, 1]);
    remote.done("sync", &[stream]);
    assert_eq!(remote.call("uniform", &[memory, 4096]), Ok(vec![1, 4096]));
    assert_eq!(
        remote.call("uniform", &[memory + 4096, 4096]),
        Ok(vec![2, 4096])
    );
    // A download to page-locked memory is also delayed.
    remote.done("poke", &[host, 0]);
    remote.done("wait_value", &[there, 1, stream]);
    remote.done("download_async", &[locked, memory, 4096, stream]);
    assert_eq!(
        remote.call("host_uniform", &[locked, 4096]),
        Ok(vec![2, 4096])
    );
    remote.done("poke", &[host, 1]);
    remote.done("sync", &[stream]);
    assert_eq!(
        remote.call("host_uniform", &[locked, 4096]),
        Ok(vec![1, 4096])
    );
}

#[test]
fn host_functions_run_in_order_and_may_not_call_the_driver() {
    let (_folder, machine) = machine();
    machine.only_here("the log");
    let mut remote = Remote::new(&machine);
    let (host, there) = gate(&mut remote);
    remote.done("wait_value", &[there, 1, 0]);
    remote.done("host_function", &[0]);
    assert_eq!(remote.call("ran", &[]).expect("a count")[0], 0);
    remote.done("poke", &[host, 1]);
    remote.done("synchronize", &[]);
    assert_eq!(remote.call("ran", &[]).expect("a count")[0], 1);
    assert_eq!(machine.violations(), Vec::<String>::new());
    remote.done("bad_host_function", &[0]);
    remote.done("synchronize", &[]);
    assert_eq!(
        remote.call("ran", &[]),
        Ok(vec![2, 800]),
        "CUDA_ERROR_NOT_PERMITTED"
    );
    let violations = machine.violations();
    assert_eq!(violations.len(), 1);
    assert!(
        violations[0].contains("cuDriverGetVersion"),
        "{violations:?}"
    );
    assert_eq!(machine.calls(remote.id())["violations"], 1);
}

#[test]
fn words_are_written_when_the_stream_gets_there() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (host, there) = gate(&mut remote);
    // Loaded now, because loading a kernel may wait for streams; waited for, because it may run late.
    remote.done("end_lease_kernel", &[there + 8, 0]);
    remote.done("synchronize", &[]);
    remote.done("wait_value", &[there, 1, 0]);
    remote.done("write_value", &[there + 4, 7, 0]);
    remote.done("end_lease_kernel", &[there + 8, 0]);
    remote.done("poke", &[host + 8, 5]);
    assert_eq!(
        (
            remote.one("peek", &[host + 4]),
            remote.one("peek", &[host + 8])
        ),
        (0, 5)
    );
    remote.done("poke", &[host, 1]);
    remote.done("synchronize", &[]);
    assert_eq!(
        (
            remote.one("peek", &[host + 4]),
            remote.one("peek", &[host + 8])
        ),
        (7, 0)
    );
    if Machine::is_real() {
        return;
    }
    // Only device addresses are valid.
    fails(
        remote.call("write_value", &[host, 1, 0]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(
        remote.call("write_value", &[there + 2, 1, 0]),
        "CUDA_ERROR_INVALID_VALUE",
    );
}
