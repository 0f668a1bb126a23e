// SPDX-License-Identifier: MPL-2.0

//! Why the exporter does not answer.

use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::link::{Endpoint, Fault, Link, Side};

/// Before the first attempt. A link that opens needs less.
const FIRST: Duration = Duration::from_secs(2);
/// From one attempt to the next.
const AGAIN: Duration = Duration::from_secs(10);

/// While the exporter is silent, opens a second link from time to time. Reason: Zenoh reports no cause when the first one fails,
/// since that one is opened again and again in the background.
#[derive(Debug)]
pub(super) struct Diagnosis {
    endpoint: Endpoint,
    next: Instant,
    attempt: Option<JoinHandle<Option<Fault>>>,
    fault: Option<Fault>,
}

impl Diagnosis {
    pub(super) fn new(endpoint: Endpoint, now: Instant) -> Self {
        Self {
            endpoint,
            next: now + FIRST,
            attempt: None,
            fault: None,
        }
    }

    /// The fault, if one is known. To be called again and again. Does not wait: an attempt takes up to 1.5 s, in a thread.
    pub(super) fn look(&mut self, is_silent: bool, now: Instant) -> Option<&Fault> {
        if !is_silent {
            // The result of an attempt that goes on is of no use any more.
            (self.next, self.attempt, self.fault) = (now + FIRST, None, None);
            return None;
        }
        if let Some(attempt) = self.attempt.take_if(|it| it.is_finished()) {
            let fault = attempt.join().ok().flatten();
            // The text of one kind may have times and ports, so it would be another one each time.
            if fault.as_ref().map(Fault::kind) != self.fault.as_ref().map(Fault::kind) {
                self.fault = fault;
            }
            self.next = now + AGAIN;
        }
        if self.attempt.is_none() && now >= self.next {
            let endpoint = self.endpoint.clone();
            let attempt = move || Link::open(&endpoint, Side::ConnectsOnce).err();
            let thread = Builder::new().name("diagnosis".to_owned());
            self.attempt = thread.spawn(attempt).ok();
            self.next = now + AGAIN;
        }
        self.fault.as_ref()
    }
}
