// SPDX-License-Identifier: MPL-2.0

//! A mutex with a timeout, whose value can be removed permanently.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xmem_core::ProcessId;

use crate::lock;

#[derive(Debug)]
enum State<T> {
    Free(Box<T>),
    Locked,
    /// Closed permanently.
    Closed,
}

#[derive(Debug)]
pub(crate) struct TimedMutex<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
    process: ProcessId,
}

#[derive(Debug)]
struct Queue<T> {
    state: State<T>,
    /// The number of waiting threads. Without any, a wake-up would still be a system call.
    waiting: usize,
}

/// Why the lock was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockError {
    Timeout,
    Closed,
    /// This is a forked child. A thread of the parent may have held the lock at the fork, and never releases it here.
    Forked,
}

/// The acquired lock.
#[derive(Debug)]
pub(crate) struct TimedMutexGuard<'a, T> {
    mutex: &'a TimedMutex<T>,
    /// `None` only while it is dropped.
    it: Option<Box<T>>,
}

impl<T> TimedMutex<T> {
    pub(crate) fn new(it: T) -> Self {
        Self {
            queue: Mutex::new(Queue {
                state: State::Free(Box::new(it)),
                waiting: 0,
            }),
            changed: Condvar::new(),
            process: ProcessId::current(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        lock(&self.queue)
    }

    pub(crate) fn lock(&self, timeout: Duration) -> Result<TimedMutexGuard<'_, T>, LockError> {
        if !self.process.is_current() {
            return Err(LockError::Forked);
        }
        let mut queue = self.queue();
        if matches!(queue.state, State::Locked) {
            queue.waiting += 1;
            let is_locked = |queue: &mut Queue<T>| matches!(queue.state, State::Locked);
            (queue, _) = self
                .changed
                .wait_timeout_while(queue, timeout, is_locked)
                .unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
        match std::mem::replace(&mut queue.state, State::Locked) {
            State::Free(it) => Ok(TimedMutexGuard {
                mutex: self,
                it: Some(it),
            }),
            State::Locked => Err(LockError::Timeout),
            State::Closed => {
                queue.state = State::Closed;
                Err(LockError::Closed)
            }
        }
    }
}

impl<T> TimedMutexGuard<'_, T> {
    /// Takes the value out permanently.
    pub(crate) fn close(mut self) -> Option<T> {
        self.it.take().map(|it| *it)
    }
}

impl<T> Deref for TimedMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_deref().expect("it is not dropped")
    }
}

impl<T> DerefMut for TimedMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.it.as_deref_mut().expect("it is not dropped")
    }
}

impl<T> Drop for TimedMutexGuard<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.mutex.queue();
        queue.state = self.it.take().map_or(State::Closed, State::Free);
        let is_awaited = queue.waiting > 0;
        drop(queue);
        if is_awaited {
            self.mutex.changed.notify_all();
        }
    }
}
