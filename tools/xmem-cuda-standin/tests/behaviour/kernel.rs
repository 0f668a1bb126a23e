// SPDX-License-Identifier: MPL-2.0

//! The test kernels.

use crate::{Remote, fails, machine};

#[test]
fn kernels_fill_check_and_sum() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let (memory, result) = (
        remote.one("alloc", &[100_000]),
        remote.one("host_alloc", &[4096]),
    );
    // The driver does not clear page-locked memory.
    remote.done("host_fill", &[result, 0, 16]);
    remote.done("fill_kernel", &[memory, 100_000, 3, 1, 0]);
    remote.done("set", &[memory + 500, 4, 2, 0]);
    remote.done("check_kernel", &[memory, 100_000, 3, result, 0]);
    remote.done("check_kernel", &[memory, 100_000, 4, result + 4, 0]);
    remote.done("sum_kernel", &[memory, 100_000, result + 8, 0]);
    remote.done("synchronize", &[]);
    assert_eq!(remote.one("peek", &[result]), 2);
    assert_eq!(remote.one("peek", &[result + 4]), 99_998);
    assert_eq!(remote.one("peek", &[result + 8]), 300_002);
}

#[test]
fn modules_have_the_functions_of_their_text() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    fails(remote.call("unknown_kernel", &[]), "CUDA_ERROR_NOT_FOUND");
    fails(remote.call("bad_module", &[]), "CUDA_ERROR_INVALID_IMAGE");
}
