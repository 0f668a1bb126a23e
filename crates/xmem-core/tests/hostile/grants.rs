// SPDX-License-Identifier: MPL-2.0

//! Owners of buffers that send false grants.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, fallocate};
use xmem_core::{BufferPool, ReceiveError, WriteAccessError};

use crate::regions::device_region;
use crate::support::raw::{self, Fake, Raw};
use crate::support::*;

/// A pool whose owner is made by hand. It sends this as its region, and grants these slots, one after the other: number, and
/// first byte. The last one is granted again and again.
fn with_owner<T>(
    may_write: bool,
    region: (&[u8], Option<&OwnedFd>),
    grants: &[(u32, u64)],
    act: impl FnOnce(&BufferPool) -> T,
) -> T {
    let place = Place::new();
    let fake = Fake::at(place.pool());
    let (control_fd, control) = raw::control(None);
    control.set(raw::BY_NUMBER, 1);
    let page = raw::memory(1 << 16, true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let welcome = raw::welcome_of(raw::VERSION, "fake", may_write);
            let raw = fake.answer(&welcome, &[&control_fd, &page]);
            let mut granted = 0;
            while let Some((question, _)) = raw.recv() {
                let fds: Vec<_> = region.1.iter().map(|fd| fd.as_fd()).collect();
                let request = || u32::from_le_bytes(question[1..5].try_into().unwrap());
                let _ = match question[0] {
                    3 => raw.send(region.0, &fds),
                    7 => {
                        let (slot, offset) = grants[granted.min(grants.len() - 1)];
                        granted += 1;
                        raw.send(&raw::granted(request(), slot, offset, 4096), &[])
                    }
                    // One that is published, which is to be answered.
                    9 if question[13] == 1 => raw.send(&raw::granted(request(), 1, 0, 4096), &[]),
                    _ => Ok(()),
                };
            }
        });
        act(&BufferPool::new(&place.pool()).unwrap())
    })
}

#[test]
fn a_peer_without_write_permission_takes_no_grant() {
    // The flag in the welcome, and the memory sent as the region.
    type Case = (&'static str, bool, Vec<u8>, Option<OwnedFd>);
    let segment = tempfile::Builder::new()
        .prefix("xmem-test-")
        .tempfile_in("/dev/shm")
        .unwrap();
    segment.as_file().set_len(8192).unwrap();
    fallocate(segment.as_file(), FallocateFlags::empty(), 0, 8192).unwrap();
    let name = segment.path().to_str().unwrap();
    let name = name.strip_prefix("/dev/shm").unwrap();
    let memfd = || raw::region(1, 8192, 0, "");
    let writable = raw::memory(8192, true);
    let path = format!("/proc/self/fd/{}", writable.as_raw_fd());
    let read_only: OwnedFd = std::fs::File::open(path).unwrap().into();
    let cases: [Case; 7] = [
        ("not asked for", false, memfd(), Some(raw::frozen(8192))),
        (
            "not asked for, writable",
            false,
            memfd(),
            Some(raw::memory(8192, true)),
        ),
        ("by name", true, raw::region(1, 8192, 1, name), None),
        (
            "sealed against writing",
            true,
            memfd(),
            Some(raw::frozen(8192)),
        ),
        ("read-only", true, memfd(), Some(read_only)),
        (
            "another process's memory",
            true,
            raw::region(1, 8192, 3, ""),
            Some(raw::memory(8192, true)),
        ),
        (
            "on a device",
            true,
            raw::region(1, 8192, 4, ""),
            Some(device_region(&[])),
        ),
    ];
    let ask = |may: bool, message: &[u8], fd: Option<&OwnedFd>| {
        let region = (message, fd);
        with_owner(may, region, &[(1, 0)], |pool| {
            let mut buffer = pool.acquire_cpu(4096)?;
            // A signal, if it cannot be written.
            buffer.as_cpu_slice_mut().unwrap().fill(7);
            Ok::<(), WriteAccessError>(())
        })
    };
    ask(true, &memfd(), Some(&writable)).expect("this one is as it should be");
    for (what, may, message, fd) in &cases {
        let error = ask(*may, message, fd.as_ref()).expect_err(what);
        assert!(
            matches!(
                error,
                WriteAccessError::Owner(_) | WriteAccessError::Denied { .. }
            ),
            "{what}: {error}"
        );
    }
}

/// A peer that did not wait for the message that its slot is published returns the slot, which is not its own any more.
#[test]
fn a_slot_returned_late_is_no_violation() {
    let place = Place::new();
    let options = BufferPool::options(&place.pool()).peers_may_write(true);
    let _owner = options.open().unwrap();
    let (peer, _joined) = Raw::join(&place.pool(), 2);
    let number =
        |message: &[u8], at: usize| u32::from_le_bytes(message[at..at + 4].try_into().unwrap());
    peer.send(&raw::acquire_slot(1, 100), &[]).unwrap();
    let (granted, _) = peer.recv_kind(8);
    let (slot, generation) = (number(&granted, 5), number(&granted, 9));
    peer.send(&raw::written(2, slot, generation, Some((0, 100))), &[])
        .unwrap();
    peer.recv_kind(8);
    peer.send(&raw::written(0, slot, generation, None), &[])
        .unwrap();
    // It can still join, and gets answers.
    peer.send(&raw::acquire_slot(3, 100), &[]).unwrap();
    peer.recv_kind(8);
    // A peer publishes only its own slots.
    peer.send(&raw::written(4, slot, generation, Some((0, 100))), &[])
        .unwrap();
    while peer.recv().is_some() {}
}

#[test]
fn a_slot_that_is_written_is_granted_once() {
    let memory = raw::memory(8192, true);
    let message = raw::region(1, 8192, 0, "");
    let region = (&message[..], Some(&memory));
    // The same slot, and others that lie partly where it does.
    for grants in [[(1, 0), (1, 0)], [(1, 0), (2, 4095)], [(1, 4096), (2, 1)]] {
        with_owner(true, region, &grants, |pool| {
            let mut first = pool.acquire_cpu(100).unwrap();
            let first = first.as_cpu_slice_mut().unwrap();
            let error = pool.acquire_cpu(100).unwrap_err();
            assert!(
                matches!(&error, WriteAccessError::Owner(ReceiveError::Corrupt(what))
                    if what.contains("already")),
                "{grants:?}: {error}"
            );
            first.fill(7);
        });
    }
    // Beside each other, and one after the other.
    with_owner(true, region, &[(1, 0), (2, 4096), (1, 0)], |pool| {
        let first = pool.acquire_cpu(100).unwrap();
        let mut second = pool.acquire_cpu(100).unwrap();
        second.as_cpu_slice_mut().unwrap().fill(7);
        drop(first);
        for _ in 0..3 {
            pool.acquire_cpu(100).unwrap();
            pool.acquire_cpu(100).unwrap().forget().unwrap();
        }
    });
}
