// SPDX-License-Identifier: MPL-2.0

//! An open end of a channel: its own pool, and the received messages.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use xmem_core::{ProcessId, Producer};

use super::inbox::Inbox;
use super::outlet::{Outlet, closed};
use crate::detached::Detached;
use crate::errors::Kind;
use crate::lock;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    /// The socket of the channel.
    pub(super) socket: PathBuf,
    /// The process that opened it.
    process: ProcessId,
    /// `None`: closed.
    producer: Mutex<Option<Producer>>,
    pub(super) inbox: Arc<Inbox>,
}

impl Link {
    pub(super) fn open(
        id: u64,
        socket: PathBuf,
        producer: Producer,
        inbox: Arc<Inbox>,
    ) -> Detached<Self> {
        Detached::new(Self {
            id,
            socket,
            process: ProcessId::current(),
            producer: Mutex::new(Some(producer)),
            inbox,
        })
    }

    /// Whether this is a forked child. Then nothing must be closed, and a lock may be held forever.
    pub(super) fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_inherited() || lock(&self.producer).is_none()
    }

    pub(super) fn outlet(&self) -> PyResult<Outlet> {
        // Before the lock: see `is_inherited`.
        if self.is_inherited() {
            return Err(Kind::Forked.error(
                "this end of the channel belongs to the process that created it: call Channel.connect after the fork",
            ));
        }
        let producer = lock(&self.producer).clone().ok_or_else(closed)?;
        let canceller = self.inbox.canceller.clone();
        Ok(Outlet {
            producer,
            canceller,
        })
    }

    /// Closes the end, without the interpreter.
    pub(super) fn shut(&self) {
        if self.is_inherited() {
            return;
        }
        let producer = lock(&self.producer).take();
        if let Some(producer) = &producer {
            producer.set_eos(true);
            producer.close();
        }
        self.inbox.close();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shut();
    }
}
