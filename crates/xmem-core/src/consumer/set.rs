// SPDX-License-Identifier: MPL-2.0

//! One thread receives from many consumers.

use std::io;
use std::time::Duration;

use xmem_shm::os::clock::{Deadline, monotonic_ns};
use xmem_shm::os::fork::ProcessId;
use xmem_shm::protocol::wake;

use super::Consumer;
use super::notify::Notification;
use super::ready::{OWN, ReadyFd};

/// Consumers that one thread waits for. However many there are, a sleep is one system call, which takes only as long as there are
/// consumers that have something to receive.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pools = ["front", "back"].map(|name| dir.path().join(name));
/// use std::time::Duration;
/// use xmem_core::{Consumer, ConsumerSet, FrameMeta, Producer, ReceiveError};
///
/// let producers = pools.each_ref().map(|pool| Producer::builder(pool).build());
/// let [front, back] = producers.map(Result::unwrap);
/// let mut consumers = ConsumerSet::new()?;
/// for pool in &pools {
///     consumers.add(Consumer::builder(pool).connect()?)?;
/// }
/// back.acquire(4)?.publish(FrameMeta::new(4))?;
/// front.acquire(5)?.publish(FrameMeta::new(5))?;
///
/// let mut sizes = [0; 2];
/// while sizes.contains(&0) {
///     for (number, consumer) in consumers.wait(None) {
///         match consumer.receive(Some(Duration::ZERO)) {
///             Ok(frame) => sizes[number] = frame.size(),
///             // The consumer skips it; or its memory, or the answer of its producer, has not come yet.
///             Err(ReceiveError::Timeout) => {}
///             Err(error) => return Err(error.into()),
///         }
///     }
/// }
/// assert_eq!(sizes, [5, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ConsumerSet {
    ready: ReadyFd,
    /// By their numbers. `None`: removed.
    members: Vec<Option<Member>>,
    process: ProcessId,
}

#[derive(Debug)]
struct Member {
    _notification: Notification,
    consumer: Consumer,
    /// Something may be there to receive. Otherwise the producer wakes this set when there is.
    is_awake: bool,
    /// When to look again although nothing woke the set, on CLOCK_MONOTONIC. `i64::MAX`: never.
    again: i64,
}

impl Member {
    /// Looks for something to receive. If there is nothing, the producer is asked for a wake-up. Returns whether it was, so that
    /// `look_again` must be called.
    fn look(&mut self) -> bool {
        if !self.is_awake || self.consumer.is_ready() {
            return false;
        }
        let waiting = self.consumer.waiting_elsewhere();
        let time = waiting.announce(self.consumer.connection());
        self.again = time.map_or(i64::MAX, |time| {
            let ns = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            monotonic_ns().saturating_add(ns)
        });
        self.is_awake = false;
        true
    }

    fn look_again(&mut self) {
        self.is_awake = self.consumer.is_ready();
    }
}

impl ConsumerSet {
    /// A set without consumers.
    ///
    /// # Errors
    ///
    /// If the process may have no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            ready: ReadyFd::new()?,
            members: Vec::new(),
            process: ProcessId::current(),
        })
    }

    /// Adds a consumer. Returns its number. The set takes the place of a [`ReadyFd`] that was notified of this consumer.
    ///
    /// # Errors
    ///
    /// If the kernel watches no more descriptors for this user, or the consumer was inherited through fork.
    pub fn add(&mut self, mut consumer: Consumer) -> io::Result<usize> {
        let free = self.members.iter().position(Option::is_none);
        let number = free.unwrap_or(self.members.len());
        let notification = consumer.notification_to(&self.ready, number as u64)?;
        let member = Some(Member {
            _notification: notification,
            consumer,
            is_awake: true,
            again: i64::MAX,
        });
        match self.members.get_mut(number) {
            Some(place) => *place = member,
            None => self.members.push(member),
        }
        Ok(number)
    }

    /// Removes the consumer with this number. A consumer that is added later may get the same number.
    pub fn remove(&mut self, number: usize) -> Option<Consumer> {
        let member = self.members.get_mut(number)?.take()?;
        Some(member.consumer)
    }

    /// The consumer with this number.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Consumer> {
        let member = self.members.get_mut(number)?.as_mut()?;
        // A receive call would end the request for a wake-up.
        member.is_awake = true;
        Some(&mut member.consumer)
    }

    /// Waits until a consumer [is ready](Consumer::is_ready), at most for `timeout` (`None`: no limit). Returns those that are, with
    /// their numbers. Call [`receive`](Consumer::receive) with a timeout of zero for each. One from which not all was received is
    /// returned by the next call, too. [`busy_poll`](crate::ConsumerBuilder::busy_poll) is ignored.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> impl Iterator<Item = (usize, &mut Consumer)> {
        if self.process.is_current() {
            self.wait_until(Deadline::after(timeout));
        } else {
            // The parent has the same epoll set. Each consumer returns an error.
            self.members().for_each(|member| member.is_awake = true);
        }
        let members = self.members.iter_mut().enumerate();
        members.filter_map(|(number, member)| {
            let awake = member.as_mut().filter(|member| member.is_awake)?;
            Some((number, &mut awake.consumer))
        })
    }

    fn wait_until(&mut self, deadline: Deadline) {
        let now = Deadline::after(Some(Duration::ZERO));
        let mut is_any = self.look();
        loop {
            // Also if one is ready: others may have been woken meanwhile.
            self.sleep(if is_any { now } else { deadline });
            is_any = self.look();
            if is_any || deadline.is_over() {
                return;
            }
        }
    }

    fn members(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.iter_mut().flatten()
    }

    /// Whether a consumer is ready.
    fn look(&mut self) -> bool {
        let mut is_any = false;
        let mut asked = Vec::new();
        for member in self.members() {
            if member.look() {
                asked.push(member);
            } else {
                is_any |= member.is_awake;
            }
        }
        if !asked.is_empty() {
            wake::announced();
        }
        for member in asked {
            member.look_again();
            is_any |= member.is_awake;
        }
        is_any
    }

    /// Sleeps once. Then those that were woken are awake.
    fn sleep(&mut self, deadline: Deadline) {
        let again = self.members().map(|member| member.again).min();
        let time = match again {
            None | Some(i64::MAX) => deadline.left(),
            Some(again) => {
                let left = again.saturating_sub(monotonic_ns());
                let left = Duration::from_nanos(u64::try_from(left).unwrap_or(0));
                Some(deadline.left_up_to(left))
            }
        };
        let mut is_for_all = false;
        let members = &mut self.members;
        self.ready.take(time, |number| match number {
            OWN => is_for_all = true,
            // An event of a consumer that was removed meanwhile says nothing.
            number => {
                let member = members.get_mut(number as usize).and_then(Option::as_mut);
                member.into_iter().for_each(|it| it.is_awake = true);
            }
        });
        if again.is_some_and(|again| again != i64::MAX) {
            let now = monotonic_ns();
            let due = self.members().filter(|member| member.again <= now);
            due.for_each(|member| member.is_awake = true);
        }
        if is_for_all {
            self.members().for_each(|member| member.is_awake = true);
        }
    }
}
