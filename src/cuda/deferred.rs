// SPDX-License-Identifier: MPL-2.0

//! Memory of other allocators that must not be freed yet.
//!
//! Other processes have it open, and freeing it then is undefined. A reference would keep it, but its own pool would not use it
//! again. So it is kept at its end: when its last reference goes, that reference is taken up until all processes have closed
//! it. Only then its allocator gets it back, and may use it again or free it without notice.
#![allow(unsafe_code)] // the end of a GstMemory is a C function

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use gst::ffi::{GstMemory, GstMiniObject};
use gst::glib::ffi::{GFALSE, GTRUE, gboolean};
use gst::glib::{self, translate::*};

use crate::buffers::tied::{Tie, tied, update};
use crate::later::drop_later;
use crate::lock;

/// Whether memory may be freed.
#[derive(Debug, Clone)]
pub(crate) struct Deferred(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// No other process has it open.
    released: bool,
    /// The memory, after its end.
    ended: Option<gst::Memory>,
}

impl Deferred {
    /// Returns it with a function that allows the memory to be freed.
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

/// The value that is tied to such a memory.
#[derive(Debug, Default, Clone)]
struct Held {
    deferred: Vec<Deferred>,
    /// Notifies the processes that have it open.
    at_end: Option<fn(&gst::MemoryRef)>,
    /// Its own allocator's function for its end.
    before: Option<Dispose>,
}

impl Tie for Held {
    const NAME: &'static glib::GStr = glib::gstr!("xmem-deferred");
}

impl Deferred {
    /// Puts the end of a memory off until it is released. `at_end` starts the release when the memory comes to its end.
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
            // SAFETY: a live memory. Streaming threads that have the memory exchange the function, one at a time.
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

/// `GstMiniObject.dispose` of a memory whose end is put off.
unsafe extern "C" fn dispose(object: *mut GstMiniObject) -> gboolean {
    let memory: *mut GstMemory = object.cast();
    // SAFETY: the last reference of a live memory; there is no other.
    let memory_ref = unsafe { gst::MemoryRef::from_ptr(memory) };
    let Some(held) = tied::<Held>(memory_ref) else {
        return GTRUE;
    };
    // With no lock held: it may be released at once.
    if let Some(at_end) = held.at_end {
        at_end(memory_ref);
    }
    for deferred in &held.deferred {
        let mut state = deferred.lock();
        if !state.released {
            // SAFETY: the reference that was the last one is taken up again.
            state.ended = Some(unsafe { from_glib_none(memory) });
            return GFALSE;
        }
    }
    // SAFETY: the dispose function of the memory's own allocator, which this is called in place of.
    held.before
        .map_or(GTRUE, |before| unsafe { before(object) })
}
