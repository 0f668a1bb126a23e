// SPDX-License-Identifier: MPL-2.0

//! The behaviour of the stand-in, seen by programs that load it as they would load a driver. Each test scripts one or more
//! processes ([`remote`]), which are real ones and can be killed.

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

/// Not a limit on speed: after this a test hangs.
const HANG: Duration = Duration::from_secs(60);

/// A machine in a folder of its own, which goes away at the end.
fn machine() -> (tempfile::TempDir, Machine) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(folder.path().join("machine"));
    (folder, machine)
}

/// An answer that is an error of that name. Of a real driver any error will do, since its documentation leaves most of them
/// open; which one it was is printed, for the record.
#[track_caller]
fn fails<T: std::fmt::Debug>(answer: Result<T, Failed>, error: &str) {
    match answer {
        Err(Failed(name)) if name == error => {}
        Err(Failed(name)) if Machine::is_real() => eprintln!("DIFFERS: {name} instead of {error}"),
        Ok(answer) if Machine::is_real() => eprintln!("DIFFERS: {answer:?} instead of {error}"),
        other => panic!("{other:?} instead of {error}"),
    }
}

/// An answer that a real driver may give otherwise; then that is printed, for the record.
#[track_caller]
fn is<T: std::fmt::Debug + PartialEq>(answer: T, expected: T) {
    if Machine::is_real() && answer != expected {
        eprintln!("DIFFERS: {answer:?} instead of {expected:?}");
    } else {
        assert_eq!(answer, expected);
    }
}

/// Wait until that much memory of the first device is in use, where that can be known. A process that another test is just
/// starting has all descriptors of this one until its program runs, and memory is in use for as long.
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

/// Memory that another process can take by a descriptor: pointer, handle, descriptor.
fn shareable(remote: &mut Remote, size: u64) -> [u64; 3] {
    let handle = remote.one("vmm_create", &[0, size, 1]);
    let pointer = remote.one("vmm_reserve", &[size]);
    remote.done("vmm_map", &[pointer, size, handle]);
    remote.done("vmm_access", &[pointer, size, 0, 3]);
    [pointer, handle, remote.one("vmm_export", &[handle])]
}
