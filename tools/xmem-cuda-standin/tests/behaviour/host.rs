// SPDX-License-Identifier: MPL-2.0

//! Page-locked host memory.

use crate::{Remote, fails, machine};
use xmem_cuda_standin::Machine;

const DEVICEMAP: u64 = 2;
const READ_ONLY: u64 = 8;

#[test]
fn registered_memory_has_another_address_there() {
    let (_folder, machine) = machine();
    machine.only_here("the address depends on the device");
    for (machine, same) in [
        (machine.clone(), false),
        (machine.with("QUIRKS", "same-host-pointer"), true),
    ] {
        let mut remote = Remote::new(&machine);
        let host = remote.one("host", &[8192]);
        fails(
            remote.call("device_pointer", &[host]),
            "CUDA_ERROR_INVALID_VALUE",
        );
        remote.done("register", &[host, 8192, DEVICEMAP]);
        let there = remote.one("device_pointer", &[host + 100]);
        assert_eq!(there == host + 100, same);
        assert_eq!(there % 4096, (host + 100) % 4096);
        remote.done("set_now", &[there, 9, 50]);
        remote.done("synchronize", &[]);
        assert_eq!(
            remote.call("host_uniform", &[host + 100, 50]),
            Ok(vec![9, 50])
        );
        fails(
            remote.call("register", &[host + 4096, 4096, 0]),
            "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        );
        remote.done("unregister", &[host]);
        fails(
            remote.call("unregister", &[host]),
            "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        );
        fails(
            remote.call("set_now", &[there, 9, 50]),
            "CUDA_ERROR_INVALID_VALUE",
        );
    }
}

#[test]
fn read_only_pages_need_the_flag() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let page = rustix::param::page_size() as u64;
    let size = 2 * page;
    let host = remote.one("host", &[size]);
    remote.done("host_fill", &[host, 3, size]);
    remote.done("protect", &[host + page, page]);
    fails(
        remote.call("register", &[host, size, 0]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    remote.done("register", &[host, size, READ_ONLY | DEVICEMAP]);
    let there = remote.one("device_pointer", &[host]);
    let memory = remote.one("alloc", &[size]);
    remote.done("copy", &[memory, there, size, 0]);
    assert_eq!(remote.call("uniform", &[memory, size]), Ok(vec![3, size]));
    // A real driver may let the device detect the error, which puts the context in error.
    if !Machine::is_real() {
        fails(
            remote.call("set_now", &[there, 1, 1]),
            "CUDA_ERROR_INVALID_VALUE",
        );
    }
    remote.done("fill_kernel", &[there, 1, 1, 0, 0]);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
    if Machine::is_real() {
        return;
    }
    // Unmapped memory is also refused.
    let mut remote = Remote::new(&machine.with("QUIRKS", "no-read-only-register"));
    let host = remote.one("host", &[4096]);
    fails(
        remote.call("register", &[host, 1 << 30, 0]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(
        remote.call("register", &[host, 4096, READ_ONLY]),
        "CUDA_ERROR_NOT_SUPPORTED",
    );
    remote.done("register", &[host, 4096, 0]);
}

#[test]
fn unregistered_under_a_copy() {
    let (_folder, machine) = machine();
    machine.only_here("blocked streams");
    let mut remote = Remote::new(&machine);
    let (host, memory) = (remote.one("host", &[4096]), remote.one("alloc", &[4096]));
    remote.done("register", &[host, 4096, 0]);
    let hold = machine.hold(None);
    remote.done("upload_async", &[memory, host, 4096, 0]);
    remote.done("unregister", &[host]);
    drop(hold);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
}

#[test]
fn host_memory_of_the_driver() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let host = remote.one("host_alloc", &[4096]);
    remote.done("host_fill", &[host, 5, 4096]);
    assert_eq!(remote.one("device_pointer", &[host]), host);
    let memory = remote.one("alloc", &[4096]);
    remote.done("copy_any", &[memory, host, 4096]);
    assert_eq!(remote.call("uniform", &[memory, 4096]), Ok(vec![5, 4096]));
    remote.done("host_free", &[host]);
    fails(
        remote.call("host_free", &[host]),
        "CUDA_ERROR_INVALID_VALUE",
    );
}
