// SPDX-License-Identifier: MPL-2.0

//! A slot that this process acquired. It is kept until its last view is dropped.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, SlotWork, Stream};
use xmem_core::{FrameMeta, ProcessId, PublishError, PublishFailure, ReadLease, WriteLease};

use crate::device::{self, Streams, Use};
use crate::errors::{IntoPyErr, Kind};
use crate::fork::check_process;
use crate::lock;

#[derive(Debug)]
enum Lease {
    Writing(WriteLease),
    /// A thread is publishing it.
    Publishing,
    /// The producer's own reference.
    Published(ReadLease),
    Gone,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    /// The number of views of other libraries.
    exports: usize,
    /// There may be views that are not counted. They keep this object.
    uncounted: bool,
    /// It was given back, and is released with its last view.
    closed: bool,
}

/// The state that the views of a slot being written share.
#[derive(Debug)]
pub(crate) struct WriteSlot {
    /// The address of the first byte.
    start: usize,
    len: usize,
    /// On a device: the earlier work of this process in the slot.
    device: Option<SlotWork>,
    process: ProcessId,
    /// The streams of its views.
    streams: Streams,
    state: Mutex<State>,
}

/// Releases a slot; on a device, after the work of the streams of its views.
fn end(lease: Lease, streams: &Streams) {
    match lease {
        Lease::Writing(lease) if lease.is_on_device() => lease.give_back_later(streams.all()),
        Lease::Published(lease) if lease.is_on_device() => {
            if let Ok(frame) = lease.into_cuda() {
                frame.release_later(streams.all());
            }
        }
        lease => drop(lease),
    }
}

/// Why a frame with this lease cannot be published.
fn why_not(lease: &Lease) -> PyErr {
    match lease {
        Lease::Published(_) | Lease::Publishing => {
            Kind::Error.error("this frame was already published")
        }
        Lease::Writing(_) | Lease::Gone => {
            Kind::Closed.error("this frame was discarded without publishing it")
        }
    }
}

impl WriteSlot {
    pub(crate) fn new(lease: WriteLease) -> Self {
        let (start, len, device) = match lease.cuda() {
            Some(slot) => (slot.ptr() as usize, slot.len(), Some(slot.work())),
            None => (lease.as_ptr().expose_provenance(), lease.len(), None),
        };
        Self {
            start,
            len,
            device,
            process: ProcessId::current(),
            streams: Streams::default(),
            state: Mutex::new(State {
                lease: Lease::Writing(lease),
                exports: 0,
                uncounted: false,
                closed: false,
            }),
        }
    }

    /// The number of the slot's device. `None`: host memory.
    pub(crate) fn device(&self) -> Option<u32> {
        self.device.as_ref().map(|work| work.device().ordinal())
    }

    /// The process that acquired it.
    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// Called for a new view: its stream waits for earlier work in the slot.
    pub(crate) fn give_to(&self, to: Use) -> Result<(), CudaError> {
        if let (Some(work), Use::On(stream)) = (&self.device, to) {
            work.wait_on(stream)?;
        }
        self.streams.add(to.ends_on());
        Ok(())
    }

    /// Called for a view that keeps this object, and whose stream and end are unknown. Its owner has [waited](Self::wait).
    pub(crate) fn give_uncounted(&self) {
        self.state().uncounted = true;
        self.streams.add(Use::Anywhere.ends_on());
    }

    /// Waits for earlier work in the slot.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        match &self.device {
            Some(work) => device::wait_until(py, |slice| work.synchronize_for(slice)),
            None => Ok(()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn bytes(&self) -> (*const u8, usize) {
        (std::ptr::with_exposed_provenance(self.start), self.len)
    }

    /// Whether new views may write.
    pub(crate) fn is_writing(&self) -> bool {
        let state = self.state();
        !state.closed && matches!(state.lease, Lease::Writing(_))
    }

    /// Counts a view. Returns whether it is writable.
    pub(crate) fn begin_export(&self) -> PyResult<bool> {
        let mut state = self.state();
        if state.closed {
            return Err(Kind::Closed.error(
                "this frame was closed at the end of its `with` block: create arrays over it inside the block",
            ));
        }
        state.exports += 1;
        Ok(matches!(state.lease, Lease::Writing(_)))
    }

    pub(crate) fn end_export(&self) {
        // Without locking, because a forked child may have inherited the lock in its locked state.
        if !self.process.is_current() {
            return;
        }
        let mut state = self.state();
        state.exports = state.exports.saturating_sub(1);
        self.release_unused(state);
    }

    /// Releases the slot with its last view.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        self.release_unused(state);
    }

    fn release_unused(&self, mut state: MutexGuard<'_, State>) {
        let is_publishing = matches!(state.lease, Lease::Publishing);
        if state.closed && state.exports == 0 && !state.uncounted && !is_publishing {
            let lease = std::mem::replace(&mut state.lease, Lease::Gone);
            // Without the lock, because this runs hooks and wakes consumers.
            drop(state);
            end(lease, &self.streams);
        }
    }

    /// Why a frame that was published or given back cannot be published.
    pub(crate) fn why_not(&self) -> PyErr {
        why_not(&self.state().lease)
    }

    /// Checks that the frame can be published. For callers that wait first: a present error would still occur after the wait.
    pub(crate) fn check(&self, trust_views: bool, stream: Option<Stream>) -> PyResult<()> {
        check_process(self.process)?;
        self.may_publish(&self.state(), trust_views, stream)
    }

    fn may_publish(
        &self,
        state: &State,
        trust_views: bool,
        stream: Option<Stream>,
    ) -> PyResult<()> {
        if stream.is_some() && self.device.is_none() {
            return Err(PyValueError::new_err(
                "this frame is in host memory, which has no streams: call publish() without a stream",
            ));
        }
        match &state.lease {
            Lease::Writing(_) if !state.closed => {}
            lease => return Err(why_not(lease)),
        }
        if state.exports > 0 && !trust_views {
            return Err(Kind::ViewsExist.error(format!(
                "{} array(s) that can write to this frame still exist, and a published frame must not change: \
                 delete them first (`del array`), or pass trust_views=True and do not write to them again",
                state.exports
            )));
        }
        Ok(())
    }

    /// Publishes the frame and returns its sequence. `trust_views`: the caller promises not to write through existing views.
    /// `stream`: the stream that writes it. Without it, all streams of its views.
    pub(crate) fn publish(
        &self,
        meta: FrameMeta,
        trust_views: bool,
        stream: Option<Stream>,
    ) -> PyResult<u64> {
        let lease = {
            let mut state = self.state();
            self.may_publish(&state, trust_views, stream)?;
            match std::mem::replace(&mut state.lease, Lease::Publishing) {
                Lease::Writing(lease) => lease,
                other => {
                    state.lease = other;
                    return Err(Kind::Error.error("this frame was already published"));
                }
            }
        };
        // Without the lock, because threads with the interpreter wait for it, and a driver may wait for such a thread.
        let published = match self.last_stream(stream) {
            Ok(None) => lease.publish(meta).map_err(returned),
            Ok(Some(stream)) => lease.publish_on(stream, meta).map_err(returned),
            Err(error) => Err((lease, error)),
        };
        let (lease, result) = match published {
            Ok(published) => {
                let sequence = published.info().sequence;
                (Lease::Published(published), Ok(sequence))
            }
            Err((lease, error)) => (Lease::Writing(lease), Err(error.into_py_err())),
        };
        let mut state = self.state();
        state.lease = lease;
        if result.is_ok() && state.exports == 0 && !state.uncounted {
            // There is no view, and the published event covers the writes, so the end of the lease need not wait for these
            // streams. If a stream was given, the event covers only that one.
            self.streams.forget(stream);
        }
        // It may have been given back meanwhile.
        self.release_unused(state);
        result
    }

    /// The stream after whose work the frame is complete. `None`: no stream writes it.
    fn last_stream(&self, stream: Option<Stream>) -> Result<Option<Stream>, PublishError> {
        let Some(work) = &self.device else {
            return Ok(None);
        };
        if stream.is_some() {
            return Ok(stream);
        }
        // Without a view there was no write.
        let mut streams = self.streams.all();
        let Some(last) = streams.pop() else {
            return Ok(None);
        };
        // An event belongs to one stream, so that stream waits for the others.
        for stream in streams {
            last.wait_for(work.device(), stream)
                .map_err(|error| PublishError::Cuda(Box::new(error)))?;
        }
        Ok(Some(last))
    }
}

fn returned(failure: PublishFailure) -> (WriteLease, PublishError) {
    (failure.lease, failure.error)
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let lease = std::mem::replace(&mut state.lease, Lease::Gone);
        end(lease, &self.streams);
    }
}
