// SPDX-License-Identifier: MPL-2.0

//! Frames outside of their slots: in memory that another program made, such as DMA buffers, and in another pool. Sealed memfds are
//! imported in the same way as DMA buffers, so the tests need no device.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use xmem_core::{FrameParts, Parts, Producer, SlotSpec, Sticky};

use crate::support::*;

const SIZE: usize = 300_000;
/// The bytes of a memory before its part of a frame.
const BEFORE: usize = 4096;

/// Memory with these bytes after [`BEFORE`] others.
fn foreign(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("foreign", flags).unwrap());
    file.write_all_at(&[1; BEFORE], 0).unwrap();
    file.write_all_at(bytes, BEFORE as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
    file.into()
}

/// Imports memories, each with the size of its part of a frame.
fn import_parts(producer: &Producer, memories: Vec<(OwnedFd, usize)>) -> Parts {
    let mut parts = Parts::new();
    for (fd, size) in memories {
        let memory = producer.import(fd).unwrap();
        parts.add_imported(&memory, BEFORE as u64, size as u64, 0);
    }
    parts
}

/// Publishes a frame of parts. Adds 1 to `released` when the frame is released.
fn publish_parts(producer: &Producer, number: u64, parts: Parts, released: &Arc<AtomicU64>) {
    let mut attachments = xmem_core::Attachments::new();
    attachments.set("note", "a kitten");
    let room = parts.room() + attachments.encoded_len();
    let spec = SlotSpec::new(1).attachments(room);
    let mut slot = producer.acquire(spec).unwrap();
    slot.set_parts(parts);
    let released = released.clone();
    slot.set_release_hook(move || {
        released.fetch_add(1, Ordering::Relaxed);
    });
    let meta = meta(number, 1).attachments(attachments);
    slot.publish(meta).unwrap();
}

/// A producer that keeps only the newest frame.
fn producer(hosts: &Hosts) -> Producer {
    let pool = hosts.pool("a", "cam0");
    Producer::builder(&pool).history(1).build().unwrap()
}

#[test]
fn memory_of_other_programs_arrives_as_one_block() {
    let hosts = Hosts::new();
    let producer = producer(&hosts);
    let mut sticky = Sticky::new();
    sticky.set("caps", "video/x-raw(memory:DMABuf), format=NV12");
    producer.set_sticky(&sticky).unwrap();
    let (_export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    let released = Arc::<AtomicU64>::default();
    // A frame of one part, and frames of two parts of equal and unequal sizes.
    for (number, at) in (0..).zip([SIZE, SIZE / 2, 1, SIZE - 1, SIZE]) {
        let bytes = content(number, SIZE);
        let (first, second) = bytes.split_at(at);
        let filled = [first, second].into_iter().filter(|it| !it.is_empty());
        let memories = filled.map(|it| (foreign(it), it.len())).collect();
        publish_parts(
            &producer,
            number,
            import_parts(&producer, memories),
            &released,
        );
        let frame = receive(&mut consumer);
        assert_eq!(crate::support::number(&frame), number);
        assert_eq!(
            (frame.bytes().unwrap().len(), frame.parts().len()),
            (SIZE, 0)
        );
        let caps = frame.sticky().text("caps");
        assert_eq!(caps, Some("video/x-raw, format=NV12"));
        let attachments = &frame.meta().attachments;
        assert_eq!(attachments.text("note"), Some("a kitten"));
        assert_eq!(attachments.iter().count(), 1);
    }
    // Frames of the same pool may be in their slot.
    assert!(publish(&producer, 5, SIZE));
    assert_eq!(number(&receive(&mut consumer)), 5);
    drop(consumer);
    // The exporter leaves the pool, so it holds no frame and no memory.
    eventually("all are released", || released.load(Ordering::Relaxed) == 5);
    assert_eq!(import.figures(), (6, 0));
}

#[test]
fn memory_that_cannot_be_read_refuses_the_pool_until_the_next_frame() {
    let hosts = Hosts::new();
    let producer = producer(&hosts);
    let (_export, import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    // Some memory of devices cannot be mapped. A descriptor without the right to read cannot be mapped either.
    let fd = foreign(&content(0, SIZE));
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let unreadable = OpenOptions::new().write(true).open(path).unwrap();
    let released = Arc::<AtomicU64>::default();
    let parts = import_parts(&producer, vec![(unreadable.into(), SIZE)]);
    publish_parts(&producer, 0, parts, &released);
    import.prints("refused: the pool is not exported: a frame cannot be read");
    assert!(publish(&producer, 1, SIZE));
    assert_eq!(number(&receive(&mut consumer)), 1);
    eventually("it is released", || released.load(Ordering::Relaxed) == 1);
}

#[test]
fn forwarded_frames_arrive() {
    let hosts = Hosts::new();
    let (camera, producer) = (hosts.producer("camera"), producer(&hosts));
    let mut taken = hosts.consumer_of("a", "camera");
    let (_export, _import) = (hosts.export(&["cam0"]), hosts.import("b"));
    let mut consumer = hosts.consumer("b");
    eventually("the exporter joins", || producer.num_consumers() == 1);
    let released = Arc::<AtomicU64>::default();
    for number in 0..20 {
        assert!(publish(&camera, number, SIZE));
        let frame = receive(&mut taken);
        let parts = producer.forward(&frame, FrameParts::All).unwrap();
        drop(frame);
        publish_parts(&producer, number, parts, &released);
        assert_eq!(crate::support::number(&receive(&mut consumer)), number);
    }
    eventually("all but the newest are released", || {
        released.load(Ordering::Relaxed) == 19
    });
    assert_eq!(camera.stats().dropped, 0);
}
