// SPDX-License-Identifier: MPL-2.0

//! The ways to publish device memory. Each returns the result as text.

use std::sync::Mutex;
use std::time::Duration;

use xmem_core::cuda::Stream;
use xmem_core::{FrameMeta, Parts, ReadLease, SlotSpec, WriteLease};

use super::producer::Maker;
use super::{ROWS, SIZE, byte, outcome, pattern};

fn numbered(number: u64) -> FrameMeta {
    FrameMeta::new(SIZE).pts(number)
}

/// The next frame, which the device writes.
pub fn next(maker: &mut Maker) -> Result<ReadLease, String> {
    let slot = maker
        .producer()
        .acquire(SlotSpec::new(SIZE).on(&maker.gpu.device))
        .map_err(|error| error.to_string())?;
    let on_device = slot.cuda().unwrap();
    assert!(on_device.len() >= SIZE && slot.as_slice().is_empty());
    let number = maker.next;
    maker.next += 1;
    maker
        .gpu
        .fill(maker.stream, on_device.ptr(), SIZE, byte(number));
    slot.publish_on(maker.stream, numbered(number))
        .map_err(|failure| failure.to_string())
}

fn slot(maker: &Maker, spec: SlotSpec) -> WriteLease {
    maker.producer().acquire(spec).unwrap()
}

/// A slot in device memory for a whole frame.
fn on_device(maker: &Maker) -> WriteLease {
    slot(maker, SlotSpec::new(SIZE).on(&maker.gpu.device))
}

/// Many frames at full speed. Waits if there is no slot.
pub fn many(maker: &mut Maker, count: u64) {
    for _ in 0..count {
        while next(maker).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A frame in memory of the program.
pub fn borrowed(maker: &mut Maker) -> String {
    let borrowed = maker.borrowed.as_ref().unwrap();
    let mut parts = Parts::new();
    parts.add_imported(&borrowed.memory, 0, SIZE as u64, 0);
    let mut slot = slot(
        maker,
        SlotSpec::device_event(&maker.gpu.device).attachments(parts.room()),
    );
    let number = maker.next_borrowed;
    maker
        .gpu
        .fill(maker.stream, borrowed.ptr, SIZE, byte(number));
    slot.set_parts(parts);
    let published = slot.publish_on(maker.stream, numbered(number));
    maker.next_borrowed += 1;
    outcome(published, "published")
}

/// Without device work.
pub fn plain(maker: &Maker) -> String {
    match maker
        .producer()
        .acquire(SlotSpec::new(SIZE).on(&maker.gpu.device))
    {
        Ok(slot) => outcome(
            slot.publish_on(maker.stream, FrameMeta::new(SIZE)),
            "published",
        ),
        Err(error) => error.to_string(),
    }
}

/// The lease that the logger publishes.
static OF_LOGGER: Mutex<Option<(WriteLease, Stream)>> = Mutex::new(None);
static CALLED_BACK: Mutex<Option<String>> = Mutex::new(None);

/// Publishes on a failing device until the failure is detected, then once more from the logger, in the same region.
pub fn from_logger(maker: &Maker) -> String {
    let (gpu, stream) = (&maker.gpu, maker.stream);
    let slot = on_device(maker);
    *OF_LOGGER.lock().unwrap() = Some((slot, stream));
    gpu.trap(stream);
    while plain(maker) == "published" {}
    loop {
        if let Some(outcome) = CALLED_BACK.lock().unwrap().take() {
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The program's logger, when it receives the failure of a device.
pub fn call_back() {
    let own = OF_LOGGER.lock().unwrap().take();
    if let Some((slot, stream)) = own {
        let published = slot.publish_on(stream, FrameMeta::new(SIZE));
        *CALLED_BACK.lock().unwrap() = Some(outcome(published, "published"));
    }
}

/// On a stream that is blocked until a command releases it.
pub fn late(maker: &Maker) -> String {
    let gpu = &maker.gpu;
    let stream = gpu.late_stream();
    let slot = on_device(maker);
    gpu.fill(stream, slot.cuda().unwrap().ptr(), SIZE, byte(6000));
    outcome(slot.publish_on(stream, numbered(6000)), "published")
}

/// Written on a blocked stream, and published on a stream that waits for it. Returns whether it was published.
pub fn behind(maker: &mut Maker) -> String {
    let (gpu, stream) = (&maker.gpu, maker.stream);
    let late = gpu.late_stream();
    let slot = on_device(maker);
    gpu.fill(late, slot.cuda().unwrap().ptr(), SIZE, byte(6000));
    stream.wait_for(&gpu.device, late).unwrap();
    let mark = stream.mark(&gpu.device).unwrap();
    slot.publish_on(stream, numbered(6000)).unwrap();
    let is_there = mark.synchronize_for(Duration::ZERO).unwrap();
    maker.mark = Some(mark);
    is_there.to_string()
}

/// Without a stream.
pub fn done(maker: &Maker) -> String {
    let slot = on_device(maker);
    outcome(slot.publish(numbered(5000)), "published")
}

/// Copied from memory of this program that a device still writes.
pub fn copied(maker: &Maker, how: &str) -> String {
    let (gpu, stream) = (&maker.gpu, maker.stream);
    let from = gpu.allocate(SIZE);
    let slot = on_device(maker);
    let on_device = slot.cuda().unwrap();
    gpu.fill(stream, on_device.ptr(), SIZE, 0);
    gpu.write(stream, from, &pattern(SIZE));
    let host = pattern(SIZE);
    // SAFETY: memory that is not refused is never freed.
    let copied = unsafe {
        match how {
            "rows" => on_device.copy_rows_from(stream, from, &ROWS),
            "host" => on_device.copy_from(stream, host.as_ptr() as u64, SIZE),
            "pinned" => on_device.copy_from(stream, gpu.allocate_host(SIZE), SIZE),
            "too-much" => on_device.copy_from(stream, from, on_device.len() + 1),
            _ => on_device.copy_from(stream, from, SIZE),
        }
    };
    match copied {
        Ok(()) => outcome(slot.publish_on(stream, FrameMeta::new(SIZE)), "published"),
        Err(error) => error.to_string(),
    }
}

/// In another slot than the frame's own, and not the first one of its region.
pub fn part(maker: &Maker) -> String {
    let (gpu, stream) = (&maker.gpu, maker.stream);
    let (first, part) = (on_device(maker), on_device(maker));
    for (slot, byte) in [(&first, 255), (&part, byte(7))] {
        gpu.fill(stream, slot.cuda().unwrap().ptr(), SIZE, byte);
    }
    gpu.finish(stream);
    let part = part.into_part();
    let mut parts = Parts::new();
    parts.add_slot(&part, 0, SIZE as u64, 0);
    let mut slot = slot(
        maker,
        SlotSpec::device_event(&gpu.device).attachments(parts.room()),
    );
    slot.set_parts(parts);
    slot.set_release_hook(move || drop(part));
    outcome(slot.publish_on(stream, numbered(7)), "published")
}

/// Publishes a frame again with an attachment, which is not behind the payload.
pub fn twice(maker: &Maker) -> String {
    let slot = slot(
        maker,
        SlotSpec::new(SIZE).attachments(1000).on(&maker.gpu.device),
    );
    let ptr = slot.cuda().unwrap().ptr();
    maker.gpu.fill(maker.stream, ptr, SIZE, byte(0));
    let mut meta = numbered(0);
    let lease = slot.publish_on(maker.stream, meta.clone()).unwrap();
    meta.attachments.set("note", vec![7; 100]);
    outcome(maker.producer().republish(&lease, &meta), "published")
}

/// In host memory.
pub fn host(maker: &Maker) -> String {
    let mut slot = maker.producer().acquire(1000).unwrap();
    slot.as_mut_slice().fill(7);
    outcome(slot.publish(FrameMeta::new(1000)), "published")
}

/// The producer's own lease of a frame that has parts, in a slot that also has bytes.
pub fn own_parts(maker: &Maker) -> String {
    let borrowed = maker.borrowed.as_ref().unwrap();
    let mut parts = Parts::new();
    parts.add_imported(&borrowed.memory, 0, SIZE as u64, 0);
    let mut slot = slot(
        maker,
        SlotSpec::new(1)
            .attachments(parts.room())
            .on(&maker.gpu.device),
    );
    assert!(slot.cuda().unwrap().len() < SIZE);
    slot.set_parts(parts);
    let lease = slot.publish_on(maker.stream, FrameMeta::new(SIZE)).unwrap();
    lease
        .cuda()
        .map_or_else(|error| error.to_string(), |frame| frame.len().to_string())
}
