// SPDX-License-Identifier: MPL-2.0

//! Options for opening a pool of buffers.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::error::OpenError;
use super::{BufferPool, Inner, Role};
use crate::cancel::Canceller;
use crate::consumer::Consumer;
use crate::error::{ConnectError, CreateError};
use crate::producer::{ConsumerEvent, Producer, Unread};

type OnUnread = Arc<dyn Fn(&Unread) + Send + Sync>;

/// Time for another process that is just making the pool.
const MAKING_TIME: Duration = Duration::from_secs(2);
/// The default for one other process: this fraction of all buffers, and at most this many.
const HELD_SHARE: u32 = 4;
const MOST_HELD: u32 = 8;

/// Options for opening a [`BufferPool`].
#[derive(Clone)]
#[must_use]
pub struct BufferPoolOptions {
    name: String,
    peers_may_write: bool,
    max_buffers: u32,
    /// `None`: as many as usual.
    max_held: Option<u32>,
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
            peers_may_write: false,
            max_buffers: 256,
            max_held: None,
            on_unread: None,
        }
    }

    /// Allows processes that did not make the pool to acquire buffers too. Its memory is then sealed against resizing but
    /// not against writing, so such a process could also write where it should not. Default: no.
    pub fn peers_may_write(mut self, may: bool) -> Self {
        self.peers_may_write = may;
        self
    }

    /// The most buffers there may be. Default: 256. Only the process that makes the pool sets it.
    pub fn max_buffers(mut self, buffers: u32) -> Self {
        self.max_buffers = buffers;
        self
    }

    /// The most buffers that another process may hold at once. In the process that makes the pool: the limit for each of
    /// the others; default: a quarter of `max_buffers`, and 8 at most. In a process that joins: the number it asks for;
    /// default: 8. It gets at most the limit, and at most the rest.
    ///
    /// This many and one more are set aside for each process that joins, and `min(16, max_buffers / 8) + 2` for the
    /// process that made the pool: with the defaults there is room for 26 others, with `max_held(1)` set by the
    /// process that makes the pool for 119. If more join, each may hold fewer, and one at a time at least. No more processes may join than
    /// there may be buffers.
    pub fn max_held(mut self, buffers: u32) -> Self {
        self.max_held = Some(buffers);
        self
    }

    /// Calls this when a buffer was emptied at its timeout ([`BufferGuard::set_timeout`](crate::BufferGuard::set_timeout)), from
    /// the pool's own thread, which serves nobody meanwhile. Default: a warning in the log. Only the process that makes the
    /// pool sets it.
    pub fn on_unread(mut self, f: impl Fn(&Unread) + Send + Sync + 'static) -> Self {
        self.on_unread = Some(Arc::new(f));
        self
    }

    /// Connects to the pool, or makes it if there is none.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(self) -> Result<BufferPool, OpenError> {
        let mut consumer = Consumer::builder(&self.name);
        if let Some(buffers) = self.max_held {
            consumer = consumer.max_held(buffers);
        }
        let role = match consumer.connect() {
            Ok(consumer) => peer(consumer)?,
            Err(ConnectError::NotFound { .. }) => {
                let share = (self.max_buffers / HELD_SHARE).clamp(1, MOST_HELD);
                let held = self.max_held.unwrap_or(share);
                let on_unread = self
                    .on_unread
                    .clone()
                    .unwrap_or_else(|| warn_in(&self.name));
                let producer = Producer::builder(&self.name)
                    .without_history()
                    .by_number()
                    .max_slots(self.max_buffers)
                    // Buffers run out before consumers do, and their number is set here.
                    .max_consumers(self.max_buffers)
                    .max_held(held)
                    .mixed_sizes(true)
                    .peers_may_write(self.peers_may_write)
                    .on_consumer(move |event| {
                        if let ConsumerEvent::Unread(unread) = event {
                            on_unread(&unread);
                        }
                    })
                    .build();
                match producer {
                    Ok(producer) => Role::Owner(producer),
                    // Another process made the pool first, and may not listen yet.
                    Err(CreateError::InUse { .. }) => {
                        peer(consumer.connect_wait(Some(MAKING_TIME))?)?
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        };
        Ok(BufferPool {
            inner: Arc::new(Inner {
                name: self.name,
                role,
                canceller: Canceller::new(),
                counts: Mutex::default(),
                loose: Mutex::default(),
                got: Mutex::default(),
                writing: Mutex::default(),
            }),
        })
    }
}

fn warn_in(pool: &str) -> OnUnread {
    let pool = pool.to_owned();
    Arc::new(move |unread| log::warn!("pool {pool:?}: {unread}"))
}

fn peer(consumer: Consumer) -> Result<Role, OpenError> {
    if !consumer.control().constants().shape.by_number {
        return Err(OpenError::Stream {
            pool: consumer.pool().to_owned(),
        });
    }
    Ok(Role::Peer(Box::new(consumer)))
}
