// SPDX-License-Identifier: MPL-2.0

//! Passes the messages of an importer from Zenoh's threads to the thread of its session.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use xmem_core::follow::FollowerHandle;
use xmem_core::monotonic_ns;

use crate::lock;
use crate::wire::{Credit, Ids};

/// The messages that the session has not read yet. Only the newest of each kind is kept.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// The newest credit, and the time of its arrival.
    pub(super) credit: Option<(Credit, Instant)>,
    /// The importer's time in its last message, and this host's time at the arrival of that message.
    pub(super) echo: Option<(i64, i64)>,
    /// The arrival of the last message.
    pub(super) heard: Option<Instant>,
}

/// The part of a session that Zenoh's callbacks use.
#[derive(Debug)]
pub(super) struct Mailbox {
    ids: Ids,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    pool: FollowerHandle,
}

impl Mailbox {
    pub(super) fn new(ids: Ids, pool: FollowerHandle) -> Self {
        Self {
            ids,
            inbox: Mutex::default(),
            changed: Condvar::new(),
            pool,
        }
    }

    /// The instances of the stream.
    pub(super) fn ids(&self) -> Ids {
        self.ids
    }

    /// Stores a message of the importer. `sent` is the importer's time in it.
    pub(super) fn heard(&self, sent: i64, credit: Option<Credit>) {
        let now = Instant::now();
        let mut inbox = lock(&self.inbox);
        inbox.heard = Some(now);
        inbox.echo = Some((sent, monotonic_ns()));
        if let Some(credit) = credit {
            inbox.credit = Some((credit, now));
        }
        drop(inbox);
        self.changed.notify_all();
    }

    /// Sends a request to the producer: the request of a consumer on the importer's host, or one for a key frame.
    pub(super) fn request(&self, name: &str, data: &[u8]) {
        if let Some(consumer) = self.pool.consumer() {
            // A request is lost if the producer is busy or has ended. Requests are not acknowledged, and key frames are requested
            // repeatedly.
            let _ = consumer.request(name, data);
        }
    }

    /// Takes the messages that arrived since the last call.
    pub(super) fn take(&self) -> Inbox {
        let mut inbox = lock(&self.inbox);
        std::mem::take(&mut inbox)
    }

    /// Waits until a message arrives, for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) {
        let inbox = lock(&self.inbox);
        let is_empty = |inbox: &mut Inbox| inbox.heard.is_none();
        drop(self.changed.wait_timeout_while(inbox, timeout, is_empty));
    }
}
