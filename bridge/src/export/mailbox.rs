// SPDX-License-Identifier: MPL-2.0

//! What an importer sends, on its way from Zenoh's threads to the thread of its session.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use xmem_core::follow::Handle;
use xmem_core::{lock, monotonic_ns};

use crate::wire::{Credit, Ids};

/// What the importer sent, and has not been looked at.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) credit: Option<(Credit, Instant)>,
    /// The importer's clock in its last message, and this host's clock at its arrival.
    pub(super) echo: Option<(i64, i64)>,
    pub(super) heard: Option<Instant>,
}

/// A session, as the callback for messages has it.
#[derive(Debug)]
pub(super) struct Mailbox {
    ids: Ids,
    inbox: Mutex<Inbox>,
    changed: Condvar,
    pool: Handle,
    over: AtomicBool,
}

impl Mailbox {
    pub(super) fn new(ids: Ids, pool: Handle) -> Self {
        Self {
            ids,
            inbox: Mutex::default(),
            changed: Condvar::new(),
            pool,
            over: AtomicBool::new(false),
        }
    }

    /// The stream.
    pub(super) fn ids(&self) -> Ids {
        self.ids
    }

    /// The thread has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The thread ends.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// A message came, with the importer's clock.
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

    /// Asks the producer here, for a consumer there or for a key frame.
    pub(super) fn request(&self, name: &str, data: &[u8]) {
        if let Some(consumer) = self.pool.consumer() {
            // It may be busy, or gone: then the consumer asks again.
            let _ = consumer.request(name, data);
        }
    }

    /// What came since the last time.
    pub(super) fn take(&self) -> Inbox {
        let mut inbox = lock(&self.inbox);
        std::mem::take(&mut inbox)
    }

    /// Waits for a message.
    pub(super) fn wait(&self, timeout: Duration) {
        let inbox = lock(&self.inbox);
        let is_empty = |inbox: &mut Inbox| inbox.heard.is_none();
        drop(self.changed.wait_timeout_while(inbox, timeout, is_empty));
    }
}
