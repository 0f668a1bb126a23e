// SPDX-License-Identifier: MPL-2.0

//! Finds the reason why the exporter does not answer.

use std::mem::discriminant;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::link::{Endpoint, Fault, Link, Side};

/// The silence before the first attempt. A link is usually open earlier.
const FIRST: Duration = Duration::from_secs(2);
/// The interval between attempts.
const AGAIN: Duration = Duration::from_secs(10);

/// Opens a second link at intervals while the exporter is silent, and reports its error, because Zenoh opens the first link in
/// the background, repeatedly, and does not report the cause of a failure.
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

    /// Returns the fault if one is known. Call it periodically. It does not block: attempts run on a separate thread, for up to
    /// 1.5 s each.
    pub(super) fn poll(&mut self, is_silent: bool, now: Instant) -> Option<&Fault> {
        if !is_silent {
            // Discard a running attempt: the link has recovered.
            (self.next, self.attempt, self.fault) = (now + FIRST, None, None);
            return None;
        }
        if let Some(attempt) = self.attempt.take_if(|it| it.is_finished()) {
            let fault = attempt.join().ok().flatten();
            // Keep the text while the kind is the same, because texts contain times and ports, so each attempt would change the
            // printed state.
            if fault.as_ref().map(discriminant) != self.fault.as_ref().map(discriminant) {
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
