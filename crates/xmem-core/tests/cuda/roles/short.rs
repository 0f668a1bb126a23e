// SPDX-License-Identifier: MPL-2.0

//! Processes that can use frames on a device only partly.

use xmem_core::cuda::{CudaError, Device, Mode};
use xmem_core::{Consumer, FrameMeta, NotReadable, Producer, SlotSpec, StartFrom};

use super::SIZE;
use crate::support::child::{read_line, reply};
use crate::support::{HANG, eventually};

/// A process without a driver.
pub fn without_driver(pool: &str) {
    assert!(!xmem_core::cuda::is_available());
    let error = Device::new(0).unwrap_err();
    assert!(matches!(&error, CudaError::NoDriver { .. }), "{error}");
    assert!(xmem_core::cuda::devices().is_err());
    // Pools in host memory still work.
    let producer = Producer::builder(pool).build().unwrap();
    let mut consumer = Consumer::builder(pool).connect().unwrap();
    crate::support::publish(&producer, 1, 5000);
    let frame = crate::support::receive(&mut consumer);
    crate::support::assert_frame(&frame, 1, 5000);
    assert_eq!(frame.cuda().unwrap_err(), CudaError::NotOnDevice);
    reply(error);
}

/// Takes a frame on a device and can only use its metadata.
pub fn only_hold(pool: &str) {
    let mut consumer = Consumer::builder(pool)
        .start_from(StartFrom::Oldest)
        .connect()
        .unwrap();
    reply("ready");
    let frame = consumer.receive(Some(HANG)).unwrap();
    assert!(frame.is_on_device() && frame.bytes() == Err(NotReadable::OnDevice));
    assert_eq!(frame.meta().size, SIZE as u64);
    reply(frame.cuda().unwrap_err());
    read_line();
    drop(frame);
    reply("dropped");
    read_line();
}

/// Has a pool and its consumer, which has left when its frame is used.
pub fn alone(pool: &str) {
    let producer = Producer::builder(pool).cuda_mode(Mode::Legacy);
    let producer = producer.build().unwrap();
    let slot = producer.acquire(SlotSpec::new(SIZE).on(&Device::new(0).unwrap()));
    drop(slot.unwrap().publish(FrameMeta::new(SIZE)).unwrap());
    let consumer = Consumer::builder(pool).start_from(StartFrom::Oldest);
    let mut consumer = consumer.connect().unwrap();
    let lease = consumer.receive(Some(HANG)).unwrap();
    drop(consumer);
    drop(lease.cuda().unwrap());
    drop(lease);
    eventually("it is gone", || producer.stats().consumers.is_empty());
    reply("gone");
}
