// SPDX-License-Identifier: MPL-2.0

//! The objects behind the handles that C programs have.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::border::{Out, call};
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
    entries: Mutex<Entries<T>>,
    /// In errors.
    what: &'static str,
}

struct Entries<T> {
    all: Vec<Entry<T>>,
    free: Vec<u32>,
}

struct Entry<T> {
    /// Of the present object or, without one, of the next. A handle of an earlier object has another.
    generation: u32,
    object: Option<Arc<T>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self {
            entries: Mutex::new(Entries {
                all: Vec::new(),
                free: Vec::new(),
            }),
            what,
        }
    }

    /// Adds an object, and returns its handle, which is not 0.
    // Inlined, as below, because it runs for each frame.
    #[inline(always)]
    fn add(&self, object: Arc<T>) -> Result<u64, Failure> {
        let mut entries = lock(&self.entries);
        let Entries { all, free } = &mut *entries;
        let number = match free.pop() {
            Some(number) => number,
            None => {
                let number = u32::try_from(all.len())
                    .map_err(|_| Failure::new(Code::System, "there are too many handles"))?;
                all.push(Entry {
                    generation: 1,
                    object: None,
                });
                number
            }
        };
        let Some(entry) = all.get_mut(number as usize) else {
            return Err(self.invalid());
        };
        entry.object = Some(object);
        Ok(u64::from(entry.generation) << 32 | u64::from(number))
    }

    /// Makes an object, and writes its handle to a variable of C: 0 if that fails. `what`: its name in errors.
    pub(crate) fn give(
        &self,
        handle: *mut u64,
        what: &str,
        make: impl FnOnce() -> Result<Arc<T>, Failure>,
    ) -> c_int {
        call(|| {
            let handle = Out::new(handle, what)?;
            handle.set(0);
            handle.set(self.add(make()?)?);
            Ok(())
        })
    }

    #[inline(always)]
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let (generation, number) = parts(handle);
        let entries = lock(&self.entries);
        let entry = entries
            .all
            .get(number)
            .filter(|it| it.generation == generation);
        entry
            .and_then(|it| it.object.clone())
            .ok_or_else(|| self.invalid())
    }

    /// Ends a handle. The caller drops the object, without the lock.
    #[inline(always)]
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let (generation, number) = parts(handle);
        let mut entries = lock(&self.entries);
        let Entries { all, free } = &mut *entries;
        let entry = all.get_mut(number).filter(|it| it.generation == generation);
        let Some((entry, object)) =
            entry.and_then(|it| it.object.take().map(|object| (it, object)))
        else {
            return Err(self.invalid());
        };
        // 0 is the generation of no object, so that no handle is 0.
        entry.generation = entry.generation.checked_add(1).unwrap_or(1);
        free.push(number as u32);
        Ok(object)
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

fn parts(handle: u64) -> (u32, usize) {
    ((handle >> 32) as u32, handle as u32 as usize)
}
