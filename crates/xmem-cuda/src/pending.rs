// SPDX-License-Identifier: MPL-2.0

//! The list of entries that end in the order of a stream: leases, and jobs of the program.
//!
//! By default a host function ends an entry ([`when`](crate::when)). It runs on a thread of the driver and must not call the
//! driver. In a context that is in error no host function runs, so `context_failed` ends the entries of that context.
#![allow(unsafe_code)] // a function that the driver calls

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock};

use xmem_shm::lock::lock;
use xmem_shm::os::fork::ProcessId;

use crate::reaper;

/// Something that ends when a device reaches a point in the order of a stream.
pub trait Ends: Send {
    /// Ends it. Called on any thread, including the driver's threads, where the driver must not be called.
    fn end(self: Box<Self>);

    /// Whether the device has ended it itself.
    fn is_over(&self) -> bool {
        true
    }
}

struct Pending {
    what: Box<dyn Ends>,
    place: Place,
}

/// The device, by its number in this process, and the context of the stream
/// ([`Device::with_context_of`](crate::device::Device::with_context_of)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The device's number.
    pub ordinal: u32,
    /// The context's address.
    pub context: usize,
}

static PENDING: LazyLock<Mutex<HashMap<u64, Pending>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn pending() -> MutexGuard<'static, HashMap<u64, Pending>> {
    // The driver must not be called while this is locked, because host functions take the lock.
    lock(&PENDING)
}

/// The process that owns the list.
static MADE_IN: OnceLock<ProcessId> = OnceLock::new();

/// Adds an entry. Returns its number.
pub(crate) fn list(what: Box<dyn Ends>, place: Place) -> u64 {
    MADE_IN.get_or_init(ProcessId::current);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    pending().insert(number, Pending { what, place });
    number
}

/// Removes an entry from the list. `None`: it has ended.
pub(crate) fn take(number: u64) -> Option<Box<dyn Ends>> {
    pending().remove(&number).map(|found| found.what)
}

/// Records that the entry ends on a stream of this context.
pub(crate) fn waits_in(number: u64, context: usize) {
    if let Some(entry) = pending().get_mut(&number) {
        entry.place.context = context;
    }
}

/// Ends an entry that the device has ended itself. Returns whether it is no longer in the list.
pub(crate) fn end_if_over(number: u64) -> bool {
    let found = {
        let mut pending = pending();
        match pending.get(&number) {
            Some(entry) if !entry.what.is_over() => return false,
            _ => pending.remove(&number),
        }
    };
    if let Some(found) = found {
        found.what.end();
    }
    true
}

/// Ends an entry now.
pub(crate) fn end(number: u64) {
    if !MADE_IN.get().is_some_and(|process| process.is_current()) {
        // Inherited through fork: the entry belongs to the parent.
        return;
    }
    if let Some(what) = take(number) {
        what.end();
    }
}

/// The places of all entries, without duplicates. If there are none, `if_none` runs while the list is locked, so that an entry
/// that is listed later sees its effect.
pub(crate) fn places_or_else(if_none: impl FnOnce()) -> Vec<Place> {
    let pending = pending();
    let mut places = Vec::new();
    for entry in pending.values() {
        if !places.contains(&entry.place) {
            places.push(entry.place);
        }
    }
    if places.is_empty() {
        if_none();
    }
    places
}

/// Ends all entries of a context that is in error. Streams of other contexts may still run.
pub(crate) fn context_failed(place: Place) {
    let ended: Vec<Pending> = pending()
        .extract_if(|_, entry| entry.place == place)
        .map(|(_, entry)| entry)
        .collect();
    if !ended.is_empty() {
        let (ordinal, count) = (place.ordinal, ended.len());
        // Callers may hold a lock, and the program's logger may call back.
        reaper::elsewhere(move || {
            log::warn!("CUDA device {ordinal}: {count} leases end with their context");
        });
    }
    ended.into_iter().for_each(|entry| entry.what.end());
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a host function, where the driver may not be called.
pub fn is_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Calls a function in the way of a host function.
pub fn as_host_function(call: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    IN_HOST_FUNCTION.set(false);
}

/// The host function. `data` is the number of an entry.
///
/// # Safety
///
/// No conditions: any number is valid.
pub unsafe extern "C" fn ended(data: *mut c_void) {
    if let Some(what) = take(data as usize as u64) {
        as_host_function(|| what.end());
    }
}

#[cfg(test)]
mod tests {
    use xmem_shm::testing::is_so_in_a_child_without;

    use super::*;

    #[test]
    fn a_forked_child_does_not_wait_for_locks_of_other_threads() {
        MADE_IN.get_or_init(ProcessId::current);
        let ends = || {
            end(1);
            true
        };
        assert!(is_so_in_a_child_without(pending, ends), "it hung");
    }
}
