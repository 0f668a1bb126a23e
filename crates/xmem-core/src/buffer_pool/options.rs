// SPDX-License-Identifier: MPL-2.0

//! Options for opening a pool of buffers.

use std::fmt;
use std::sync::Arc;

use super::error::OpenError;
use super::number::MAX_BUFFERS;
use super::number::pool_of;
use crate::consumer::{Consumer, ConsumerBuilder, query};
use crate::error::CreateError;
use crate::producer::{PoolEvent, Producer, Unread};
use crate::rendezvous::socket_path;

/// The maximum number of processes that may be connected to one writer.
const MAX_READERS: u32 = 1024;

type OnUnread = Arc<dyn Fn(&Unread) + Send + Sync>;

/// Options for opening a [`BufferPool`](crate::BufferPool). They apply to the buffers that this process writes, except
/// [`max_held`](Self::max_held).
#[derive(Clone)]
#[must_use]
pub struct BufferPoolOptions {
    name: String,
    max_buffers: u32,
    max_held: u32,
    on_unread: Option<OnUnread>,
}

impl fmt::Debug for BufferPoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPoolOptions")
            .field("name", &self.name)
            .field("max_buffers", &self.max_buffers)
            .field("max_held", &self.max_held)
            .finish_non_exhaustive()
    }
}

impl BufferPoolOptions {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            max_buffers: 256,
            max_held: u32::MAX,
            on_unread: None,
        }
    }

    /// The maximum number of buffers that this process may write and keep published, from 2 to 4096. Default: 256.
    pub fn max_buffers(mut self, buffers: u32) -> Self {
        self.max_buffers = buffers;
        self
    }

    /// The maximum number of buffers of one process that another process may hold at one time. The smaller value of writer and
    /// reader applies. Default: all.
    pub fn max_held(mut self, buffers: u32) -> Self {
        self.max_held = buffers;
        self
    }

    /// Calls this when a buffer was emptied at its timeout ([`BufferGuard::set_timeout`](crate::BufferGuard::set_timeout)), on
    /// a thread of the pool. It must not block, because no process can join meanwhile. Default: a warning in the log.
    pub fn on_unread(mut self, f: impl Fn(&Unread) + Send + Sync + 'static) -> Self {
        self.on_unread = Some(Arc::new(f));
        self
    }

    /// Checks the options, and that no stream has the name.
    pub(super) fn check(&self) -> Result<(), OpenError> {
        // Checks the longest name of a process's own pool.
        socket_path(pool_of(&self.name, 0))?;
        if !(2..=MAX_BUFFERS).contains(&self.max_buffers) {
            return Err(OpenError::MaxBuffers {
                max_buffers: self.max_buffers,
            });
        }
        if socket_path(&self.name)?.exists() && query(&self.name).is_ok() {
            return Err(OpenError::Stream {
                pool: self.name.clone(),
            });
        }
        Ok(())
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn producer(&self, pool: &str) -> Result<Producer, CreateError> {
        let on_unread = self.on_unread.clone().unwrap_or_else(|| {
            let pool = self.name.clone();
            Arc::new(move |unread| log::warn!("pool {pool:?}: {unread}"))
        });
        Producer::builder(pool)
            .history(0)
            .by_number()
            .max_slots(self.max_buffers)
            .max_consumers(MAX_READERS)
            .max_held(self.max_held.min(self.max_buffers))
            .mixed_sizes(true)
            .on_event(move |event| {
                if let PoolEvent::Unread(unread) = event {
                    on_unread(&unread);
                }
            })
            .build()
    }

    pub(super) fn consumer(&self, pool: &str) -> ConsumerBuilder {
        Consumer::builder(pool).max_held(self.max_held.min(MAX_BUFFERS))
    }
}
