// SPDX-License-Identifier: MPL-2.0

//! The behaviour of the stand-in in programs that load it as a driver. Each test controls one or more child processes ([`remote`]),
//! which can be killed.

mod capture;
mod context;
mod device;
mod event;
mod host;
mod ipc;
mod kernel;
mod memory;
mod remote;
mod stream;
mod vmm;

use std::time::{Duration, Instant};

use remote::{Failed, Remote};
use xmem_cuda_standin::Machine;

/// Not a limit on speed: a test that takes longer hangs.
const HANG: Duration = Duration::from_secs(60);

/// A machine in a temporary folder, which is removed at the end.
fn machine() -> (tempfile::TempDir, Machine) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(folder.path().join("machine"));
    (folder, machine)
}

/// Asserts that a call failed with this error. With a real driver, any error passes and is printed, because the documentation
/// leaves most of them open.
#[track_caller]
fn fails<T: std::fmt::Debug>(answer: Result<T, Failed>, error: &str) {
    match answer {
        Err(Failed(name)) if name == error => {}
        Err(Failed(name)) if Machine::is_real() => eprintln!("DIFFERS: {name} instead of {error}"),
        Ok(answer) if Machine::is_real() => eprintln!("DIFFERS: {answer:?} instead of {error}"),
        other => panic!("{other:?} instead of {error}"),
    }
}

/// Asserts a result. With a real driver, a different result is printed.
#[track_caller]
fn is<T: std::fmt::Debug + PartialEq>(answer: T, expected: T) {
    if Machine::is_real() && answer != expected {
        eprintln!("DIFFERS: {answer:?} instead of {expected:?}");
    } else {
        assert_eq!(answer, expected);
    }
}

/// Waits until this number of bytes of the first device is in use, if it can be measured. A process that another test is starting
/// inherits all descriptors until its exec, so memory stays in use for that time.
#[track_caller]
fn uses(machine: &Machine, bytes: u64) {
    let start = Instant::now();
    while !Machine::is_real() && machine.used_memory(0) != bytes {
        assert!(
            start.elapsed() < HANG,
            "{} bytes are in use instead of {bytes}",
            machine.used_memory(0)
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Memory that another process can import by descriptor: pointer, handle, descriptor.
fn shareable(remote: &mut Remote, size: u64) -> [u64; 3] {
    let handle = remote.one("vmm_create", &[0, size, 1]);
    let pointer = remote.one("vmm_reserve", &[size]);
    remote.done("vmm_map", &[pointer, size, handle]);
    remote.done("vmm_access", &[pointer, size, 0, 3]);
    [pointer, handle, remote.one("vmm_export", &[handle])]
}
