// SPDX-License-Identifier: MPL-2.0

//! Buffers by number, in one process that plays both sides over the real socket.

mod support;

use support::{buffers::published, *};
use xmem_core::{
    AccessError, AccessMode, BufferPool, DType, FrameLayout, FrameMeta, GetError, OpenError,
    Producer, RefCountError, WriteAccessError,
};

#[test]
fn a_buffer_lives_until_its_count_of_readers_released_it() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let readers = [
        BufferPool::new(&place.pool()).unwrap(),
        BufferPool::new(&place.pool()).unwrap(),
    ];
    assert!(owner.is_owner() && !readers[0].is_owner());
    let index = published(&owner, b"twice", 3);
    let first = readers[0].get(index).unwrap();
    assert_eq!(first.as_cpu_slice().unwrap(), b"twice");
    drop(first);
    // The same reader again counts again.
    drop(readers[0].get(index).unwrap());
    let second = readers[1].get(index).unwrap();
    assert_eq!(second.as_cpu_slice().unwrap(), b"twice");
    drop(second);
    // The owner notices it on its control thread.
    eventually("it is released", || {
        matches!(readers[0].get(index), Err(GetError::Empty { .. }))
    });
}

#[test]
fn a_reader_counts_once_it_has_taken_the_buffer() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let index = published(&owner, b"x", 1);
    drop(BufferPool::new(&place.pool()).unwrap());
    let reader = BufferPool::new(&place.pool()).unwrap();
    let buffer = reader.get(index).unwrap();
    // The connection ends with the last buffer.
    drop(reader);
    drop(buffer);
    let other = BufferPool::new(&place.pool()).unwrap();
    eventually("it is released", || {
        matches!(other.get(index), Err(GetError::Empty { .. }))
    });
}

#[test]
fn references_without_a_guard() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let index = published(&owner, b"loose", 1);
    let buffer = reader.get(index).unwrap();
    let clone = buffer.clone_ref().unwrap();
    reader.add_ref(index).unwrap();
    buffer.forget().unwrap();
    drop(clone);
    assert!(reader.release(index));
    assert!(matches!(
        owner.get_mut(index),
        Err(WriteAccessError::InUse { .. })
    ));
    assert!(reader.release(index));
    assert!(!reader.release(index));
    eventually("it is released", || {
        matches!(reader.get(index), Err(GetError::Empty { .. }))
    });
}

#[test]
fn a_buffer_has_one_writer_and_no_reader_then() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let index = published(&owner, b"abcd", 3);
    let held = reader.get(index).unwrap();
    assert!(matches!(
        owner.get_mut(index),
        Err(WriteAccessError::InUse { .. })
    ));
    drop(held);
    let mut writing = owner.get_mut(index).unwrap();
    assert_eq!(writing.mode(), AccessMode::ReadWrite);
    assert!(matches!(reader.get(index), Err(GetError::Empty { .. })));
    assert_eq!(writing.clone_ref().unwrap_err(), AccessError::Writing);
    writing.as_cpu_slice_mut().unwrap()[0] = b'X';
    writing.forget().unwrap();
    let mut held = reader.get(index).unwrap();
    assert_eq!(held.as_cpu_slice().unwrap(), b"Xbcd");
    assert_eq!(held.as_cpu_slice_mut().unwrap_err(), AccessError::ReadOnly);
}

#[test]
fn a_peer_writes_only_with_the_owners_permission() {
    let place = Place::new();
    let _owner = BufferPool::new(&place.pool()).unwrap();
    let peer = BufferPool::new(&place.pool()).unwrap();
    assert!(matches!(
        peer.acquire_cpu(10),
        Err(WriteAccessError::Denied { .. })
    ));
    assert!(matches!(
        peer.preallocate_cpu(10, 2),
        Err(WriteAccessError::NotOwner)
    ));

    let place = Place::new();
    let owner = BufferPool::options(&place.pool())
        .peers_may_write(true)
        .open()
        .unwrap();
    let peer = BufferPool::new(&place.pool()).unwrap();
    let index = published(&peer, b"from the peer", 1);
    let buffer = owner.get(index).unwrap();
    assert_eq!(buffer.as_cpu_slice().unwrap(), b"from the peer");
    drop(buffer);
    let mut again = peer.get_mut(index).unwrap();
    again.as_cpu_slice_mut().unwrap()[0] = b'F';
    again.forget().unwrap();
    assert_eq!(
        owner.get(index).unwrap().as_cpu_slice().unwrap(),
        b"From the peer"
    );
    assert!(matches!(
        peer.get_mut(9999),
        Err(WriteAccessError::Denied { .. })
    ));
}

#[test]
fn a_peer_that_leaves_while_it_writes_returns_the_buffer() {
    let place = Place::new();
    let options = BufferPool::options(&place.pool()).peers_may_write(true);
    let owner = options.max_buffers(5).open().unwrap();
    let peer = BufferPool::new(&place.pool()).unwrap();
    let writing = peer.acquire_cpu(100).unwrap();
    assert!(owner.preallocate_cpu(100, 5).is_err());
    drop((writing, peer));
    eventually("its slots are free", || {
        owner.preallocate_cpu(100, 5).is_ok()
    });
}

#[test]
fn dropping_a_writer_keeps_the_count_of_other_readers() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let mut buffer = owner.acquire_cpu(3).unwrap();
    buffer.as_cpu_slice_mut().unwrap().copy_from_slice(b"abc");
    let index = buffer.meta_index();
    owner.set_ref_count(index, 2).unwrap();
    drop(buffer);
    assert_eq!(reader.get(index).unwrap().as_cpu_slice().unwrap(), b"abc");
    eventually("it is released", || reader.get(index).is_err());
    // Without a count nothing is published.
    let index = owner.acquire_cpu(3).unwrap().meta_index();
    assert!(matches!(reader.get(index), Err(GetError::Empty { .. })));
}

#[test]
fn bad_counts_and_indices_are_refused() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let index = published(&owner, b"abc", 1);
    assert_eq!(
        owner.set_ref_count(index, 0),
        Err(RefCountError::BadCount(0))
    );
    assert_eq!(
        reader.set_ref_count(index, 1),
        Err(RefCountError::NotYours(index))
    );
    assert_eq!(
        owner.set_ref_count(12345, 1),
        Err(RefCountError::NotYours(12345))
    );
    assert!(matches!(reader.get(12345), Err(GetError::Empty { .. })));
    assert!(owner.acquire_cpu(0).is_err());
}

#[test]
fn the_pool_of_a_stream_has_no_buffers_by_number() {
    let place = Place::new();
    let _producer = Producer::builder(&place.pool()).build().unwrap();
    let error = BufferPool::new(&place.pool()).unwrap_err();
    assert!(matches!(error, OpenError::Stream { .. }), "{error}");
}

#[test]
fn metadata_of_a_buffer_arrives() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let mut buffer = owner.acquire_cpu(2 * 3 * 4).unwrap();
    let mut meta = FrameMeta::default().with_layout(FrameLayout {
        dtype: DType::F32,
        ndim: 2,
        content_type: "tensor/float32".into(),
        ..FrameLayout::default()
    });
    meta.shape[..2].copy_from_slice(&[2, 3]);
    meta.strides[..2].copy_from_slice(&[12, 4]);
    buffer.set_meta(meta).unwrap();
    let index = buffer.forget().unwrap();
    let buffer = reader.get(index).unwrap();
    assert_eq!(buffer.meta().shape[..2], [2, 3]);
    assert_eq!(buffer.meta().content_type.as_str(), "tensor/float32");
    assert_eq!(buffer.as_cpu_slice().unwrap().len(), 24);
}
