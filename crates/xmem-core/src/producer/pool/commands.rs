// SPDX-License-Identifier: MPL-2.0

//! Commands from other threads to the control thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Instant;

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::eventfd;

use super::event::Cut;

/// A command to the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) enum Command {
    Stop,
    /// The consumer's page violates the protocol for this reason, and was removed from the list; report it and close its connection.
    CutOff(u64, &'static str),
    /// The producer stopped waiting for the consumer; report it.
    TimedOut(u64),
    /// The budgets of consumers are smaller than requested; report it.
    BudgetsCut(Cut),
    /// Memory or descriptors are lacking; report it.
    CannotGrow,
    /// The consumer holds the producer up; report it.
    HoldsUp(u64),
    /// Send the newest sticky state to all consumers.
    PushSticky,
    /// Announce a pool of origin to all consumers.
    Introduce(u64),
    /// The region is retired. Announce it to the consumers that have it mapped, including those that take no frames now.
    RegionGone(u32),
    /// Empty a slot at this time, if its readers have not taken the frame of this generation.
    GiveUpAt {
        slot: u32,
        generation: u32,
        /// The buffer's number, for the report.
        index: u32,
        until: Instant,
    },
}

#[derive(Debug)]
pub(in crate::producer) struct Commands {
    queue: Mutex<Vec<Command>>,
    event: OwnedFd,
}

impl Commands {
    pub(in crate::producer) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            event: eventfd::new()?,
        })
    }

    /// Readable while there are commands.
    pub(in crate::producer) fn event(&self) -> &OwnedFd {
        &self.event
    }

    pub(in crate::producer) fn send(&self, command: Command) {
        lock(&self.queue).push(command);
        eventfd::ring(&self.event);
        fault::point(Point::CommandSent);
    }

    pub(in crate::producer) fn take(&self) -> Vec<Command> {
        eventfd::silence(&self.event);
        std::mem::take(&mut *lock(&self.queue))
    }
}
