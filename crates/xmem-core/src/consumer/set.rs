// SPDX-License-Identifier: MPL-2.0

//! One thread receives from many consumers.

use std::io;
use std::time::Duration;

use xmem_shm::os::clock::Deadline;
use xmem_shm::os::fork::ProcessId;

use super::Consumer;
use super::ready::{Notification, OWN, ReadyFd};

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
    /// When to look again although nothing woke the set.
    again: Deadline,
}

impl Member {
    /// Returns whether there is something to receive. Otherwise the producer is asked for a wake-up.
    fn look(&mut self) -> bool {
        if self.is_awake && !self.consumer.is_ready() {
            let waiting = self.consumer.waiting_elsewhere();
            self.again = Deadline::after(waiting.announce(self.consumer.connection()));
            self.is_awake = self.consumer.is_ready();
        }
        self.is_awake
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
            again: Deadline::after(None),
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
        for member in self.members() {
            is_any |= member.look();
        }
        is_any
    }

    /// Sleeps once. Then those that were woken are awake.
    fn sleep(&mut self, deadline: Deadline) {
        let again = self.members().filter_map(|member| member.again.left());
        let time = match again.min() {
            None => deadline.left(),
            Some(again) => Some(deadline.left_up_to(again)),
        };
        let mut is_for_all = false;
        let members = &mut self.members;
        self.ready.take(time, |number| match number {
            OWN => is_for_all = true,
            number => {
                let member = members.get_mut(number as usize).and_then(Option::as_mut);
                member.into_iter().for_each(|it| it.is_awake = true);
            }
        });
        for member in self.members() {
            member.is_awake |= is_for_all || member.again.is_over();
        }
    }
}
