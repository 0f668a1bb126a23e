// SPDX-License-Identifier: MPL-2.0

//! Devices, and missing drivers, old drivers, and drivers without devices.

use crate::{Remote, fails, machine};

#[test]
fn the_device_name_marks_the_stand_in() {
    let (_folder, machine) = machine();
    machine.only_here("its name");
    let mut remote = Remote::new(&machine);
    assert_eq!(remote.one("count", &[]), 2);
    assert_eq!(remote.one("is_called_a_standin", &[0]), 1);
    fails(remote.call("uuid", &[2]), "CUDA_ERROR_INVALID_DEVICE");
}

#[test]
fn devices_are_identified_by_uuid_and_not_by_ordinal() {
    let (_folder, machine) = machine();
    machine.only_here("two devices");
    let mut all = Remote::new(&machine);
    let mut second = Remote::with(&machine, &[("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!(second.one("count", &[]), 1);
    assert_eq!(all.call("uuid", &[1]), second.call("uuid", &[0]));
    assert_ne!(all.call("uuid", &[0]), all.call("uuid", &[1]));
    let (_folder, another) = crate::machine();
    assert_ne!(
        all.call("uuid", &[0]),
        Remote::new(&another).call("uuid", &[0])
    );
}

#[test]
fn no_device() {
    let (_folder, machine) = machine();
    let mut remote = Remote::bare(&machine.with("DEVICES", 0), &[]);
    assert_eq!(remote.one("present", &[]), 1);
    fails(remote.call("init", &[]), "CUDA_ERROR_NO_DEVICE");
    fails(remote.call("count", &[]), "CUDA_ERROR_NOT_INITIALIZED");
}

#[test]
fn no_driver() {
    // SAFETY: loads the driver if it exists, and closes it.
    if unsafe { cudarc::driver::sys::is_culib_present() } {
        eprintln!("not run: this machine has a driver of its own");
        return;
    }
    let (folder, machine) = machine();
    let empty = folder.path().to_str().expect("text");
    let mut remote = Remote::bare(&machine, &[("LD_LIBRARY_PATH", empty)]);
    assert_eq!(
        remote.one("present", &[]),
        0,
        "this machine has a driver of its own, so this test cannot show it"
    );
}

#[test]
fn an_older_driver_lacks_symbols() {
    let (_folder, machine) = machine();
    let mut remote = Remote::bare(&machine, &[]);
    assert_eq!(remote.one("has_write_value", &[]), 1);
    let mut remote = Remote::bare(&machine.without_symbols(&["cuStreamWriteValue32_v2"]), &[]);
    assert_eq!(remote.one("has_write_value", &[]), 0);
    assert_eq!(remote.one("has_wait_value", &[]), 1);
    remote.done("init", &[]);
}

#[test]
fn capabilities_can_be_missing() {
    let (_folder, machine) = machine();
    let mut remote = Remote::new(&machine.with("QUIRKS", "no-stream-mem-ops,no-vmm"));
    assert_eq!(remote.one("can_write_value", &[]), 0);
    let memory = remote.one("alloc", &[4096]);
    fails(
        remote.call("write_value", &[memory, 1, 0]),
        "CUDA_ERROR_NOT_SUPPORTED",
    );
    fails(
        remote.call("vmm_create", &[0, 2 << 20, 1]),
        "CUDA_ERROR_NOT_SUPPORTED",
    );
}

#[test]
fn counts_survive_the_process() {
    let (_folder, machine) = machine();
    machine.only_here("counts of calls");
    let mut remote = Remote::new(&machine);
    for _ in 0..3 {
        remote.one("alloc", &[4096]);
    }
    let process = remote.id();
    remote.kill();
    let calls = machine.calls(process);
    assert_eq!(calls["cuMemAlloc_v2"], 3);
    assert_eq!(calls["cuInit"], 1);
    assert!(!calls.contains_key("cuMemFree_v2"), "{calls:?}");
}
