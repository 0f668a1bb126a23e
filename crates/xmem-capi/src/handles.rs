// SPDX-License-Identifier: MPL-2.0

//! The objects behind the handles that C programs have.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::border::{Out, call};
use crate::entries::{Entries, Held};
use crate::error::{Code, Failure};

/// A panic of another thread leaves nothing half done under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value of a mutex that nothing else uses.
pub(crate) fn inside<T>(mutex: &mut Mutex<T>) -> &mut T {
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// The objects of one kind.
pub(crate) struct Table<T> {
    entries: Entries<T>,
    /// In errors.
    what: &'static str,
}

impl<T> Table<T> {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self {
            entries: Entries::new(),
            what,
        }
    }

    /// Adds an object, and returns its handle.
    #[inline(always)]
    pub(crate) fn add(&self, object: T) -> Result<u64, Failure> {
        self.entries.add(object).ok_or_else(too_many)
    }

    #[inline(always)]
    pub(crate) fn get(&'static self, handle: u64) -> Result<Held<T>, Failure> {
        self.entries.get(handle).ok_or_else(|| self.invalid())
    }

    /// Ends a handle. The object ends with its last user.
    #[inline(always)]
    pub(crate) fn remove(&'static self, handle: u64) -> Result<Held<T>, Failure> {
        self.entries.remove(handle).ok_or_else(|| self.invalid())
    }

    #[cold]
    fn invalid(&self) -> Failure {
        let text = format!(
            "this handle is not a {}, or has been closed or released",
            self.what
        );
        Failure::new(Code::Handle, text)
    }
}

#[cold]
pub(crate) fn too_many() -> Failure {
    Failure::new(Code::System, "there are too many handles")
}

/// Makes a handle, and writes it to a variable of C: 0 if that fails. `what`: its name in errors.
pub(crate) fn give(
    handle: *mut u64,
    what: &str,
    make: impl FnOnce() -> Result<u64, Failure>,
) -> c_int {
    call(|| {
        let handle = Out::new(handle, what)?;
        handle.set(0);
        handle.set(make()?);
        Ok(())
    })
}
