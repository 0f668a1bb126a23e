// SPDX-License-Identifier: MPL-2.0

//! A mutex with a timeout.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xmem_core::{ProcessId, lock};

#[derive(Debug)]
enum Place<T> {
    Free(Box<T>),
    Taken,
    /// Closed permanently.
    Empty,
}

#[derive(Debug)]
pub(crate) struct Seat<T> {
    queue: Mutex<Queue<T>>,
    changed: Condvar,
    process: ProcessId,
}

#[derive(Debug)]
struct Queue<T> {
    place: Place<T>,
    /// The number of waiting threads. Without any, a wake-up would still be a system call.
    waiting: usize,
}

/// Why the lock was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotHad {
    Timeout,
    Closed,
    /// This is a forked child. A thread of the parent may have held the lock at the fork, and never releases it here.
    Forked,
}

/// The acquired lock.
#[derive(Debug)]
pub(crate) struct Taken<'a, T> {
    seat: &'a Seat<T>,
    /// `None` only while it is dropped.
    it: Option<Box<T>>,
}

impl<T> Seat<T> {
    pub(crate) fn new(it: T) -> Self {
        Self {
            queue: Mutex::new(Queue {
                place: Place::Free(Box::new(it)),
                waiting: 0,
            }),
            changed: Condvar::new(),
            process: ProcessId::current(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        lock(&self.queue)
    }

    pub(crate) fn take(&self, timeout: Duration) -> Result<Taken<'_, T>, NotHad> {
        if !self.process.is_current() {
            return Err(NotHad::Forked);
        }
        let mut queue = self.queue();
        if matches!(queue.place, Place::Taken) {
            queue.waiting += 1;
            let is_taken = |queue: &mut Queue<T>| matches!(queue.place, Place::Taken);
            (queue, _) = self
                .changed
                .wait_timeout_while(queue, timeout, is_taken)
                .unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
        match std::mem::replace(&mut queue.place, Place::Taken) {
            Place::Free(it) => Ok(Taken {
                seat: self,
                it: Some(it),
            }),
            Place::Taken => Err(NotHad::Timeout),
            Place::Empty => {
                queue.place = Place::Empty;
                Err(NotHad::Closed)
            }
        }
    }
}

impl<T> Taken<'_, T> {
    /// Takes the value out permanently.
    pub(crate) fn close(mut self) -> Option<T> {
        self.it.take().map(|it| *it)
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it
            .as_deref()
            .unwrap_or_else(|| unreachable!("not dropped yet"))
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.it
            .as_deref_mut()
            .unwrap_or_else(|| unreachable!("not dropped yet"))
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.seat.queue();
        queue.place = self.it.take().map_or(Place::Empty, Place::Free);
        let is_awaited = queue.waiting > 0;
        drop(queue);
        if is_awaited {
            self.seat.changed.notify_all();
        }
    }
}
