// SPDX-License-Identifier: MPL-2.0

//! Resource limits of the system: descriptors, file sizes, memory.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xmem_core::{
    AcquireError, Backing, ConnectError, Consumer, CreateError, Delivery, Producer, RegionError,
    SystemError, Wait,
};

use crate::support::child::Child;
use crate::support::raw::{self, Raw};
use crate::support::*;
use crate::{Bystander, SIZE, run_child};

/// Sets a limit. Returns the previous one.
pub(crate) fn limit(resource: Resource, current: u64) -> Rlimit {
    let before = getrlimit(resource);
    let now = Rlimit {
        current: Some(current),
        ..before
    };
    setrlimit(resource, now).unwrap();
    before
}

/// Opens all descriptors that the process may still have.
pub(crate) fn take_all_descriptors() -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file.into());
    }
    taken
}

pub(crate) fn no_descriptors(pool: &str) {
    let producer = Producer::builder(pool).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    let own = publish(&producer, 1000, SIZE);
    drop(receive(&mut bystander.consumer));
    // Repeats until none is free, because another thread may close one.
    let mut taken: Vec<OwnedFd> = Vec::new();
    let mut take_all = || taken.extend(take_all_descriptors());
    let next: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let free = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
    let before = limit(Resource::Nofile, free);
    take_all();
    let error = producer.acquire(4 << 20).unwrap_err();
    assert!(
        matches!(
            error,
            AcquireError::Region(RegionError::NoSpace { .. } | RegionError::System { .. })
        ),
        "{error}"
    );
    let error = Producer::builder(format!("{pool}2")).build().unwrap_err();
    assert!(matches!(error, CreateError::System { .. }), "{error}");
    let error = Consumer::builder(pool).connect().unwrap_err();
    assert!(matches!(error, ConnectError::System { .. }), "{error}");
    // Existing consumers continue. A state that cannot be stored is an error.
    bystander.frames(200);
    take_all();
    assert!(producer.set_sticky(&xmem_core::Sticky::new()).is_err());
    bystander.frames(200);
    assert_frame(&own, 1000, SIZE);
    // A new consumer is refused, without blocking the control thread.
    setrlimit(Resource::Nofile, before).unwrap();
    let late = Raw::connect(pool);
    limit(Resource::Nofile, free);
    let _ = late.send(&raw::join(raw::VERSION, 1), &[]);
    bystander.frames(200);
    // With free descriptors, everything works as before.
    setrlimit(Resource::Nofile, before).unwrap();
    drop(late);
    producer.acquire(4 << 20).unwrap();
    let mut consumer = Consumer::builder(pool).connect_wait(Some(HANG)).unwrap();
    bystander.frames(1);
    assert_whole(&receive(&mut consumer));
}

#[test]
fn running_out_of_descriptors_is_an_error_and_passes() {
    run_child("no-descriptors", &Place::new());
}

pub(crate) fn no_descriptors_to_grow(pool: &str) {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let producer = Producer::builder(pool).delivery(delivery);
        let producer = producer.build().unwrap();
        let mut held = vec![publish(&producer, 0, SIZE)];
        let next: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let free = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
        let before = limit(Resource::Nofile, free);
        // Repeated, because another thread may close one.
        let mut taken: Vec<OwnedFd> = Vec::new();
        let error = loop {
            taken.extend(take_all_descriptors());
            match producer.acquire(SIZE) {
                Ok(slot) => held.push(slot.publish(seeded(0, SIZE)).unwrap()),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(
            matches!(
                &error,
                AcquireError::Exhausted {
                    shortage: Some(_),
                    ..
                }
            ) && text.contains("it cannot grow")
                && text.contains("ulimit -n"),
            "{error:?}"
        );
        // No slot has this size.
        let error = producer.acquire(4 << 20).unwrap_err();
        assert!(matches!(error, AcquireError::Region(_)), "{error}");
        let wait = |time| producer.acquire_wait(SIZE, Wait::up_to(time));
        let error = wait(Duration::from_millis(1)).unwrap_err();
        assert!(matches!(error, AcquireError::Timeout), "{error}");
        let slots = held.len();
        held.pop();
        held.push(wait(HANG).unwrap().publish(seeded(0, SIZE)).unwrap());
        setrlimit(Resource::Nofile, before).unwrap();
        while held.len() <= slots {
            held.push(wait(HANG).unwrap().publish(seeded(0, SIZE)).unwrap());
        }
    }
}

#[test]
fn a_pool_that_cannot_grow_continues_with_its_slots() {
    run_child("no-descriptors-to-grow", &Place::new());
}

pub(crate) fn no_file_size(pool: &str) {
    let producer = Producer::builder(pool).build().unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    let before = limit(Resource::Fsize, 1 << 20);
    for size in [2 << 20, 1 << 30] {
        let error = producer.acquire(size).unwrap_err();
        assert!(
            matches!(error, AcquireError::Region(RegionError::NoSpace { .. }))
                && error.to_string().contains("RLIMIT_FSIZE"),
            "{error}"
        );
        bystander.frames(50);
    }
    // A segment in /dev/shm also counts as a file.
    let name = format!("{pool}3");
    let named = Producer::builder(&name).backing(Backing::PosixShm);
    let named = named.build().unwrap();
    let error = named.acquire(2 << 20).unwrap_err();
    assert_contains(&error.to_string(), "RLIMIT_FSIZE");
    publish(&named, 1, SIZE);
    // No bytes at all: not even the lock file can be written.
    limit(Resource::Fsize, 1);
    let error = Producer::builder(format!("{pool}2")).build().unwrap_err();
    assert!(matches!(error, CreateError::System { .. }), "{error}");
    // A temporary error: a later attempt may succeed.
    let error = Consumer::builder(pool).connect().unwrap_err();
    assert!(matches!(&error, ConnectError::NoAnswer { .. }), "{error}");
    bystander.frames(50);
    setrlimit(Resource::Fsize, before).unwrap();
    producer.acquire(2 << 20).unwrap();
    drop(Consumer::builder(pool).connect().unwrap());
    assert_eq!(producer.stats().dropped, 0);
}

#[test]
fn memory_that_cannot_be_reserved_is_an_error_and_passes() {
    run_child("no-file-size", &Place::new());
}

/// In a mount namespace with a /dev/shm of 1 MiB.
pub(crate) fn full_dev_shm(pool: &str) {
    let producer = Producer::builder(pool)
        .backing(Backing::PosixShm)
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    bystander.frames(10);
    for size in [2 << 20, 900_000] {
        let error = producer.acquire(size).unwrap_err();
        assert!(
            matches!(error, AcquireError::Region(RegionError::NoSpace { .. })),
            "{error}"
        );
        bystander.frames(10);
    }
    let segments = std::fs::read_dir("/dev/shm").unwrap().count();
    assert_eq!(segments, 1, "what could not be reserved is not left behind");
    // A full /dev/shm does not affect the other kind of memory.
    let other = Producer::builder(format!("{pool}2")).build().unwrap();
    publish(&other, 1, 2 << 20);
    drop(bystander);
    drop(producer);
    assert_eq!(std::fs::read_dir("/dev/shm").unwrap().count(), 0);
}

#[test]
fn a_full_dev_shm_is_an_error_and_no_signal() {
    const SCRIPT: &str = "mount -t tmpfs -o size=1m tmpfs /dev/shm && exec \"$0\" \"$@\"";
    let args = ["--mount", "sh", "-c", SCRIPT];
    let Some(mut command) = users::in_namespace("mount", &args) else {
        return;
    };
    let place = Place::new();
    command.arg(std::env::current_exe().unwrap());
    Child::from(command, "full-dev-shm", &place.pool()).done();
    place.assert_clean();
}

#[test]
fn grants_of_a_pool_are_bounded_and_refusals_have_a_reason() {
    let place = Place::new();
    let pool = place.pool();
    let producer = Producer::builder(&pool)
        .max_consumers(3)
        .max_held(4)
        .max_slots(32)
        .build()
        .unwrap();
    let mut bystander = Bystander::new(&producer);
    let budget = |asked: u32| {
        let raw = Raw::connect(&pool);
        raw.send(&raw::join(raw::VERSION, asked), &[]).unwrap();
        let (welcome, _fds) = raw.recv().unwrap();
        (raw, u32::from_le_bytes(welcome[13..17].try_into().unwrap()))
    };
    for (asked, granted) in [(0, 1), (1, 1), (4, 4), (5, 4), (u32::MAX, 4)] {
        let (raw, budget) = budget(asked);
        assert_eq!(budget, granted, "of {asked}");
        drop(raw);
        eventually("it is gone", || producer.stats().consumers.len() == 1);
    }
    // The maximum number.
    let refused = |name: &str| {
        let error = Consumer::builder(&pool).connect().unwrap_err();
        assert!(
            matches!(&error, ConnectError::Refused { reason, .. } if reason.contains(name)),
            "{error}"
        );
    };
    let others = [budget(1), budget(1)];
    for _ in 0..100 {
        refused("max-consumers");
        bystander.frames(1);
    }
    drop(others);
    eventually("there is room again", || {
        Consumer::builder(&pool).connect().is_ok()
    });
    bystander.frames(10);
}

/// In a mount namespace with space for one page and two files in the directory of the pool's files.
pub(crate) fn full_runtime_dir(pool: &str) {
    let dir = std::path::Path::new(pool).parent().unwrap();
    let files = || std::fs::read_dir(dir).unwrap().count();
    let full = dir.join("full");
    let build = || Producer::builder(pool).build();
    let works = || {
        let producer = build().unwrap();
        Bystander::new(&producer).frames(10);
        drop(producer);
        assert_eq!(files(), 0);
    };
    works();
    for bytes in [0, 4096] {
        // There is no inode for the socket, and no page for the content of the lock file.
        std::fs::write(&full, vec![1; bytes]).unwrap();
        let error = build().unwrap_err();
        assert!(
            matches!(&error, CreateError::System(SystemError { error, .. }) | CreateError::Lock { error, .. }
                if error.raw_os_error() == Some(libc::ENOSPC)),
            "{error}"
        );
        assert_eq!(files(), 1, "nothing but what was there");
        std::fs::remove_file(&full).unwrap();
        works();
    }
}

#[test]
fn a_full_runtime_dir_is_an_error_and_passes() {
    const SCRIPT: &str = "mount -t tmpfs -o size=4k,nr_inodes=3 tmpfs \"$0\" && exec \"$@\"";
    let place = Place::new();
    let dir = place.path().to_str().unwrap();
    let args = ["--mount", "sh", "-c", SCRIPT, dir];
    let Some(mut command) = users::in_namespace("mount", &args) else {
        return;
    };
    command.arg(std::env::current_exe().unwrap());
    Child::from(command, "full-runtime-dir", &place.pool()).done();
    place.assert_clean();
}
