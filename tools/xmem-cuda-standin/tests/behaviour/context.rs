// SPDX-License-Identifier: MPL-2.0

//! Contexts, and the effects of an error in one.

use crate::{Remote, fails, machine};
use xmem_cuda_standin::Machine;

#[test]
fn nothing_works_without_a_context() {
    let (_folder, machine) = machine();
    let mut remote = Remote::bare(&machine, &[]);
    fails(remote.call("alloc", &[4096]), "CUDA_ERROR_NOT_INITIALIZED");
    remote.done("init", &[]);
    fails(remote.call("alloc", &[4096]), "CUDA_ERROR_INVALID_CONTEXT");
}

#[test]
fn a_device_has_one_primary_context() {
    let (_folder, machine) = machine();
    machine.only_here("two devices");
    let mut remote = Remote::new(&machine);
    let first = remote.one("primary", &[0]);
    assert_eq!(remote.one("primary", &[0]), first);
    assert_ne!(remote.one("primary", &[1]), first);
    assert_ne!(remote.one("new_context", &[0]), first);
    // The context is destroyed with its last reference, including its memory.
    remote.done("use_context", &[first]);
    let memory = remote.one("alloc", &[4096]);
    for _ in 0..3 {
        assert_eq!(remote.call("range", &[memory]), Ok(vec![memory, 4096]));
        remote.done("release_primary", &[0]);
    }
    fails(
        remote.call("range", &[memory]),
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    );
    fails(
        remote.call("release_primary", &[0]),
        "CUDA_ERROR_INVALID_CONTEXT",
    );
    remote.one("primary", &[0]);
    fails(remote.call("range", &[memory]), "CUDA_ERROR_NOT_FOUND");
}

#[test]
fn an_error_ends_all_work_of_its_process() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let primary = remote.one("current", &[]);
    let other = remote.one("new_context", &[0]);
    remote.done("use_context", &[primary]);
    let memory = remote.one("alloc", &[4096]);
    let event = remote.one("event", &[2]);
    let hold = (!Machine::is_real()).then(|| machine.hold(None));
    remote.done("trap_kernel", &[0]);
    // Queued after the error, and never called.
    let queued = remote.call("host_function", &[0]);
    assert!(queued.is_ok() || Machine::is_real(), "{queued:?}");
    drop(hold);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
    for (name, arguments) in [
        ("alloc", &[4096][..]),
        ("free", &[memory]),
        ("query", &[0]),
        ("sync", &[0]),
        ("query_event", &[event]),
        ("host_function", &[0]),
        ("set_now", &[memory, 1, 1]),
    ] {
        fails(remote.call(name, arguments), "CUDA_ERROR_ILLEGAL_ADDRESS");
    }
    fails(remote.call("event", &[2]), "CUDA_ERROR_ILLEGAL_ADDRESS");
    // Contexts can still be made current. Those that existed before are in error too, and none can be made.
    fails(
        remote.call("new_context", &[0]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
    remote.done("use_context", &[other]);
    fails(remote.call("alloc", &[4096]), "CUDA_ERROR_ILLEGAL_ADDRESS");
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
    assert_eq!(remote.call("ran", &[]).expect("a count")[0], 0);
    assert_eq!(
        remote.end(),
        Some(0),
        "a process with such a context ends as others do"
    );
}

#[test]
fn the_nth_kernel_can_fail() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine.with("FAIL_KERNEL", 2));
    let memory = remote.one("alloc", &[4096]);
    remote.done("fill_kernel", &[memory, 4096, 1, 0, 0]);
    remote.done("synchronize", &[]);
    remote.done("fill_kernel", &[memory, 4096, 1, 0, 0]);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
}

#[test]
fn a_forked_child_has_no_driver() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    assert_eq!(
        remote.one("init_after_fork", &[]),
        3,
        "CUDA_ERROR_NOT_INITIALIZED"
    );
    remote.done("synchronize", &[]);
}

#[test]
fn work_of_a_destroyed_context_does_not_block() {
    let (_folder, machine) = machine();
    machine.only_here("undocumented");
    let mut remote = Remote::new(&machine);
    let context = remote.one("new_context", &[0]);
    let word = remote.one("alloc", &[4096]);
    remote.done("set32", &[word, 0, 1, 0]);
    remote.done("wait_value", &[word, 1, 0]);
    remote.done("destroy_context", &[context]);
    assert_eq!(remote.end(), Some(0));
}
