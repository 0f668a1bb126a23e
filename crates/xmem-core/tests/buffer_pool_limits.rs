// SPDX-License-Identifier: MPL-2.0

//! How many buffers there may be, and how many processes.

mod support;

use support::*;
use xmem_core::{BufferPool, BufferPoolOptions, GetError, WriteAccessError};

#[test]
fn buffers_are_divided_among_processes() {
    let set = |f: fn(BufferPoolOptions) -> BufferPoolOptions| f;
    let cases = [
        // With room for 238 or so: each takes one more than it may hold.
        (set(|options| options), 26, 8),
        (set(|options| options), 100, 1),
        (set(|options| options.max_held(1)), 119, 1),
        (set(|options| options.max_held(32)), 26, 8),
        (set(|options| options.max_buffers(12)), 2, 3),
        (set(|options| options.max_buffers(12)), 3, 2),
        // As many others, with what each takes.
        (
            set(|options| options.max_buffers(40 * 3 + 18).max_held(2)),
            40,
            2,
        ),
    ];
    for (set, others, held) in cases {
        let place = Place::new();
        let owner = set(BufferPool::options(&place.pool())).open().unwrap();
        let open = || BufferPool::new(&place.pool()).unwrap();
        let peers: Vec<_> = (0..others).map(|_| open()).collect();
        let indices: Vec<u32> = (0..=held)
            .map(|_| owner.acquire_cpu(4).unwrap().forget().unwrap())
            .collect();
        let mut indices = indices.into_iter();
        let kept: Vec<_> = indices
            .by_ref()
            .take(held)
            .map(|index| peers[0].get(index).unwrap())
            .collect();
        assert!(matches!(
            peers[0].get(indices.next().unwrap()),
            Err(GetError::OverBudget { budget }) if budget as usize == held
        ));
        drop(kept);
    }
}

#[test]
fn as_many_processes_can_join_as_there_are_buffers() {
    let place = Place::new();
    let owner = BufferPool::options(&place.pool())
        .max_buffers(12)
        .open()
        .unwrap();
    let open = || BufferPool::new(&place.pool());
    let peers: Vec<_> = (0..12).map(|_| open().unwrap()).collect();
    let refusal = open().unwrap_err().to_string();
    assert!(refusal.contains("max_buffers"), "{refusal}");
    // One buffer at a time.
    for peer in &peers {
        let indices = [(); 2].map(|()| owner.acquire_cpu(4).unwrap().forget().unwrap());
        let held = peer.get(indices[0]).unwrap();
        assert!(matches!(
            peer.get(indices[1]),
            Err(GetError::OverBudget { budget: 0 })
        ));
        drop(held);
        peer.get(indices[1]).unwrap();
    }
}

#[test]
fn a_request_above_max_held_is_granted_max_held() {
    let place = Place::new();
    let _owner = BufferPool::options(&place.pool())
        .max_held(20)
        .open()
        .unwrap();
    let budgets = |place: &Place| -> Vec<u32> {
        let stats = stats_of(&place.pool());
        stats
            .consumers
            .iter()
            .map(|consumer| consumer.budget)
            .collect()
    };
    let _peers: Vec<_> = [Some(30), Some(12), None]
        .map(|held| {
            let options = BufferPool::options(&place.pool());
            let options = match held {
                Some(held) => options.max_held(held),
                None => options,
            };
            options.open().unwrap()
        })
        .into();
    assert_eq!(budgets(&place), [20, 12, 8]);
}

#[test]
fn preallocation_above_max_buffers_is_an_error() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let large = owner.preallocate_cpu(1 << 20, 8).unwrap();
    owner.preallocate_cpu(100, 8).unwrap();
    let before = stats_of(&place.pool());
    let error = owner.preallocate_cpu(10, 257).unwrap_err();
    assert!(
        matches!(&error, WriteAccessError::Denied { reason }
            if reason.contains("257") && reason.contains("256") && reason.contains("max_buffers")),
        "{error}"
    );
    assert!(owner.preallocate_cpu(10, usize::MAX).is_err());
    let after = stats_of(&place.pool());
    assert_eq!(
        (after.slots, after.regions, after.bytes),
        (before.slots, before.regions, before.bytes)
    );
    // Nor more than are free.
    let held = [10, 1 << 20].map(|size| owner.acquire_cpu(size).unwrap());
    let before = stats_of(&place.pool());
    let error = owner.preallocate_cpu(10, 255).unwrap_err();
    assert!(error.to_string().contains("2 are in use"), "{error}");
    assert_eq!(stats_of(&place.pool()).bytes, before.bytes);
    drop(held);
    // What is set aside for other sizes stays until it is given up.
    let error = owner.preallocate_cpu(10, 256).unwrap_err();
    assert!(error.to_string().contains("16 are set aside"), "{error}");
    assert_eq!(owner.give_up(&large), 8);
    assert_eq!(owner.preallocate_cpu(10, 256).unwrap().len(), 256);
}

#[test]
fn a_failed_preallocation_returns_its_buffers() {
    let place = Place::new();
    let owner = BufferPool::options(&place.pool())
        .max_buffers(64)
        .open()
        .unwrap();
    // They are not held, but kept.
    let kept: Vec<u32> = (0..4)
        .map(|_| owner.acquire_cpu(4).unwrap().forget().unwrap())
        .collect();
    let before = stats_of(&place.pool());
    assert!(owner.preallocate_cpu(1 << 20, 62).is_err());
    let after = stats_of(&place.pool());
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
