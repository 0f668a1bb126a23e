// SPDX-License-Identifier: MPL-2.0

//! Defers freeing memory of other allocators.
//!
//! Other processes have the memory open, and freeing it then is undefined. A reference held here would keep it, but its buffer
//! pool could not reuse it. So freeing is deferred: when its last reference is dropped, `dispose` takes a new reference until
//! all processes have closed it. Then its allocator gets it back, and may reuse or free it.
#![allow(unsafe_code)] // replaces a C function of a GstMemory

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use gst::ffi::{GstMemory, GstMiniObject};
use gst::glib::ffi::{GFALSE, GTRUE, gboolean};
use gst::glib::{self, translate::*};

use crate::buffers::tied::{Tie, tied, update};
use crate::later::drop_later;
use crate::lock;

/// Whether a memory may be freed.
#[derive(Debug, Clone)]
pub(crate) struct Deferred(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// No other process has the memory open.
    released: bool,
    /// The memory, after its last reference was dropped.
    ended: Option<gst::Memory>,
}

impl Deferred {
    /// Returns the state, and a function that allows the memory to be freed.
    pub(crate) fn new() -> (Self, impl FnOnce() + Send + 'static) {
        let deferred = Self(Arc::default());
        let released = deferred.clone();
        let release = move || {
            let ended = {
                let mut state = released.lock();
                state.released = true;
                state.ended.take()
            };
            // Freeing it may wait for its device.
            drop_later(ended);
        };
        (deferred, release)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

type Dispose = unsafe extern "C" fn(*mut GstMiniObject) -> gboolean;

/// The value that is attached to such a memory.
#[derive(Debug, Default, Clone)]
struct Held {
    deferred: Vec<Deferred>,
    /// Makes other processes close the memory.
    at_end: Option<fn(&gst::MemoryRef)>,
    /// The `dispose` function of the memory's allocator.
    before: Option<Dispose>,
}

impl Tie for Held {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-deferred");
}

impl Deferred {
    /// Defers freeing a memory until it is released. `at_end` starts the release when the memory's last reference is dropped.
    pub(crate) fn apply_to(self, memory: &gst::MemoryRef, at_end: fn(&gst::MemoryRef)) {
        let raw = memory.as_ptr().cast_mut();
        let own = dispose as Dispose;
        let past: Vec<_> = update(memory, |held: &mut Held| {
            let past = held
                .deferred
                .extract_if(.., |other| other.lock().released)
                .collect();
            held.deferred.push(self);
            held.at_end = Some(at_end);
            // SAFETY: a live memory. Only streaming threads that hold the memory exchange the function, one at a time.
            unsafe {
                let current = (*raw).mini_object.dispose;
                if !current.is_some_and(|current| ptr::fn_addr_eq(current, own)) {
                    held.before = current;
                    (*raw).mini_object.dispose = Some(own);
                }
            }
            past
        });
        drop(past);
    }
}

/// `GstMiniObject.dispose` of a memory that is deferred.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> gboolean {
    let memory: *mut GstMemory = object.cast();
    // SAFETY: a live memory, whose last reference is being dropped.
    let memory_ref = unsafe { gst::MemoryRef::from_ptr(memory) };
    let Some(held) = tied::<Held>(memory_ref) else {
        return GTRUE;
    };
    // Called without a lock, because the memory may be released immediately.
    if let Some(at_end) = held.at_end {
        at_end(memory_ref);
    }
    for deferred in &held.deferred {
        let mut state = deferred.lock();
        if !state.released {
            // SAFETY: takes a new reference to a memory whose last one is being dropped.
            state.ended = Some(unsafe { from_glib_none(memory) });
            return GFALSE;
        }
    }
    // SAFETY: the dispose function of the memory's allocator, which this function replaces.
    held.before
        .map_or(GTRUE, |before| unsafe { before(object) })
}
