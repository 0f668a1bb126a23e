// SPDX-License-Identifier: MPL-2.0

//! Buffers by number that are edited in place, or discarded.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{buffers::published, *};
use xmem_core::{BufferPool, DType, FrameLayout, FrameMeta, GetError, WriteAccessError};

fn both(place: &Place) -> [BufferPool; 2] {
    [(); 2].map(|()| BufferPool::new(&place.pool()).unwrap())
}

fn bytes(pool: &BufferPool, index: u32) -> Vec<u8> {
    pool.get(index).unwrap().as_cpu_slice().unwrap().to_vec()
}

fn is_empty(pool: &BufferPool, index: u32) -> bool {
    matches!(pool.get(index), Err(GetError::Empty { .. }))
}

#[test]
fn an_edit_that_is_dropped_uses_up_a_read() {
    let place = Place::new();
    let [owner, reader] = both(&place);
    let index = published(&owner, b"abcd", 4);
    owner.get_mut(index).unwrap().as_cpu_slice_mut().unwrap()[0] = b'x';
    assert_eq!(bytes(&reader, index), b"xbcd");
    eventually("it is released", || owner.get_mut(index).is_ok());
    // That was the third read.
    assert_eq!(bytes(&reader, index), b"xbcd");
    eventually("it is released", || is_empty(&reader, index));
    // The drop of a guard lowers the count by one, for any kind of guard.
    for _ in 0..1000 {
        let index = published(&owner, b"abcd", 1);
        drop(owner.get_mut(index).unwrap());
        assert!(is_empty(&owner, index));
    }
}

#[test]
fn an_edited_buffer_keeps_the_reads_that_are_to_come() {
    let place = Place::new();
    let pools = both(&place);
    let readers = both(&place);
    for pool in &pools {
        for read_before in [false, true] {
            let index = published(pool, b"abcd", if read_before { 3 } else { 2 });
            if read_before {
                drop(readers[0].get(index).unwrap());
            }
            let mut buffer = pool.get_mut(index).unwrap();
            buffer.as_cpu_slice_mut().unwrap()[0] = b'x';
            assert_eq!(buffer.forget().unwrap(), index);
            for reader in &readers {
                assert_eq!(bytes(reader, index), b"xbcd");
            }
            eventually("it is released", || is_empty(&readers[0], index));
        }
    }
    // A count that is set during the edit or after publishing is also applied.
    let owner = &pools[0];
    for while_edited in [false, true] {
        let index = published(owner, b"abcd", 1);
        if !while_edited {
            owner.set_ref_count(index, 2).unwrap();
        }
        let buffer = owner.get_mut(index).unwrap();
        if while_edited {
            owner.set_ref_count(index, 2).unwrap();
        }
        buffer.forget().unwrap();
        for reader in &readers {
            assert_eq!(bytes(reader, index), b"abcd");
        }
        eventually("it is released", || is_empty(&readers[0], index));
    }
    // After some reads, `count` is the number of remaining reads.
    let index = published(owner, b"abcd", 2);
    drop(readers[0].get(index).unwrap());
    owner.set_ref_count(index, 2).unwrap();
    for reader in [&readers[1], owner] {
        assert_eq!(bytes(reader, index), b"abcd");
    }
    eventually("it is released", || is_empty(owner, index));
}

#[test]
fn metadata_of_a_buffer_survives_an_edit() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let mut buffer = owner.acquire_cpu(24).unwrap();
    let mut meta = FrameMeta::default().layout(FrameLayout {
        dtype: DType::F32,
        ndim: 2,
        content_type: "tensor/float32".into(),
        ..FrameLayout::default()
    });
    meta.layout_mut().shape[..2].copy_from_slice(&[2, 3]);
    meta.attachments.set("note", "one");
    buffer.set_meta(meta).unwrap();
    // Two reads, an edit that is dropped, and the last read.
    owner.set_ref_count(buffer.meta_index(), 4).unwrap();
    let index = buffer.forget().unwrap();
    let known = || {
        let buffer = owner.get(index).unwrap();
        (*buffer.info(), buffer.meta().clone())
    };
    let (info_before, before) = known();
    drop(owner.get_mut(index).unwrap());
    let (info, after) = known();
    assert!(info.sequence > info_before.sequence);
    assert_eq!(after.size, 24);
    let (new, old) = (&after.layout, &before.layout);
    assert_eq!(
        (new.dtype, new.ndim, new.shape),
        (old.dtype, old.ndim, old.shape)
    );
    assert_eq!(new.content_type, old.content_type);
    assert_eq!(after.attachments.text("note"), Some("one"));
    assert_eq!(after.attachments, before.attachments);
    // An edit for which there was no free buffer.
    let mut buffer = owner.get_mut(index).unwrap();
    let mut meta = buffer.meta().clone();
    meta.attachments.set("note", "another");
    buffer.set_meta(meta).unwrap();
    buffer.as_cpu_slice_mut().unwrap().fill(b'x');
    buffer.forget().unwrap();
    let after = owner.get(index).unwrap();
    assert_eq!(after.meta().attachments.text("note"), Some("another"));
    assert_eq!(after.as_cpu_slice().unwrap(), [b'x'; 24]);
}

#[test]
fn a_panic_publishes_nothing() {
    let place = Place::new();
    let pools = both(&place);
    for pool in &pools {
        let index = published(pool, b"abcd", 2);
        let edit = || {
            let mut buffer = pool.get_mut(index).unwrap();
            buffer.as_cpu_slice_mut().unwrap()[0] = b'x';
            panic!("half way");
        };
        assert!(catch_unwind(AssertUnwindSafe(edit)).is_err());
        eventually("it is released", || is_empty(pool, index));
        let mut index = None;
        let write = || {
            let buffer = pool.acquire_cpu(4).unwrap();
            index = Some(buffer.meta_index());
            pool.set_ref_count(buffer.meta_index(), 2).unwrap();
            panic!("half way");
        };
        assert!(catch_unwind(AssertUnwindSafe(write)).is_err());
        assert!(is_empty(pool, index.unwrap()));
    }
}

#[test]
fn a_buffer_can_be_discarded_before_it_is_read() {
    let place = Place::new();
    let open = || BufferPool::options(&place.pool()).max_buffers(8).open();
    let [owner, peer] = [open().unwrap(), open().unwrap()];
    for (pool, reader) in [(&owner, &peer), (&peer, &owner)] {
        let indices: Vec<u32> = (0..8).map(|_| published(pool, b"abcd", 2)).collect();
        assert!(pool.acquire_cpu(4).is_err());
        let held = reader.get(indices[0]).unwrap();
        assert!(matches!(
            pool.discard(indices[0]),
            Err(WriteAccessError::InUse { .. })
        ));
        drop(held);
        // By the pool, or by the guard.
        for (at, index) in indices.into_iter().enumerate() {
            if at % 2 == 0 {
                pool.discard(index).unwrap();
            } else {
                pool.get_mut(index).unwrap().discard();
            }
        }
        eventually("its slots are free", || {
            let all: Result<Vec<_>, _> = (0..8).map(|_| pool.acquire_cpu(4)).collect();
            all.is_ok()
        });
    }
    // For a buffer that is read, `discard` only releases it. A buffer that is acquired holds nothing, with any count.
    let index = published(&owner, b"abcd", 2);
    owner.get(index).unwrap().discard();
    assert_eq!(bytes(&owner, index), b"abcd");
    let buffer = owner.acquire_cpu(4).unwrap();
    let index = buffer.meta_index();
    owner.set_ref_count(index, 3).unwrap();
    buffer.discard();
    assert!(is_empty(&owner, index));
}

#[test]
fn an_empty_buffer_is_published_only_by_forget() {
    let place = Place::new();
    let [owner, reader] = both(&place);
    let [one, other] = owner.preallocate_cpu(100, 2).unwrap()[..] else {
        panic!("two were asked for");
    };
    for index in [one, other] {
        assert!(owner.get_mut(index).unwrap().meta().size >= 100);
        assert!(is_empty(&owner, index) && is_empty(&reader, index));
        let mut buffer = owner.get_mut(index).unwrap();
        assert_eq!(buffer.buffer(), index);
        buffer.as_cpu_slice_mut().unwrap().fill(7);
        let published = buffer.forget().unwrap();
        assert_ne!(published, index);
        assert!(bytes(&reader, published).iter().all(|byte| *byte == 7));
        eventually("it is released", || is_empty(&owner, published));
        // The generation is used up.
        assert!(owner.get_mut(published).is_err());
    }
}

/// The owner is informed with a short delay.
#[test]
fn a_buffer_is_empty_once_its_readers_released_it() {
    let place = Place::new();
    let [owner, peer] = both(&place);
    for _ in 0..50 {
        let index = published(&owner, b"abcd", 1);
        drop(peer.get(index).unwrap());
        let error = owner.get_mut(index).unwrap_err();
        let has_no_reader_left = matches!(error, WriteAccessError::Get(GetError::Empty { .. }));
        assert!(has_no_reader_left, "{error}");
    }
}

#[test]
fn an_edit_for_which_there_is_no_room_uses_up_no_read() {
    let place = Place::new();
    let writer = BufferPool::new(&place.pool()).unwrap();
    let few = BufferPool::options(&place.pool()).max_buffers(2);
    let few = few.open().unwrap();
    let held = [(); 2].map(|()| few.acquire_cpu(4).unwrap());
    let index = published(&writer, b"abcd", 1);
    for _ in 0..3 {
        let error = few.get_mut(index).unwrap_err();
        assert!(matches!(error, WriteAccessError::Full { .. }), "{error}");
    }
    drop(held);
    assert_eq!(few.get_mut(index).unwrap().as_cpu_slice().unwrap(), b"abcd");
}

#[test]
fn the_number_of_a_buffer_takes_no_publication_of_another_thread() {
    let place = Place::new();
    let pool = BufferPool::new(&place.pool()).unwrap();
    let [number] = pool.preallocate_cpu(4, 1).unwrap()[..] else {
        panic!("one was asked for");
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                // An edit that is forgotten keeps all reads. An edit of an empty buffer publishes nothing.
                if let Ok(edit) = pool.get_mut(number) {
                    if edit.info().generation == 0 {
                        edit.discard();
                    } else {
                        edit.forget().unwrap();
                    }
                }
            }
        });
        for _ in 0..2000 {
            let index = published(&pool, b"abcd", 1);
            eventually("it is read", || pool.get(index).is_ok());
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn reads_that_have_begun_are_not_to_come() {
    let place = Place::new();
    let [owner, reader] = both(&place);
    let index = published(&owner, b"abcd", 2);
    let held = reader.get(index).unwrap();
    owner.set_ref_count(index, 1).unwrap();
    drop(held);
    assert_eq!(bytes(&owner, index), b"abcd");
    eventually("it is released", || is_empty(&owner, index));
}
