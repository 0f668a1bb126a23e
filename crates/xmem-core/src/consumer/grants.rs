// SPDX-License-Identifier: MPL-2.0

//! The right to write slots of another process's pool, as its producer grants it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::lock::lock;
use xmem_shm::os::clock::Deadline;

use super::link::Link;
use crate::cancel::Canceller;
use crate::error::ReceiveError;

/// The right to write a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Grant {
    /// The message that the slot is written: publish it for so many readers and with so many bytes, or take it back.
    pub(crate) fn written(&self, request: u32, publish: Option<(u32, u64)>) -> ToProducer {
        let (keep, size) = publish.unwrap_or_default();
        ToProducer::Written {
            request,
            slot: self.slot,
            generation: self.generation,
            publish: publish.is_some(),
            keep,
            size,
        }
    }
}

/// The answer to a request: the right to write, or the reason for a refusal.
type Answer = Result<Grant, String>;

#[derive(Default)]
struct Requests {
    last: u32,
    /// Requests that a thread waits for, each with its answer.
    open: BTreeMap<u32, Option<Answer>>,
}

/// The requests to write of one connection.
pub(crate) struct Grants {
    link: Arc<Link>,
    requests: Mutex<Requests>,
}

impl Grants {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: link.clone(),
            requests: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        lock(&self.requests)
    }

    /// Asks for the right to write, or reports that a slot is written. `question` gets the number that the answer will have.
    /// `Err` inside: the producer refuses, for this reason.
    pub(crate) fn ask(
        &self,
        question: impl FnOnce(u32) -> ToProducer,
        cancel: &Canceller,
    ) -> Result<Answer, ReceiveError> {
        if !self.link.is_of_this_process() {
            return Err(ReceiveError::Forked);
        }
        let request = {
            let mut requests = self.lock();
            requests.last = requests.last.wrapping_add(1);
            let request = requests.last;
            requests.open.insert(request, None);
            request
        };
        let deadline = Deadline::after(Some(ANSWER_TIME));
        // Not sent again: the producer answers each question that arrives with a slot.
        let answer = self
            .link
            .ask(&question(request), false, deadline, cancel, || {
                self.lock().open.get_mut(&request)?.take()
            });
        // An answer that comes after this belongs to no request, and is given back.
        let late = self.lock().open.remove(&request);
        if let Some(Some(Ok(grant))) = late {
            self.give_back(&grant);
        }
        fault::point(Point::GrantReceived);
        answer
    }

    /// Stores the answer to a request.
    pub(super) fn answered(&self, request: u32, answer: Answer) {
        let mut requests = self.lock();
        if let Some(waiting) = requests.open.get_mut(&request) {
            *waiting = Some(answer);
            return;
        }
        drop(requests);
        if let Ok(grant) = answer {
            self.give_back(&grant);
        }
    }

    /// Gives a slot back. If the answer only confirmed that a slot is published there is nothing to give back, and the producer
    /// ignores the message.
    fn give_back(&self, grant: &Grant) {
        let _ = self.link.send(&grant.written(0, None));
    }
}
