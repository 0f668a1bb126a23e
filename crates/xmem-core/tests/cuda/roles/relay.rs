// SPDX-License-Identifier: MPL-2.0

//! The middle process of a chain.

use std::time::{Duration, Instant};

use xmem_core::{Consumer, ForwardError, FrameParts, Producer, SlotSpec, StartFrom};

use super::SIZE;
use crate::gpu::Gpu;
use crate::support::HANG;
use crate::support::child::{read_line, reply};

/// Forwards frames from one pool to another, and copies those that cannot be forwarded.
pub fn relay(pool: &str, to: &str) {
    let producer = Producer::builder(to).build().unwrap();
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    reply("ready");
    loop {
        assert_eq!(read_line(), "pass");
        let frame = consumer.receive(Some(HANG)).unwrap();
        let start = Instant::now();
        let parts = loop {
            match producer.forward(&frame, FrameParts::All) {
                // Its consumers have not joined the first pool yet.
                Err(ForwardError::NotReached) if start.elapsed() < HANG => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                parts => break parts,
            }
        };
        match parts {
            Ok(parts) => {
                let mut slot = producer
                    .acquire(SlotSpec::new(1).attachments(parts.room()))
                    .unwrap();
                slot.set_parts(parts);
                slot.publish(frame.meta().clone()).unwrap();
                reply("passed");
            }
            Err(ForwardError::EndsWithProducer) => {
                let gpu = Gpu::new(0);
                let stream = gpu.stream();
                let meta = frame.meta().clone();
                let frame = frame.into_cuda().unwrap();
                let slot = producer
                    .acquire(SlotSpec::new(SIZE).on(&gpu.device))
                    .unwrap();
                frame.wait_on(stream).unwrap();
                gpu.copy(stream, slot.cuda().unwrap().ptr(), frame.ptr(), SIZE);
                slot.publish_on(stream, meta).unwrap();
                frame.release_on(stream).unwrap();
                // The process may be killed from here on.
                gpu.finish(stream);
                reply("copied");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
