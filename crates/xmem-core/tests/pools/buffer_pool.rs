// SPDX-License-Identifier: MPL-2.0

//! Buffers by number, in one process that has both roles and uses the real socket.

use crate::support::{buffers::published, *};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xmem_core::{
    AccessError, AccessMode, BufferPool, ConnectError, DType, FrameLayout, FrameMeta, GetError,
    OpenError, Producer, RefCountError, WriteAccessError,
};

#[test]
fn a_buffer_lives_until_its_count_of_readers_released_it() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let readers = [
        BufferPool::new(&place.pool()).unwrap(),
        BufferPool::new(&place.pool()).unwrap(),
    ];
    let index = published(&owner, b"twice", 3);
    let first = readers[0].get(index).unwrap();
    assert_eq!(first.as_cpu_slice().unwrap(), b"twice");
    drop(first);
    // A second read by the same reader counts again.
    drop(readers[0].get(index).unwrap());
    let second = readers[1].get(index).unwrap();
    assert_eq!(second.as_cpu_slice().unwrap(), b"twice");
    drop(second);
    // The owner is informed on its control thread.
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
    // The connection is closed with the last buffer.
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
fn all_processes_are_equal() {
    let place = Place::new();
    // The order in which processes open the pool and write does not matter.
    let pools = [(); 3].map(|()| BufferPool::new(&place.pool()).unwrap());
    for round in 0..3 {
        for writer in &pools {
            let index = published(writer, b"abcd", 3);
            for reader in &pools {
                let buffer = reader.get(index).unwrap();
                assert_eq!(buffer.as_cpu_slice().unwrap(), b"abcd", "{round}");
            }
            eventually("it is released", || {
                matches!(writer.get(index), Err(GetError::Empty { .. }))
            });
        }
    }
    // A process edits its own buffers in place, and copies those of others.
    let [first, second, _] = &pools;
    let index = published(first, b"abcd", 2);
    let mut copy = second.get_mut(index).unwrap();
    copy.as_cpu_slice_mut().unwrap()[0] = b'x';
    let copied = copy.forget().unwrap();
    assert_eq!(first.get(index).unwrap().as_cpu_slice().unwrap(), b"abcd");
    assert_eq!(first.get(copied).unwrap().as_cpu_slice().unwrap(), b"xbcd");
    assert!(matches!(
        second.discard(index),
        Err(WriteAccessError::NotWriter)
    ));
}

#[test]
fn a_buffer_outlives_its_writer_in_processes_that_mapped_it() {
    let place = Place::new();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let writer = BufferPool::new(&place.pool()).unwrap();
    let [held, later] = [(); 2].map(|()| published(&writer, b"abcd", 1));
    let held = reader.get(held).unwrap();
    let never = writer.acquire_cpu(4).unwrap().meta_index();
    drop(writer);
    assert_eq!(held.as_cpu_slice().unwrap(), b"abcd");
    assert_eq!(reader.get(later).unwrap().as_cpu_slice().unwrap(), b"abcd");
    for pool in [&reader, &BufferPool::new(&place.pool()).unwrap()] {
        let error = pool.get(never).unwrap_err();
        assert!(matches!(error, GetError::NoWriter { .. }), "{error}");
    }
    // Another process may write with the same index. It is not confused with the first one.
    let next = BufferPool::new(&place.pool()).unwrap();
    let index = published(&next, b"next", 1);
    assert_eq!(reader.get(index).unwrap().as_cpu_slice().unwrap(), b"next");
    drop((held, reader, next));
    place.assert_clean();
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
    // A buffer without a count is not published.
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
    let (other, none) = (index ^ 1 << 12, u32::MAX);
    for index in [other, none] {
        assert_eq!(
            owner.set_ref_count(index, 1),
            Err(RefCountError::NotYours(index))
        );
        assert!(matches!(reader.get(index), Err(GetError::Empty { .. })));
    }
    // 255 is no number of a writer.
    let writer = index >> 24;
    let nobodys = (index & 0x00ff_ffff) | (((writer + 1) % 255) << 24);
    let error = reader.get(nobodys).unwrap_err();
    assert!(matches!(error, GetError::NoWriter { .. }), "{error}");
    assert!(owner.acquire_cpu(0).is_err());
}

#[test]
fn invalid_options_and_stream_pools_are_refused() {
    let place = Place::new();
    assert!(matches!(BufferPool::new(""), Err(OpenError::Name(_))));
    for max_buffers in [0, 1, 4097] {
        let options = BufferPool::options(&place.pool()).max_buffers(max_buffers);
        let error = options.open().unwrap_err();
        assert!(matches!(error, OpenError::MaxBuffers { .. }), "{error}");
    }
    let _producer = Producer::builder(place.pool()).build().unwrap();
    let error = BufferPool::new(&place.pool()).unwrap_err();
    assert!(matches!(error, OpenError::Stream { .. }), "{error}");
}

#[test]
fn metadata_of_a_buffer_arrives() {
    let place = Place::new();
    let owner = BufferPool::new(&place.pool()).unwrap();
    let reader = BufferPool::new(&place.pool()).unwrap();
    let mut buffer = owner.acquire_cpu(2 * 3 * 4).unwrap();
    let mut meta = FrameMeta::default().layout(FrameLayout {
        dtype: DType::F32,
        ndim: 2,
        content_type: "tensor/float32".into(),
        ..FrameLayout::default()
    });
    meta.layout_mut().shape[..2].copy_from_slice(&[2, 3]);
    meta.layout_mut().strides[..2].copy_from_slice(&[12, 4]);
    buffer.set_meta(meta).unwrap();
    let index = buffer.forget().unwrap();
    let buffer = reader.get(index).unwrap();
    assert_eq!(buffer.meta().layout.shape[..2], [2, 3]);
    assert_eq!(buffer.meta().layout.content_type.as_str(), "tensor/float32");
    assert_eq!(buffer.as_cpu_slice().unwrap().len(), 24);
}

#[test]
fn files_of_others_and_of_killed_writers_are_no_obstacle() {
    let place = Place::new();
    let file = |number: u8, suffix: &str| {
        let name = format!("{}.b{number:02x}{suffix}", place.pool());
        std::path::PathBuf::from(name)
    };
    // A lock without a socket, as a writer leaves that is killed during its start, and directories in place of locks.
    std::fs::write(file(0, ".xmem.lock"), "camera (process 4711)").unwrap();
    for number in 1..=200 {
        std::fs::create_dir(file(number, ".xmem.lock")).unwrap();
    }
    for _ in 0..20 {
        let pool = BufferPool::new(&place.pool()).unwrap();
        published(&pool, b"abcd", 1);
    }
    assert!(!file(0, ".xmem.lock").exists());
}

#[test]
fn readers_that_come_at_once_all_get_a_buffer() {
    const READERS: i32 = 300;
    // Each process uses about six descriptors.
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let place = Place::new();
    let writer = BufferPool::new(&place.pool()).unwrap();
    let index = published(&writer, b"abcd", READERS);
    let pool = place.pool();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let reader = BufferPool::new(&pool).unwrap();
                // With this many threads and checks of each access, the writer may answer later than a program waits.
                eventually("a buffer", || match reader.get(index) {
                    Err(GetError::Connect(ConnectError::NoAnswer { .. })) => false,
                    got => {
                        drop(got.unwrap());
                        true
                    }
                });
            });
        }
    });
    writer.wait_until_read(Some(HANG)).unwrap();
}
