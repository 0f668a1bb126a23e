// SPDX-License-Identifier: MPL-2.0

//! Stream capture, and the calls that invalidate it.

use crate::{Remote, fails, machine};

const NON_BLOCKING: u64 = 1;
const GLOBAL: u64 = 0;
const RELAXED: u64 = 2;

#[test]
fn captured_work_does_not_run() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let stream = remote.one("stream", &[NON_BLOCKING]);
    assert_eq!(remote.one("capturing", &[stream]), 0);
    remote.done("begin_capture", &[stream, GLOBAL]);
    assert_eq!(remote.one("capturing", &[stream]), 1);
    remote.done("host_function", &[stream]);
    remote.done("end_capture", &[stream]);
    assert_eq!(remote.one("capturing", &[stream]), 0);
    remote.done("sync", &[stream]);
    assert_eq!(remote.call("ran", &[]).expect("a count")[0], 0);
    fails(
        remote.call("end_capture", &[stream]),
        "CUDA_ERROR_ILLEGAL_STATE",
    );
    fails(
        remote.call("begin_capture", &[0, GLOBAL]),
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    );
}

#[test]
fn unsafe_calls_invalidate_a_capture_except_in_relaxed_threads() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let stream = remote.one("stream", &[NON_BLOCKING]);
    let event = remote.one("event", &[2]);
    remote.done("begin_capture", &[stream, GLOBAL]);
    fails(
        remote.call("query_event", &[event]),
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    );
    assert_eq!(remote.one("capturing", &[stream]), 2);
    fails(
        remote.call("host_function", &[stream]),
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    );
    fails(
        remote.call("end_capture", &[stream]),
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    );
    remote.done("begin_capture", &[stream, GLOBAL]);
    assert_eq!(remote.one("capture_mode", &[RELAXED]), GLOBAL);
    remote.done("query_event", &[event]);
    let memory = remote.one("alloc", &[4096]);
    remote.done("free", &[memory]);
    assert_eq!(remote.one("capture_mode", &[GLOBAL]), RELAXED);
    remote.done("end_capture", &[stream]);
}

#[test]
fn waits_for_a_captured_stream_are_errors() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine);
    let stream = remote.one("stream", &[0]);
    remote.done("begin_capture", &[stream, RELAXED]);
    fails(
        remote.call("capturing", &[0]),
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
    );
    fails(
        remote.call("sync", &[stream]),
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    );
    fails(
        remote.call("end_capture", &[stream]),
        "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
    );
}
