// SPDX-License-Identifier: MPL-2.0

//! What other threads ask of the control thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::eventfd;

use super::peer::Departure;
use super::share::Cut;

/// What other threads ask of the control thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Stop,
    /// The consumer's page does not count any more; close its connection.
    Disconnect(u64, Departure),
    /// The consumer was given up on; say so.
    TimedOut(u64),
    /// Consumers may hold fewer slots than they asked for.
    BudgetsCut(Cut),
    /// The consumer holds the producer up.
    HoldsUp(u64),
    /// Send the newest sticky state to everybody.
    PushSticky,
    /// Tell everybody of a pool that frames come from.
    Introduce(u64),
    /// The region is retired; say so to who has it, also to those that do not look for frames now.
    RegionGone(u32),
}

#[derive(Debug)]
pub(super) struct Commands {
    queue: Mutex<Vec<Command>>,
    pub(super) event: OwnedFd,
}

impl Commands {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            event: eventfd::new()?,
        })
    }

    pub(super) fn send(&self, command: Command) {
        lock(&self.queue).push(command);
        eventfd::ring(&self.event);
        fault::point(Point::CommandSent);
    }

    pub(super) fn take(&self) -> Vec<Command> {
        eventfd::silence(&self.event);
        std::mem::take(&mut *lock(&self.queue))
    }
}
