// SPDX-License-Identifier: MPL-2.0

//! Used by the unit tests of this crate and of the crates above it. It is always compiled: with a feature, the tests of a crate and a
//! program that uses the crate would need two builds of this one.
#![allow(unsafe_code)] // fork
#![allow(clippy::unwrap_used)] // a failure ends the test

use crate::abi::device_header::{DeviceHeader, TwinKind, Uuid, header_len};

/// Whether `check` returns true in a forked child. The child runs only that, and is ended if it hangs.
pub fn is_so_in_a_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only calls `check`, and ends without exit handlers. The alarm ends it if it hangs.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(5) };
        let is_so = check();
        // SAFETY: as above.
        unsafe { libc::_exit((!is_so).into()) };
    }
    let mut status = -1;
    // SAFETY: a child of this process, and a pointer to a local variable.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status == 0
}

/// Like `is_so_in_a_child`, while another thread holds these locks. The child does not have that thread.
pub fn is_so_in_a_child_without<Locks>(
    lock: impl FnOnce() -> Locks + Send,
    check: impl FnOnce() -> bool,
) -> bool {
    use std::sync::mpsc::channel;
    let (locked, is_locked) = channel();
    let (forked, has_forked) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _locks = lock();
            locked.send(()).unwrap();
            let _ = has_forked.recv();
        });
        is_locked.recv().unwrap();
        let is_so = is_so_in_a_child(check);
        drop(forked);
        is_so
    })
}

/// A device header with all fields set.
pub fn device_header() -> DeviceHeader {
    let slots_at = header_len(3) as u64;
    DeviceHeader {
        kind: TwinKind::Vmm,
        uuid: Uuid([7; 16]),
        nonce: [8; 16],
        device_len: 2 << 20,
        device_offset: 0,
        slots: 3,
        device_stride: 4096,
        host_stride: 256,
        slots_at,
        canary_at: 3 * 4096,
        canary: [9; 32],
        handle: [0; 64],
        canary_handle: [0; 64],
        events: vec![[1; 64], [2; 64], [0; 64]],
    }
}
