// SPDX-License-Identifier: MPL-2.0

//! What a consumer asks its producer for, and waiting for the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xmem_shm::abi::limits::ANSWER_TIME;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::wire::ToProducer;
use xmem_shm::fault::{self, Point};
use xmem_shm::os::clock::Deadline;
use xmem_shm::sync::Ordering;

use super::inbox::{Answer, Grant, Inbox};
use super::session::Session;
use crate::cancel::Canceller;
use crate::error::ReceiveError;
use crate::region::RegionView;

/// How often a question is asked again that the producer's full queue may have swallowed.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Session {
    /// Asks the producer, and waits for what comes.
    pub(super) fn ask<T>(
        &self,
        question: &ToProducer,
        repeat: bool,
        deadline: Deadline,
        cancel: &Canceller,
        mut answer: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<T, ReceiveError> {
        if !self.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        let mut asked: Option<Instant> = None;
        loop {
            let rings = self.bell.rings();
            if let Some(found) = answer(&mut self.inbox()) {
                return Ok(found);
            }
            if self.lost.load(Ordering::Acquire) {
                // What came before the end is in the inbox, and was looked at just now or is not coming.
                return answer(&mut self.inbox()).ok_or(ReceiveError::ProducerLost);
            }
            if cancel.is_cancelled() {
                return Err(ReceiveError::Cancelled);
            }
            // Also woken by answers to others.
            if asked.is_none_or(|at| repeat && at.elapsed() >= ASK_AGAIN)
                && self.send(question).is_ok()
            {
                asked = Some(Instant::now());
            }
            // After the question: who never waits gets an answer when it comes again.
            if deadline.is_over() {
                return Err(ReceiveError::Timeout);
            }
            self.bell.wait(rings, deadline.left_up_to(ASK_AGAIN));
        }
    }

    /// The region of this id, mapped. Asked for when it is met for the first time.
    pub(crate) fn region(
        &self,
        id: u32,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<RegionView>>, ReceiveError> {
        let look = |inbox: &mut Inbox| {
            if let Answer::Ready(view) = inbox.regions.get(&id)? {
                return Some(Ok(Some(view.clone())));
            }
            // It is asked for again when it is needed again.
            match inbox.regions.remove(&id)? {
                Answer::Refused(error) => Some(Err(ReceiveError::Region(error))),
                Answer::Gone | Answer::Ready(_) => Some(Ok(None)),
            }
        };
        if let Some(found) = look(&mut self.inbox()) {
            return found;
        }
        let question = ToProducer::GetRegion { id };
        self.ask(&question, true, deadline, cancel, |inbox| {
            let found = look(inbox);
            if found.is_none() {
                inbox.ask_for(id);
            }
            found
        })?
    }

    /// This version of the sticky state. Asked for only if it was not sent already.
    pub(super) fn sticky(
        &self,
        version: u64,
        deadline: Deadline,
        cancel: &Canceller,
    ) -> Result<Option<Arc<Sticky>>, ReceiveError> {
        let look = |inbox: &mut Inbox| {
            let found = inbox.stickies.get(&version)?.0.clone();
            // Frames come in order, so no other comes that needs an older one.
            while inbox.stickies.first_key_value()?.0 < &version {
                inbox.stickies.pop_first();
            }
            Some(found)
        };
        if let Some(found) = look(&mut self.inbox()) {
            return Ok(found);
        }
        self.ask(
            &ToProducer::GetSticky { version },
            true,
            deadline,
            cancel,
            look,
        )
    }

    /// The newest sticky state that came.
    pub(super) fn newest_sticky(&self) -> Option<Arc<Sticky>> {
        if !self.process.is_current() {
            return None;
        }
        let inbox = self.inbox();
        inbox.stickies.values().rev().find_map(|it| it.0.clone())
    }

    pub(super) fn wait_sticky(&self, timeout: Duration, cancel: &Canceller) -> Option<Arc<Sticky>> {
        if !self.process.is_current() {
            return None;
        }
        let deadline = Deadline::after(Some(timeout));
        loop {
            let rings = self.bell.rings();
            let newest = self.newest_sticky();
            if newest.is_some()
                || deadline.is_over()
                || cancel.is_cancelled()
                || self.lost.load(Ordering::Acquire)
            {
                // What came before the end is in the inbox.
                return newest.or_else(|| self.newest_sticky());
            }
            self.bell.wait(rings, deadline.left_up_to(ASK_AGAIN));
        }
    }

    /// Asks for the right to write, or says that it is done. `question` gets the number that the answer will have. `Err`
    /// inside: the producer says no, in words.
    pub(crate) fn ask_to_write(
        &self,
        question: impl FnOnce(u32) -> ToProducer,
        cancel: &Canceller,
    ) -> Result<Result<Grant, String>, ReceiveError> {
        if !self.process.is_current() {
            return Err(ReceiveError::Forked);
        }
        let request = {
            let mut inbox = self.inbox();
            inbox.last_request = inbox.last_request.wrapping_add(1);
            let request = inbox.last_request;
            inbox.requests.insert(request, None);
            request
        };
        let deadline = Deadline::after(Some(ANSWER_TIME));
        // Not asked again: each question that arrives is answered with a slot.
        let answer = self.ask(&question(request), false, deadline, cancel, |inbox| {
            inbox.requests.get_mut(&request)?.take()
        });
        // An answer that comes after this is to nobody's question, and given back.
        let late = self.inbox().requests.remove(&request);
        if let Some(Some(Ok(grant))) = late {
            self.give_back(&grant);
        }
        fault::point(Point::GrantReceived);
        answer
    }

    /// An answer to `ask_to_write`.
    pub(super) fn answered(&self, request: u32, answer: Result<Grant, String>) {
        let mut inbox = self.inbox();
        if let Some(waiting) = inbox.requests.get_mut(&request) {
            *waiting = Some(answer);
            return;
        }
        drop(inbox);
        if let Ok(grant) = answer {
            self.give_back(&grant);
        }
    }

    /// For what it is the news that the slot is published, there is nothing to give back, which the producer knows.
    fn give_back(&self, grant: &Grant) {
        let _ = self.send(&grant.written(0, None));
    }

    /// Waits until the producer has given this consumer its place in the stream.
    pub(super) fn wait_for_place(&self, deadline: Deadline, cancel: &Canceller) -> bool {
        loop {
            let rings = self.bell.rings();
            if self.inbox().arrived {
                return true;
            }
            if deadline.is_over() || cancel.is_cancelled() || self.lost.load(Ordering::Acquire) {
                return self.inbox().arrived;
            }
            // In short turns, so that a wait that is called off ends.
            self.bell
                .wait(rings, deadline.left_up_to(Duration::from_millis(50)));
        }
    }
}
