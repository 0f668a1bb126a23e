// SPDX-License-Identifier: MPL-2.0

//! Legacy handles.

use crate::{Remote, fails, is, machine, uses};
use xmem_cuda_standin::Machine;

#[test]
fn a_handle_covers_the_whole_allocation() {
    let (_folder, machine) = machine();
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let memory = exporter.one("alloc", &[8192]);
    exporter.done("set_now", &[memory, 1, 4096]);
    exporter.done("set_now", &[memory + 4096, 2, 4096]);
    exporter.done("synchronize", &[]);
    let handle = exporter.handle(memory + 4096);
    is(exporter.handle(memory), handle.clone());
    let seen = importer.one("open", &handle);
    assert_eq!(importer.call("uniform", &[seen, 4096]), Ok(vec![1, 4096]));
    is(importer.call("range", &[seen + 5000]), Ok(vec![seen, 8192]));
    // Imported memory cannot be exported again.
    fails(
        importer.call("ipc_handle", &[seen]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    if Machine::is_real() {
        return;
    }
    fails(importer.call("free", &[seen]), "CUDA_ERROR_INVALID_VALUE");
}

#[test]
fn each_open_of_a_handle_is_counted() {
    let (_folder, machine) = machine();
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let memory = exporter.one("alloc", &[4096]);
    let handle = exporter.handle(memory);
    let seen = importer.one("open", &handle);
    is(importer.one("open", &handle), seen);
    importer.done("close", &[seen]);
    importer.call("uniform", &[seen, 4096]).expect("still open");
    importer.done("close", &[seen]);
    if Machine::is_real() {
        return;
    }
    fails(
        importer.call("uniform", &[seen, 4096]),
        "CUDA_ERROR_INVALID_VALUE",
    );
    fails(importer.call("close", &[seen]), "CUDA_ERROR_INVALID_VALUE");
    let mut older = Remote::new(&machine.with("QUIRKS", "already-mapped"));
    older.one("open", &handle);
    fails(older.call("open", &handle), "CUDA_ERROR_ALREADY_MAPPED");
}

#[test]
fn one_context_for_all_handles_of_an_exporters_device() {
    let (_folder, machine) = machine();
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let (one, two) = (
        exporter.one("alloc", &[4096]),
        exporter.one("alloc", &[4096]),
    );
    let (one, two) = (exporter.handle(one), exporter.handle(two));
    let primary = importer.one("current", &[]);
    let seen = importer.one("open", &one);
    importer.one("new_context", &[0]);
    if Machine::is_real() {
        // `xmem-gpu question e` reports the result.
        return;
    }
    fails(importer.call("open", &one), "CUDA_ERROR_ALREADY_MAPPED");
    fails(importer.call("open", &two), "CUDA_ERROR_ALREADY_MAPPED");
    importer.done("close", &[seen]);
    importer.one("open", &two);
    importer.done("use_context", &[primary]);
    fails(importer.call("open", &two), "CUDA_ERROR_ALREADY_MAPPED");
}

#[test]
fn handles_that_cannot_be_opened() {
    let (_folder, machine) = machine();
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let (kept, freed) = (
        exporter.one("alloc", &[4096]),
        exporter.one("alloc", &[4096]),
    );
    let (handle, freed_handle) = (exporter.handle(kept), exporter.handle(freed));
    fails(exporter.call("open", &handle), "CUDA_ERROR_INVALID_CONTEXT");
    exporter.done("free", &[freed]);
    fails(
        importer.call("open", &freed_handle),
        "CUDA_ERROR_INVALID_HANDLE",
    );
    fails(importer.call("open", &[7; 8]), "CUDA_ERROR_INVALID_HANDLE");
    if Machine::is_real() {
        return;
    }
    importer.one("primary", &[1]);
    fails(
        importer.call("open", &handle),
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    );
    importer.one("primary", &[0]);
    let mut without = Remote::new(&machine.with("QUIRKS", "no-legacy-ipc"));
    fails(without.call("open", &handle), "CUDA_ERROR_NOT_SUPPORTED");
    exporter.kill();
    fails(importer.call("open", &handle), "CUDA_ERROR_INVALID_HANDLE");
}

#[test]
fn memory_freed_under_an_importer_is_detected() {
    let (_folder, machine) = machine();
    machine.only_here("undefined");
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let memory = exporter.one("alloc", &[4096]);
    exporter.done("set_now", &[memory, 1, 4096]);
    let handle = exporter.handle(memory);
    let seen = importer.one("open", &handle);
    exporter.done("free", &[memory]);
    assert_eq!(
        importer.call("uniform", &[seen, 4096]),
        Ok(vec![0xdb, 4096])
    );
    fails(
        Remote::new(&machine).call("open", &handle),
        "CUDA_ERROR_INVALID_HANDLE",
    );
}

#[test]
fn mapped_memory_outlives_a_killed_exporter() {
    let (_folder, machine) = machine();
    let (mut exporter, mut importer) = (Remote::new(&machine), Remote::new(&machine));
    let memory = exporter.one("alloc", &[2 << 20]);
    exporter.done("set_now", &[memory, 1, 2 << 20]);
    exporter.done("synchronize", &[]);
    let handle = exporter.handle(memory);
    let seen = importer.one("open", &handle);
    exporter.kill();
    assert_eq!(
        importer.call("uniform", &[seen, 2 << 20]),
        Ok(vec![1, 2 << 20])
    );
    uses(&machine, 2 << 20);
    importer.done("close", &[seen]);
    uses(&machine, 0);
}
