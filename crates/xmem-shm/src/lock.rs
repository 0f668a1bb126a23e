// SPDX-License-Identifier: MPL-2.0

//! Mutexes whose holders leave nothing half done, so that a panic of one is no reason for others to panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in a mutex that nobody else has.
pub fn inside<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}
