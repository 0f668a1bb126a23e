// SPDX-License-Identifier: MPL-2.0

//! Buffers by number that are edited in place, or given up.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use support::{buffers::published, *};
use xmem_core::{BufferPool, DType, FrameLayout, FrameMeta, GetError, WriteAccessError};

/// The owner of the pool, and a peer. Both may write.
fn both(place: &Place) -> [BufferPool; 2] {
    let open = || {
        BufferPool::options(&place.pool())
            .peers_may_write(true)
            .open()
    };
    [open().unwrap(), open().unwrap()]
}

fn bytes(pool: &BufferPool, index: u32) -> Vec<u8> {
    pool.get(index).unwrap().as_cpu_slice().unwrap().to_vec()
}

fn is_empty(pool: &BufferPool, index: u32) -> bool {
    matches!(pool.get(index), Err(GetError::Empty { .. }))
}

#[test]
fn an_edit_is_published_when_its_guard_is_dropped() {
    let place = Place::new();
    let pools = both(&place);
    let [owner, peer] = &pools;
    for writer in &pools {
        for editor in &pools {
            let index = published(writer, b"abcd", 1);
            editor.get_mut(index).unwrap().as_cpu_slice_mut().unwrap()[0] = b'x';
            // As often as needed, and from either process.
            let mut again = owner.get_mut(index).unwrap();
            assert_eq!(again.as_cpu_slice().unwrap(), b"xbcd");
            again.as_cpu_slice_mut().unwrap()[1] = b'y';
            drop(again);
            assert_eq!(bytes(peer, index), b"xycd");
            eventually("it is released", || is_empty(peer, index));
        }
    }
}

#[test]
fn an_edited_buffer_keeps_its_count_of_readers() {
    let place = Place::new();
    let pools = both(&place);
    let readers = [(); 2].map(|()| BufferPool::new(&place.pool()).unwrap());
    for pool in &pools {
        for forget in [false, true] {
            let index = published(pool, b"abcd", 2);
            let mut buffer = pool.get_mut(index).unwrap();
            buffer.as_cpu_slice_mut().unwrap()[0] = b'x';
            if forget {
                buffer.forget().unwrap();
            } else {
                drop(buffer);
            }
            for reader in &readers {
                assert_eq!(bytes(reader, index), b"xbcd");
            }
            eventually("it is released", || is_empty(&readers[0], index));
        }
    }
    // A count that was set during the edit, or after publishing, holds too.
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
        drop(buffer);
        for reader in &readers {
            assert_eq!(bytes(reader, index), b"abcd");
        }
        eventually("it is released", || is_empty(&readers[0], index));
    }
    // Another process does not know of how many.
    let index = published(owner, b"abcd", 2);
    drop(pools[1].get_mut(index).unwrap());
    assert_eq!(bytes(&readers[0], index), b"abcd");
    eventually("it is released", || is_empty(&readers[1], index));
}

#[test]
fn counts_of_a_reused_index_are_separate() {
    let place = Place::new();
    let [owner, peer] = both(&place);
    let index = published(&owner, b"abcd", 2);
    owner.discard(index).unwrap();
    // Not the owner's any more.
    let buffer = peer.get_mut(index).unwrap();
    buffer.forget().unwrap();
    drop(owner.get_mut(index).unwrap());
    drop(peer.get(index).unwrap());
    eventually("it is released", || is_empty(&peer, index));
}

#[test]
fn metadata_of_a_buffer_survives_an_edit() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let mut buffer = owner.acquire_cpu(24).unwrap();
    let mut meta = FrameMeta::default().with_layout(FrameLayout {
        dtype: DType::F32,
        ndim: 2,
        content_type: "tensor/float32".into(),
        ..FrameLayout::default()
    });
    meta.shape[..2].copy_from_slice(&[2, 3]);
    meta.attachments.set("note", "one");
    buffer.set_meta(meta).unwrap();
    // This process looks at it once after each edit, and one reader is to come.
    owner.set_ref_count(buffer.meta_index(), 2).unwrap();
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
    assert_eq!(
        (after.dtype, after.ndim, after.shape),
        (before.dtype, before.ndim, before.shape)
    );
    assert_eq!(after.content_type, before.content_type);
    assert_eq!(after.attachments.text("note"), Some("one"));
    assert_eq!(after.attachments, before.attachments);
    // Another one, for which there was no room.
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
    let options = BufferPool::options(&place.pool()).peers_may_write(true);
    let owner = options.max_buffers(8).open().unwrap();
    let peer = BufferPool::new(&place.pool()).unwrap();
    for pool in [&owner, &peer] {
        let indices: Vec<u32> = (0..8).map(|_| published(pool, b"abcd", 2)).collect();
        assert!(owner.acquire_cpu(4).is_err());
        let held = peer.get(indices[0]).unwrap();
        assert!(matches!(
            owner.discard(indices[0]),
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
            let all: Result<Vec<_>, _> = (0..8).map(|_| owner.acquire_cpu(4)).collect();
            all.is_ok()
        });
    }
    // A buffer that is read is only released. A buffer that is acquired holds nothing, whatever its count.
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
    let pools = both(&place);
    let [owner, peer] = &pools;
    let set_aside = owner.preallocate_cpu(100, 2).unwrap();
    let over = published(owner, b"abcd", 1);
    let never = *set_aside.iter().find(|index| **index != over).unwrap();
    drop(peer.get(over).unwrap());
    eventually("it is released", || is_empty(owner, over));
    for pool in &pools {
        for index in [never, over] {
            // The last content, or the whole capacity.
            let size = pool.get_mut(index).unwrap().meta().size;
            assert!(if index == over {
                size == 4
            } else {
                size >= 100
            });
            // A peer's message takes a moment.
            eventually("it is released", || owner.get_mut(index).is_ok());
            assert!(is_empty(owner, index));
        }
        let mut buffer = pool.get_mut(over).unwrap();
        buffer.as_cpu_slice_mut().unwrap().fill(7);
        let index = buffer.forget().unwrap();
        assert_eq!(bytes(owner, index), [7; 4]);
        owner.discard(index).unwrap();
    }
}

/// The owner notices it a moment later.
#[test]
fn a_buffer_is_empty_once_its_readers_released_it() {
    let place = Place::new();
    let [owner, peer] = both(&place);
    for _ in 0..50 {
        let index = published(&owner, b"abcd", 1);
        drop(peer.get(index).unwrap());
        drop(owner.get_mut(index).unwrap());
        assert!(is_empty(&owner, index), "it has no reader left");
    }
}
