// SPDX-License-Identifier: MPL-2.0

//! A slot from when it is acquired until nobody here looks at it any more.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use xmem_core::{FrameMeta, ReadLease, WriteLease};

use crate::errors::{IntoPyErr, Kind};
use crate::lock::lock;

enum Lease {
    Writing(WriteLease),
    /// The producer's own reference.
    Published(#[expect(dead_code, reason = "kept, not read")] ReadLease),
    Gone,
}

struct State {
    lease: Lease,
    /// Views that other libraries have.
    exports: usize,
    /// Whoever acquired it is done with it; it goes with the last view.
    closed: bool,
}

/// What the views of a slot that this process writes share.
pub(crate) struct WriteSlot {
    ptr: *mut u8,
    len: usize,
    state: Mutex<State>,
}

impl fmt::Debug for WriteSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteSlot").finish_non_exhaustive()
    }
}

#[allow(unsafe_code)]
mod threads {
    // SAFETY: the pointer is to the slot, which the lease keeps; who writes there is whoever has the views.
    unsafe impl Send for super::WriteSlot {}
    // SAFETY: as above.
    unsafe impl Sync for super::WriteSlot {}
}

impl WriteSlot {
    pub(crate) fn new(lease: WriteLease) -> Self {
        Self {
            ptr: lease.as_ptr(),
            len: lease.len(),
            state: Mutex::new(State {
                lease: Lease::Writing(lease),
                exports: 0,
                closed: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn bytes(&self) -> (*const u8, usize) {
        (self.ptr.cast_const(), self.len)
    }

    /// Whether views that are made now may write.
    pub(crate) fn is_writing(&self) -> bool {
        let state = self.state();
        !state.closed && matches!(state.lease, Lease::Writing(_))
    }

    /// Counts a view. Returns whether it may write.
    pub(crate) fn begin_export(&self) -> PyResult<bool> {
        let mut state = self.state();
        if state.closed {
            return Err(Kind::Closed.error(
                "this frame was given back at the end of its `with` block: make arrays of it inside of the block",
            ));
        }
        state.exports += 1;
        Ok(matches!(state.lease, Lease::Writing(_)))
    }

    pub(crate) fn end_export(&self) {
        let mut state = self.state();
        state.exports = state.exports.saturating_sub(1);
        Self::let_go(state);
    }

    /// Lets the slot go when the last view of it is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        Self::let_go(state);
    }

    fn let_go(mut state: MutexGuard<'_, State>) {
        if state.closed && state.exports == 0 {
            let lease = std::mem::replace(&mut state.lease, Lease::Gone);
            // Its hooks and wake-ups run without the lock.
            drop(state);
            drop(lease);
        }
    }

    /// Publishes the frame and returns its sequence. `trust_views`: the caller says that nobody writes through views
    /// that exist.
    pub(crate) fn publish(&self, meta: FrameMeta, trust_views: bool) -> PyResult<u64> {
        let mut state = self.state();
        match &state.lease {
            Lease::Writing(_) if !state.closed => {}
            Lease::Published(_) => {
                return Err(Kind::Error.error("this frame was published already"));
            }
            _ => return Err(Kind::Closed.error("this frame was given back without publishing it")),
        }
        if state.exports > 0 && !trust_views {
            return Err(Kind::ViewsExist.error(format!(
                "{} array(s) that can write to this frame still exist, and a published frame must not change: \
                 delete them first (`del array`), or pass trust_views=True and do not write to them again",
                state.exports
            )));
        }
        let Lease::Writing(lease) = std::mem::replace(&mut state.lease, Lease::Gone) else {
            return Err(Kind::Closed.error("this frame was given back without publishing it"));
        };
        match lease.publish(meta) {
            Ok(published) => {
                let sequence = published.meta().sequence;
                state.lease = Lease::Published(published);
                Ok(sequence)
            }
            Err(failure) => {
                state.lease = Lease::Writing(failure.lease);
                Err(failure.error.into_py_err())
            }
        }
    }
}
