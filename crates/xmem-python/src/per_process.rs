// SPDX-License-Identifier: MPL-2.0

//! What a process has once. A forked child begins with a new one: a lock may have been taken when it was made, for ever.
#![allow(unsafe_code)] // a pointer to what is never freed

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use xmem_core::ProcessId;

/// One value for each process.
#[derive(Debug)]
pub(super) struct PerProcess<T>(AtomicPtr<Of<T>>);

#[derive(Debug)]
struct Of<T> {
    process: ProcessId,
    value: T,
}

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(super) fn get(&self) -> &'static T {
        let process = ProcessId::current();
        // Acquire: pairs with the exchange below, so that what it points to is there.
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: null, or leaked by this function, so it is there for ever; nobody has it mutably.
        if let Some(known) = unsafe { known.as_ref() }
            && known.process == process
        {
            return &known.value;
        }
        let value = T::default();
        let new = Box::into_raw(Box::new(Of { process, value }));
        let made = self
            .0
            .compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
        let winner = match made {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and nobody else knows of it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: as above. Only threads of this process compete, so the winner is of this process.
        &unsafe { &*winner }.value
    }
}
