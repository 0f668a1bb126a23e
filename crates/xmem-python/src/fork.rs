// SPDX-License-Identifier: MPL-2.0

//! Forked children must not use resources of their parent, and start with new values.
#![allow(unsafe_code)] // a pointer to memory that is never freed

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::prelude::*;
use xmem_core::ProcessId;

use crate::errors::Kind;

/// Raises `Forked` unless this is that process.
pub(crate) fn check_process(process: ProcessId) -> PyResult<()> {
    if process.is_current() {
        return Ok(());
    }
    Err(Kind::Forked.error(
        "this memory is valid only in the parent process, which can reuse it at any time: create a consumer or producer in \
         the child, or copy the frame before you fork",
    ))
}

/// One value for each process, because another thread may hold the value's lock at the fork, and the child would wait for it
/// forever.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(AtomicPtr<Of<T>>);

#[derive(Debug)]
struct Of<T> {
    process: ProcessId,
    value: T,
}

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> &'static T {
        let process = ProcessId::current();
        // Acquire: pairs with the exchange below, so that the value is visible.
        let known = self.0.load(Ordering::Acquire);
        // SAFETY: null, or leaked by this function, so it is never freed. There is no mutable reference.
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
                // SAFETY: made above, and not shared with another thread.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
        // SAFETY: as above. Only threads of this process compete, so the winner belongs to this process.
        &unsafe { &*winner }.value
    }
}
