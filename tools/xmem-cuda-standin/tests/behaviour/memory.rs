// SPDX-License-Identifier: MPL-2.0

//! Device memory: not accessible by the CPU, limited, and the attributes of pointers.

use crate::{Remote, fails, machine, shareable};

#[test]
fn the_cpu_cannot_access_device_memory() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let memory = remote.one("alloc", &[4096]);
    assert_eq!(remote.dies_of("peek", &[memory]), Some(11), "SIGSEGV");
    let mut remote = Remote::new(&machine);
    let [memory, ..] = shareable(&mut remote, 2 << 20);
    assert_eq!(remote.dies_of("peek", &[memory]), Some(11), "SIGSEGV");
}

#[test]
fn it_runs_out() {
    let (_folder, machine) = machine();
    let machine = machine.with("MEMORY", 8 << 20);
    let (mut one, mut two) = (Remote::new(&machine), Remote::new(&machine));
    one.one("alloc", &[3 << 20]);
    let memory = two.one("alloc", &[3 << 20]);
    fails(one.call("alloc", &[3 << 20]), "CUDA_ERROR_OUT_OF_MEMORY");
    fails(
        one.call("vmm_create", &[0, 4 << 20, 1]),
        "CUDA_ERROR_OUT_OF_MEMORY",
    );
    // Each device has its own memory.
    one.one("vmm_create", &[1, 4 << 20, 1]);
    two.done("free", &[memory]);
    let third = one.one("alloc", &[3 << 20]);
    assert_eq!(one.one("free_memory", &[]), 2 << 20);
    one.done("free", &[third]);
    assert_eq!(machine.used_memory(0), 3 << 20);
    // The memory of a killed process is free.
    one.kill();
    assert_eq!(machine.used_memory(0), 0);
    assert_eq!(two.one("free_memory", &[]), 8 << 20);
}

#[test]
fn freed_under_a_kernel() {
    let (_folder, machine) = machine();
    let machine = machine.with("QUIRKS", "free-does-not-wait");
    let mut remote = Remote::new(&machine);
    let memory = remote.one("alloc", &[4096]);
    let hold = machine.hold(None);
    remote.done("fill_kernel", &[memory, 4096, 1, 0, 0]);
    remote.done("free", &[memory]);
    drop(hold);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
}

#[test]
fn attributes_of_a_pointer() {
    let (_folder, machine) = machine();
    machine.only_here("two devices");
    let mut remote = Remote::new(&machine);
    remote.one("primary", &[1]);
    let memory = remote.one("alloc", &[8192]);
    assert_eq!(
        remote.call("range", &[memory + 5000]),
        Ok(vec![memory, 8192])
    );
    assert_eq!(remote.one("ordinal", &[memory + 5000]), 1);
    assert_eq!(remote.one("ipc_capable", &[memory]), 1);
    let pooled = remote.one("alloc_async", &[8192, 0]);
    assert_eq!(remote.one("ipc_capable", &[pooled]), 0);
    let [shared, ..] = shareable(&mut remote, 2 << 20);
    assert_eq!(remote.one("ipc_capable", &[shared]), 0);
    fails(
        remote.call("ipc_handle", &[pooled]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(
        remote.call("ipc_handle", &[shared]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    remote.done("free", &[memory]);
    fails(
        remote.call("ordinal", &[memory]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(remote.call("free", &[memory]), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn a_device_accesses_only_its_own_memory() {
    let (_folder, machine) = machine();
    for (machine, reaches) in [
        (machine.clone(), false),
        (machine.clone().with("QUIRKS", "peers"), true),
    ] {
        let mut remote = Remote::new(&machine);
        let memory = remote.one("alloc", &[4096]);
        remote.one("primary", &[1]);
        let answer = remote.call("set_now", &[memory, 1, 4096]);
        if reaches {
            assert_eq!(answer, Ok(vec![]))
        } else {
            fails(answer, "CUDA_ERROR_INVALID_VALUE")
        }
    }
}

#[test]
fn rectangles_are_copied() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (from, to) = (remote.one("alloc", &[4096]), remote.one("alloc", &[4096]));
    remote.done("set_now", &[from, 7, 4096]);
    remote.done("set_now", &[to, 0, 4096]);
    // 5 rows of 10 bytes, to column 3 of row 2.
    remote.done("copy_rectangle", &[from, 64, to, 100, 10, 5, 3, 2]);
    let before = remote.call("uniform", &[to, 203]);
    assert_eq!(before, Ok(vec![0, 203]));
    for row in 2..7 {
        assert_eq!(
            remote.call("uniform", &[to + row * 100 + 3, 10]),
            Ok(vec![7, 10])
        );
        assert_eq!(
            remote.call("uniform", &[to + row * 100 + 13, 90]),
            Ok(vec![0, 90])
        );
    }
}

#[test]
fn unmapped_addresses_are_refused() {
    let (_folder, machine) = machine();
    machine.only_here("allocations are larger than asked for");
    let mut remote = Remote::new(&machine);
    let memory = remote.one("alloc", &[4096]);
    fails(
        remote.call("set_now", &[memory, 1, 4097]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(
        remote.call("uniform", &[memory + 4095, 2]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(remote.call("uniform", &[42, 2]), "CUDA_ERROR_INVALID_VALUE");
    // A kernel detects an invalid address when it runs.
    remote.done("fill_kernel", &[memory, 4097, 1, 0, 0]);
    fails(
        remote.call("synchronize", &[]),
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    );
    assert_eq!(machine.errors().len(), 1);
}
