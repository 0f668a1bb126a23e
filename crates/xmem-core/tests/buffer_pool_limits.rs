// SPDX-License-Identifier: MPL-2.0

//! How many buffers there may be.

use xmem_core::{BufferPool, PoolStats, WriteAccessError, query};

struct Fixture {
    _dir: tempfile::TempDir,
    name: String,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("p.sock").to_str().unwrap().to_owned();
        Self { _dir: dir, name }
    }

    fn stats(&self) -> PoolStats {
        query(&self.name).unwrap()
    }
}

#[test]
fn more_than_there_may_be_are_not_preallocated() {
    let f = Fixture::new();
    let owner = BufferPool::new(&f.name).unwrap();
    owner.preallocate_cpu(1 << 20, 8).unwrap();
    owner.preallocate_cpu(100, 8).unwrap();
    let before = f.stats();
    let error = owner.preallocate_cpu(10, 257).unwrap_err();
    assert!(
        matches!(&error, WriteAccessError::Denied { reason }
            if reason.contains("257") && reason.contains("256") && reason.contains("max_buffers")),
        "{error}"
    );
    assert!(owner.preallocate_cpu(10, usize::MAX).is_err());
    let after = f.stats();
    assert_eq!(
        (after.slots, after.regions, after.bytes),
        (before.slots, before.regions, before.bytes)
    );
    // Nor more than are not in somebody's hands.
    let held = [10, 1 << 20].map(|size| owner.acquire_cpu(size).unwrap());
    let before = f.stats();
    let error = owner.preallocate_cpu(10, 255).unwrap_err();
    assert!(error.to_string().contains("2 are in use"), "{error}");
    assert_eq!(f.stats().bytes, before.bytes);
    drop(held);
    assert_eq!(owner.preallocate_cpu(10, 256).unwrap().len(), 256);
}

#[test]
fn what_was_preallocated_before_it_failed_is_given_back() {
    let f = Fixture::new();
    let owner = BufferPool::options(&f.name).max_buffers(64).open().unwrap();
    // Nobody holds these, but they are kept.
    let kept: Vec<u32> = (0..4)
        .map(|_| owner.acquire_cpu(4).unwrap().forget().unwrap())
        .collect();
    let before = f.stats();
    assert!(owner.preallocate_cpu(1 << 20, 62).is_err());
    let after = f.stats();
    assert!(
        after.slots < before.slots + 32 && after.bytes < 32 << 20,
        "{} slots, {} bytes",
        after.slots,
        after.bytes
    );
    for index in kept {
        owner.get(index).unwrap();
    }
}
