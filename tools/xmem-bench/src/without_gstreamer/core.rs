// SPDX-License-Identifier: MPL-2.0

//! The crate xmem-core with its default settings.

use std::time::Duration;

use xmem_core::{
    AcquireError, Consumer, ConsumerSet, FrameMeta, Producer, PublishError, ReceiveError,
};

use super::{Publisher, RECEIVE_TIMEOUT, Subscriber};
use crate::Error;

pub(super) struct Sender {
    producer: Producer,
    size: usize,
}

impl Sender {
    pub(super) fn new(socket: &str, size: usize) -> Result<Self, Error> {
        let producer = Producer::builder(socket).build()?;
        Ok(Self { producer, size })
    }
}

impl Publisher for Sender {
    fn publish(
        &mut self,
        write: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.producer.acquire(self.size) {
            Ok(mut slot) => {
                write(slot.as_mut_slice())?;
                let published = slot.publish_unheld(&FrameMeta::new(self.size));
                published.map_err(PublishError::from)?;
                Ok(())
            }
            // Skip the frame. The consumer's share of received frames shows it.
            Err(AcquireError::Exhausted { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) struct Receiver(Consumer);

impl Receiver {
    pub(super) fn new(socket: &str, is_polled: bool) -> Result<Self, Error> {
        let time = if is_polled {
            RECEIVE_TIMEOUT
        } else {
            Duration::ZERO
        };
        Ok(Self(Consumer::builder(socket).busy_poll(time).connect()?))
    }
}

impl Subscriber for Receiver {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        match self.0.receive(Some(RECEIVE_TIMEOUT)) {
            Ok(frame) => read(frame.bytes()?),
            Err(ReceiveError::Timeout) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The consumers of several pools.
pub(super) struct Receivers(ConsumerSet);

impl Receivers {
    pub(super) fn new(pools: impl Iterator<Item = String>) -> Result<Self, Error> {
        let mut consumers = ConsumerSet::new()?;
        for pool in pools {
            consumers.add(Consumer::builder(&pool).connect()?)?;
        }
        Ok(Self(consumers))
    }
}

impl Subscriber for Receivers {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        for (_, consumer) in self.0.wait(Some(RECEIVE_TIMEOUT)) {
            match consumer.receive(Some(Duration::ZERO)) {
                Ok(frame) => read(frame.bytes()?)?,
                Err(ReceiveError::Timeout) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
