// SPDX-License-Identifier: MPL-2.0

//! Frames that are not in one slot: imported memory, and several slots in one frame.

mod support;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use support::{HANG, Place, assert_contains, eventually};
use xmem_core::{
    Attachments, Consumer, Delivery, FrameMeta, FrameParts, ImportError, ImportedMemory, MAX_PARTS,
    NotReadable, Parts, Producer, ReadLease, ReceiveError, SlotSpec, Wait, WriteLease,
};

/// The name of this test's memory. With several tests in one process, each has its own.
fn name_of_memory() -> String {
    format!("foreign {}", thread::current().name().unwrap_or_default())
}

const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::FUTURE_WRITE);

/// Memory as another library would allocate it.
fn foreign(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(name_of_memory(), flags).unwrap();
    let file = File::from(fd);
    file.write_all_at(bytes, 0).unwrap();
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn import(producer: &Producer, bytes: &[u8]) -> ImportedMemory {
    producer.import(foreign(bytes, SEALED)).unwrap()
}

fn publish(producer: &Producer, parts: Parts, hook: impl FnOnce() + Send + 'static) -> ReadLease {
    let mut attachments = Attachments::new();
    attachments.set("mine", "too");
    let room = parts.room() + attachments.encoded_len();
    let mut lease = producer
        .acquire(SlotSpec::new(1).attachments(room))
        .unwrap();
    lease.set_parts(parts);
    lease.set_release_hook(hook);
    let meta = FrameMeta::default().attachments(attachments);
    lease.publish(meta).unwrap()
}

fn publish_whole(
    producer: &Producer,
    bytes: &[u8],
    hook: impl FnOnce() + Send + 'static,
) -> ReadLease {
    let memory = import(producer, bytes);
    let mut parts = Parts::new();
    parts.add_imported(&memory, 0, bytes.len() as u64, 0);
    publish(producer, parts, hook)
}

/// The number of descriptors of this test's memory on both sides.
fn descriptors() -> usize {
    let name = name_of_memory();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.to_string_lossy().contains(&name))
        .count()
}

#[test]
fn parts_arrive_unchanged_and_their_memory_is_sent_once() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(1));
    let mut consumer = place.consumer(|it| it.parts(true));
    let one = import(&producer, b"0123456789");
    let two = import(&producer, &[7; 10_000]);
    let released = Arc::new(AtomicU32::new(0));
    let mut inodes = Vec::new();
    for n in 0..20 {
        let mut parts = Parts::new();
        parts.add_imported(&one, n % 5, 3, 11);
        parts.add_imported(&two, 5000, 5000, 22);
        assert_eq!(parts.size(), 5003);
        let count = released.clone();
        publish(&producer, parts, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let frame = consumer.receive(Some(HANG)).unwrap();
        assert_eq!(frame.meta().size, 5003);
        assert_eq!(frame.meta().attachments.text("mine"), Some("too"));
        assert_eq!(frame.meta().attachments.iter().count(), 1);
        assert_eq!(frame.bytes(), Err(NotReadable::InParts(2)));
        let [first, second] = frame.parts() else {
            panic!("two parts")
        };
        assert_eq!((first.tag(), second.tag()), (11, 22));
        let digits = &b"0123456789"[(n % 5) as usize..][..3];
        assert_eq!(first.map().unwrap(), digits);
        assert!(second.map().unwrap().iter().all(|byte| *byte == 7));
        let fd = first.fd().unwrap();
        inodes.push((fd.as_raw_fd(), rustix::fs::fstat(fd).unwrap().st_ino));
    }
    inodes.dedup();
    assert_eq!(inodes.len(), 1, "one descriptor for all frames");
    // The last frame is held by the history.
    eventually("frames are released", || {
        released.load(Ordering::Relaxed) == 19
    });
    drop((one, two));
    drop(producer);
    eventually("all are", || released.load(Ordering::Relaxed) == 20);
    drop(consumer);
    place.assert_clean();
}

#[test]
fn a_frame_keeps_its_memory_until_it_is_released() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(1));
    let mut consumer = place.consumer(|it| it.parts(true));
    publish_whole(&producer, b"warm up", || {});
    drop(consumer.receive(Some(HANG)).unwrap());
    publish_whole(&producer, b"warm up", || {});
    drop(consumer.receive(Some(HANG)).unwrap());
    let (to, released) = channel();
    publish_whole(&producer, b"kept", move || to.send(()).unwrap());
    let frame = consumer.receive(Some(HANG)).unwrap();
    for n in 0..50u8 {
        publish_whole(&producer, &[n; 100], || {});
        let frame = consumer.receive(Some(HANG)).unwrap();
        assert_eq!(frame.parts()[0].map().unwrap(), [n; 100]);
    }
    assert_eq!(frame.parts()[0].map().unwrap(), b"kept");
    assert!(released.try_recv().is_err(), "it is held");
    drop(frame);
    released.recv_timeout(HANG).unwrap();
    // Each side releases unused memory. The newest frame is held by the history.
    eventually("descriptors are given back", || {
        let _ = consumer.receive(Some(Duration::ZERO));
        descriptors() <= 4
    });
}

/// Their owner may write to the memory.
#[test]
fn imported_frames_cannot_be_taken_after_the_end() {
    for delivery in [Delivery::Live, Delivery::Lossless] {
        let place = Place::new();
        let producer = place.producer(|it| it.delivery(delivery));
        let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
        publish_whole(&producer, b"first", || {});
        let first = consumer.receive(Some(HANG)).unwrap();
        publish_whole(&producer, b"second", || {});
        let (to, released) = channel();
        publish_whole(&producer, b"third", move || to.send(()).unwrap());
        drop(producer);
        released.recv_timeout(HANG).unwrap();
        assert_eq!(first.bytes().unwrap(), b"first");
        let after = consumer.receive(Some(HANG));
        assert!(
            matches!(after, Err(ReceiveError::ProducerLost)),
            "{delivery:?}"
        );
        assert_eq!(consumer.stats().missed, 2, "{delivery:?}");
    }
}

/// A process holds it and has published it in another pool.
#[test]
fn a_forwarded_frame_in_imported_memory_can_be_taken_after_the_end() {
    for is_kept in [false, true] {
        let (a, b) = (Place::new(), Place::new());
        let first = Producer::builder(a.pool()).build().unwrap();
        let mut middle = Consumer::builder(a.pool()).connect().unwrap();
        let second = b.producer(|it| it.delivery(Delivery::Lossless));
        let mut last = Consumer::builder(b.pool()).connect().unwrap();
        let own = publish_whole(&first, b"bytes", || {});
        let own = is_kept.then_some(own);
        let frame = middle.receive(Some(HANG)).unwrap();
        let parts = second.forward_wait(&frame, FrameParts::All, Wait::FOREVER);
        publish(&second, parts.unwrap(), || {});
        drop(first);
        drop(own);
        let forwarded = last.receive(Some(HANG)).unwrap();
        assert_eq!(forwarded.bytes().unwrap(), b"bytes");
        assert_eq!(last.stats().missed, 0);
    }
}

/// The producer has a reference to it, so its hook runs later.
#[test]
fn an_imported_frame_with_an_own_reference_cannot_be_taken_after_the_end() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let memory = import(&producer, b"both");
    let publish_part = |to: &Sender<()>| {
        let (mut parts, to) = (Parts::new(), to.clone());
        parts.add_imported(&memory, 0, 4, 0);
        publish(&producer, parts, move || to.send(()).unwrap())
    };
    let (to, released) = channel();
    drop(publish_part(&to));
    // Maps the memory.
    drop(consumer.receive(Some(HANG)).unwrap());
    let own = publish_part(&to);
    producer.close();
    released.recv_timeout(HANG).unwrap();
    assert_eq!(released.try_recv(), Err(TryRecvError::Empty));
    drop(own);
    released.recv_timeout(HANG).unwrap();
    let after = consumer.receive(Some(HANG));
    assert!(
        matches!(after, Err(ReceiveError::ProducerLost)),
        "{after:?}"
    );
    assert_eq!(consumer.stats().missed, 1);
}

#[test]
fn without_the_request_a_single_part_is_a_frame_and_several_are_missed() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(4));
    let mut consumer = Consumer::builder(place.pool()).connect().unwrap();
    let memory = import(&producer, b"abcdefgh");
    let mut two = Parts::new();
    two.add_imported(&memory, 0, 4, 0);
    two.add_imported(&memory, 4, 4, 0);
    publish(&producer, two, || {});
    let mut one = Parts::new();
    one.add_imported(&memory, 2, 4, 0);
    publish(&producer, one, || {});
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert_eq!(frame.bytes().unwrap(), b"cdef");
    assert_eq!(consumer.stats().missed, 1);
}

#[test]
fn a_frame_may_lie_in_several_slots() {
    let place = Place::new();
    let producer = place.producer(|it| it.history(1));
    let mut consumer = place.consumer(|it| it.parts(true));
    for n in 0..30u8 {
        let mut slots = [
            producer.acquire(100).unwrap(),
            producer.acquire(1 << 20).unwrap(),
        ];
        let mut parts = Parts::new();
        for slot in &mut slots {
            slot.as_mut_slice()[10..60].fill(n);
        }
        let slots = slots.map(WriteLease::into_part);
        for slot in &slots {
            parts.add_slot(slot, 10, 50, 0);
        }
        publish(&producer, parts, || {});
        // The frame holds them.
        drop(slots);
        for size in [100, 1 << 20] {
            producer.acquire(size).unwrap().as_mut_slice().fill(255);
        }
        let frame = consumer.receive(Some(HANG)).unwrap();
        assert_eq!(frame.parts().len(), 2);
        for part in frame.parts() {
            assert_eq!(part.map().unwrap(), [n; 50]);
        }
        assert_eq!(frame.to_vec().unwrap(), [n; 100]);
    }
    eventually("slots come back", || producer.stats().slots_held <= 3);
}

/// A frame that is never released keeps its parts, but nothing else of their pool.
#[test]
fn slots_that_are_parts_do_not_keep_their_pool() {
    let place = Place::new();
    // The pool holds a reference while it exists.
    let of_pool = Arc::new(());
    let kept = of_pool.clone();
    let producer = place.producer(|it| it.on_event(move |_| assert_eq!(*kept, ())));
    let mut slot = producer.acquire(100).unwrap();
    slot.as_mut_slice().fill(7);
    let part = slot.into_part();
    assert!(part.is_of(&producer));
    let slot = part.slot();
    drop(producer);
    assert_eq!(Arc::strong_count(&of_pool), 1);
    assert_eq!(part.slot(), slot);
    drop(part);
    place.assert_clean();
}

#[test]
fn memory_that_could_disappear_is_refused() {
    let place = Place::new();
    let producer = place.producer(|it| it.max_slots(8));
    let refused = |fd: OwnedFd| {
        let error = producer.import(fd).unwrap_err();
        assert!(matches!(error, ImportError::Memory(_)), "{error}");
        error.to_string()
    };
    refused(foreign(b"not sealed", SealFlags::empty()));
    // Its owner could punch holes.
    refused(foreign(b"not sealed against writing", SealFlags::SHRINK));
    let error = refused(foreign(b"", SEALED));
    assert_contains(&error, "it is empty");
    refused(File::open("/dev/null").unwrap().into());
    refused(tempfile::tempfile().unwrap().into());
    // The number of parts equals the number of slots.
    let memory: Vec<_> = (0..8).map(|_| import(&producer, b"x")).collect();
    assert!(matches!(
        producer.import(foreign(b"x", SEALED)),
        Err(ImportError::TooMany { max: 8 })
    ));
    drop(memory);
    import(&producer, b"room again");
}

#[test]
fn parts_that_consumers_could_not_find_are_refused() {
    let place = Place::new();
    let producer = Producer::builder(place.pool()).build().unwrap();
    let other = Place::new();
    let stranger = Producer::builder(other.pool()).build().unwrap();
    let memory = import(&stranger, b"x");
    let mut parts = Parts::new();
    parts.add_imported(&memory, 0, 1, 0);
    // Beyond the end of the memory.
    let memory = import(&producer, b"x");
    let len = memory.len() as u64;
    let mut beyond = Parts::new();
    beyond.add_imported(&memory, len - 1, 2, 0);
    let mut far_beyond = Parts::new();
    far_beyond.append(beyond.clone());
    far_beyond.add_imported(&memory, u64::MAX, 2, 0);
    let slot = producer.acquire(100).unwrap();
    let len = slot.capacity() as u64;
    let slot = slot.into_part();
    let mut beyond_slot = Parts::new();
    beyond_slot.add_slot(&slot, 1, len, 0);
    let mut many = Parts::new();
    for _ in 0..=MAX_PARTS {
        many.add_imported(&memory, 0, 1, 0);
    }
    let outside = "reaches beyond";
    for (parts, error) in [
        (parts, "belongs to another pool"),
        (Parts::new(), "this one has 0"),
        (many, "parts, but this one has"),
        (beyond, outside),
        (far_beyond, outside),
        (beyond_slot, outside),
    ] {
        let mut lease = producer
            .acquire(SlotSpec::new(1).attachments(1000))
            .unwrap();
        lease.set_parts(parts);
        let refused = lease.publish(FrameMeta::default()).unwrap_err().error;
        assert_contains(&refused.to_string(), error);
    }
    // All of it.
    let mut whole = Parts::new();
    whole.add_imported(&memory, 0, memory.len() as u64, 0);
    whole.add_slot(&slot, 0, len, 0);
    let mut consumer = place.consumer(|it| it.parts(true));
    publish(&producer, whole, || {});
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert_eq!(frame.parts()[1].map().unwrap().len() as u64, len);
}

/// The list of regions has an entry for each slot and for each imported memory. A region without an entry would not be found.
#[test]
fn imported_memory_leaves_room_for_regions_of_the_pool() {
    const LARGE: usize = 1 << 20;
    let place = Place::new();
    let builder = Producer::builder(place.pool()).history(1).max_slots(8);
    let producer = builder.build().unwrap();
    let mut consumer = place.consumer(|it| it.max_held(2));
    let publish = |size| {
        producer
            .acquire(size)
            .map(|slot| drop(slot.publish(FrameMeta::new(size)).unwrap()))
    };
    publish(1000).unwrap();
    let held = consumer.receive(Some(HANG)).unwrap();
    let mut imports = Vec::new();
    let error = loop {
        match producer.import(foreign(b"bytes", SEALED)) {
            Ok(memory) => imports.push(memory),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ImportError::TooMany { max: 8 }), "{error}");
    for size in [LARGE, 1000, 2 * LARGE, LARGE] {
        publish(size).unwrap();
        assert_eq!(
            consumer.receive(Some(HANG)).unwrap().bytes().unwrap().len(),
            size
        );
    }
    imports.pop();
    import(&producer, b"bytes");
    assert_eq!(held.bytes().unwrap().len(), 1000);
    assert_eq!(consumer.stats().missed, 0);
}
