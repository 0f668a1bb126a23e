// SPDX-License-Identifier: MPL-2.0

//! The limits for the number of buffers and processes.

use std::os::unix::net::UnixListener;

use crate::support::*;
use xmem_core::{BufferPool, BufferPoolOptions, GetError, WriteAccessError};

#[test]
fn any_number_of_processes_may_hold_all_buffers() {
    let place = Place::new();
    let open = || BufferPool::options(&place.pool()).max_buffers(12).open();
    let owner = open().unwrap();
    let readers: Vec<_> = (0..40).map(|_| open().unwrap()).collect();
    let indices: Vec<u32> = (0..12)
        .map(|_| {
            let buffer = owner.acquire_cpu(4).unwrap();
            owner.set_ref_count(buffer.meta_index(), 40).unwrap();
            buffer.forget().unwrap()
        })
        .collect();
    let held: Vec<_> = readers
        .iter()
        .flat_map(|reader| indices.iter().map(|index| reader.get(*index).unwrap()))
        .collect();
    drop(held);
    owner.wait_until_read(Some(HANG)).unwrap();
    assert_eq!(owner.stats().cut_off, 0);
}

#[test]
fn the_smaller_max_held_of_writer_and_reader_counts() {
    for (of_writer, of_reader, most) in [
        (Some(2), None, 2),
        (None, Some(2), 2),
        (Some(3), Some(2), 2),
    ] {
        let place = Place::new();
        let open = |max_held: Option<u32>| {
            let options = BufferPool::options(&place.pool());
            max_held
                .into_iter()
                .fold(options, BufferPoolOptions::max_held)
                .open()
        };
        let (owner, reader) = (open(of_writer).unwrap(), open(of_reader).unwrap());
        let indices: Vec<u32> = (0..=most)
            .map(|_| owner.acquire_cpu(4).unwrap().forget().unwrap())
            .collect();
        let (last, first) = indices.split_last().unwrap();
        let held: Vec<_> = first
            .iter()
            .map(|index| reader.get(*index).unwrap())
            .collect();
        let error = reader.get(*last).unwrap_err();
        assert!(
            matches!(error, GetError::OverBudget { budget } if budget == most),
            "{error}"
        );
        drop(held);
        reader.get(*last).unwrap();
    }
}

#[test]
fn no_more_processes_write_than_there_are_numbers() {
    let place = Place::new();
    let socket = |number: u8| format!("{}.b{number:02x}", place.pool());
    let mut others: Vec<_> = (0..255)
        .map(|number| UnixListener::bind(socket(number)).unwrap())
        .collect();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let error = pool.acquire_cpu(4).unwrap_err().to_string();
    assert_contains(&error, "255 processes write");
    // One of them ends.
    others.swap_remove(100);
    std::fs::remove_file(socket(100)).unwrap();
    pool.acquire_cpu(4).unwrap();
    assert_eq!(BufferPool::writers(&place.pool()).len(), 255);
    drop(pool);
    for number in (0..255).filter(|number| *number != 100) {
        std::fs::remove_file(socket(number)).unwrap();
    }
}

#[test]
fn preallocation_above_max_buffers_is_an_error() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let large = owner.preallocate_cpu(1 << 20, 8).unwrap();
    owner.preallocate_cpu(100, 8).unwrap();
    let before = owner.stats();
    let error = owner.preallocate_cpu(10, 257).unwrap_err();
    assert!(
        matches!(&error, WriteAccessError::Denied { reason }
            if reason.contains("257") && reason.contains("256") && reason.contains("max_buffers")),
        "{error}"
    );
    assert!(owner.preallocate_cpu(10, usize::MAX).is_err());
    let after = owner.stats();
    assert_eq!(
        (after.slots, after.regions, after.bytes),
        (before.slots, before.regions, before.bytes)
    );
    // No more than are free.
    let held = [10, 1 << 20].map(|size| owner.acquire_cpu(size).unwrap());
    let before = owner.stats();
    let error = owner.preallocate_cpu(10, 255).unwrap_err();
    assert_contains(&error.to_string(), "2 are in use");
    assert_eq!(owner.stats().bytes, before.bytes);
    drop(held);
    // Buffers that are reserved for other sizes stay until they are given up.
    let error = owner.preallocate_cpu(10, 256).unwrap_err();
    assert_contains(&error.to_string(), "16 are set aside");
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
    // These buffers are kept but not held.
    let kept: Vec<u32> = (0..4)
        .map(|_| owner.acquire_cpu(4).unwrap().forget().unwrap())
        .collect();
    let before = owner.stats();
    assert!(owner.preallocate_cpu(1 << 20, 62).is_err());
    let after = owner.stats();
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
