// SPDX-License-Identifier: MPL-2.0

//! One thread waits for several consumers, by one system call on all their wake words.

use std::time::Duration;

use xmem_shm::os::clock::Deadline;
use xmem_shm::os::futex::Words;
use xmem_shm::protocol::wake;

use super::Consumer;

/// The time between two looks at consumers that cannot be waited for together.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Waits until one of these consumers [is ready](Consumer::is_ready), at most for `timeout` (`None`: no limit). Returns whether one is.
///
/// A thread can so receive from many pools. It makes one system call when it sleeps, however many pools there are, and none while
/// frames are ready; but the kernel takes longer for each of them. It sleeps on at most 128 consumers. With more of them, with those
/// that [have an eventfd](Consumer::notify), and on Linux before 5.16, it looks every millisecond, too. It ignores
/// [`busy_poll`](crate::ConsumerBuilder::busy_poll).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pools = ["front", "back"].map(|name| dir.path().join(name));
/// use std::time::Duration;
/// use xmem_core::{Consumer, FrameMeta, Producer, ReceiveError, wait_any};
///
/// let producers = pools.each_ref().map(|pool| Producer::builder(pool).build());
/// let [front, back] = producers.map(Result::unwrap);
/// let consumers = pools.each_ref().map(|pool| Consumer::builder(pool).connect());
/// let mut consumers = consumers.map(Result::unwrap);
/// back.acquire(4)?.publish(FrameMeta::new(4))?;
/// front.acquire(5)?.publish(FrameMeta::new(5))?;
///
/// let mut sizes = Vec::new();
/// while sizes.len() < 2 {
///     wait_any(&consumers, None);
///     for consumer in consumers.iter_mut().filter(|it| it.is_ready()) {
///         match consumer.receive(Some(Duration::ZERO)) {
///             Ok(frame) => sizes.push(frame.size()),
///             // Its memory, or the answer of its producer, has not come yet.
///             Err(ReceiveError::Timeout) => {}
///             Err(error) => return Err(error.into()),
///         }
///     }
/// }
/// sizes.sort();
/// assert_eq!(sizes, [4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn wait_any<'a, C>(consumers: C, timeout: Option<Duration>) -> bool
where
    C: IntoIterator<Item = &'a Consumer>,
    C::IntoIter: Clone,
{
    let consumers = consumers.into_iter();
    let deadline = Deadline::after(timeout);
    loop {
        if consumers.clone().any(Consumer::is_ready) {
            return true;
        }
        if deadline.is_over() {
            return false;
        }
        sleep(&consumers, deadline);
    }
}

/// Sleeps once, unless a consumer is ready.
fn sleep<'a>(consumers: &(impl Iterator<Item = &'a Consumer> + Clone), deadline: Deadline) {
    let mut words = Words::default();
    let mut at_most = None;
    for consumer in consumers.clone() {
        let limit = if consumer.notifier.is_some() {
            // Its own thread sleeps on the word.
            Some(LOOK_AGAIN)
        } else {
            let waiting = consumer.waiting_elsewhere();
            let pause = waiting.pause();
            let page = consumer.connection().page();
            if page.announce(&mut words, pause.is_none()) {
                pause.into_iter().chain(waiting.at_most()).min()
            } else {
                Some(LOOK_AGAIN)
            }
        };
        at_most = at_most.into_iter().chain(limit).min();
    }
    wake::announced();
    if !consumers.clone().any(Consumer::is_ready) {
        let time = at_most.map_or_else(|| deadline.left(), |time| Some(deadline.left_up_to(time)));
        if !words.wait(time) {
            std::thread::sleep(deadline.left_up_to(LOOK_AGAIN));
        }
    }
}
