// SPDX-License-Identifier: MPL-2.0

//! Something that one thread at a time has, and that others wait for no longer than they like.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::lock;

#[derive(Debug)]
enum Place<T> {
    Free(T),
    Taken,
    /// Closed for good.
    Empty,
}

#[derive(Debug)]
pub(crate) struct Seat<T> {
    place: Mutex<Place<T>>,
    changed: Condvar,
    pid: u32,
}

/// Why it was not had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotHad {
    Timeout,
    Closed,
    /// This is a forked child, and whoever had it then never gives it back here.
    Forked,
}

/// The right to use it.
#[derive(Debug)]
pub(crate) struct Taken<'a, T> {
    seat: &'a Seat<T>,
    /// `None` only while it is dropped.
    it: Option<T>,
}

impl<T> Seat<T> {
    pub(crate) fn new(it: T) -> Self {
        Self {
            place: Mutex::new(Place::Free(it)),
            changed: Condvar::new(),
            pid: std::process::id(),
        }
    }

    fn place(&self) -> MutexGuard<'_, Place<T>> {
        lock(&self.place)
    }

    pub(crate) fn take(&self, timeout: Duration) -> Result<Taken<'_, T>, NotHad> {
        if self.pid != std::process::id() {
            return Err(NotHad::Forked);
        }
        let is_taken = |place: &mut Place<T>| matches!(place, Place::Taken);
        let (mut place, _) = self
            .changed
            .wait_timeout_while(self.place(), timeout, is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *place, Place::Taken) {
            Place::Free(it) => Ok(Taken {
                seat: self,
                it: Some(it),
            }),
            Place::Taken => Err(NotHad::Timeout),
            Place::Empty => {
                *place = Place::Empty;
                Err(NotHad::Closed)
            }
        }
    }
}

impl<T> Taken<'_, T> {
    /// Takes it away for good.
    pub(crate) fn close(mut self) -> Option<T> {
        self.it.take()
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it
            .as_ref()
            .unwrap_or_else(|| unreachable!("not dropped yet"))
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.it
            .as_mut()
            .unwrap_or_else(|| unreachable!("not dropped yet"))
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        *self.seat.place() = self.it.take().map_or(Place::Empty, Place::Free);
        self.seat.changed.notify_all();
    }
}
