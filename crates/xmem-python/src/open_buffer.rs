// SPDX-License-Identifier: MPL-2.0

//! A buffer that this process holds until it is released and its last view is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, Device, Stream};
use xmem_core::{self as core, AccessMode, ProcessId};

use crate::detached::Detached;
use crate::device::{self, DeviceFrame, Streams, Use, wait_for_all_work, wait_for_streams};
use crate::errors::{IntoPyErr, IntoPyResult, Kind};
use crate::fork::check_process;
use crate::lock;

/// A pool, which is closed with its last owner.
pub(crate) type Pool = Arc<Detached<core::BufferPool>>;

/// A buffer, and its pool.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) guard: Detached<core::BufferGuard>,
    pub(crate) pool: Pool,
    /// The frame on a device that the views of a reader share.
    frame: Option<Arc<DeviceFrame>>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) held: Option<Held>,
    /// A thread is using it, and has taken it out of `held`.
    busy: bool,
    /// The number of existing views.
    views: usize,
    /// It was released, and ends with its last view.
    pub(crate) released: bool,
    /// It is emptied when it ends.
    discarded: bool,
}

/// The state that a guard and its views share.
#[derive(Debug)]
pub(crate) struct OpenBuffer {
    /// The process that acquired it.
    process: ProcessId,
    /// `None`: host memory.
    device: Option<Device>,
    mode: AccessMode,
    is_local: bool,
    /// The streams of its views, if it is being written on a device.
    streams: Streams,
    state: Mutex<State>,
}

pub(crate) fn gone() -> PyErr {
    Kind::Closed.error("the buffer was released or forgotten: get it again by its index")
}

fn missing(busy: bool) -> PyErr {
    if busy {
        Kind::Error.error(
            "another thread is copying or publishing this buffer: wait until it has finished",
        )
    } else {
        gone()
    }
}

impl State {
    fn held(&mut self) -> PyResult<&mut Held> {
        if self.released {
            return Err(gone());
        }
        let busy = self.busy;
        self.held.as_mut().ok_or_else(|| missing(busy))
    }

    fn take(&mut self) -> PyResult<Held> {
        self.held()?;
        self.held.take().ok_or_else(gone)
    }
}

impl OpenBuffer {
    pub(crate) fn new(pool: Pool, guard: core::BufferGuard) -> Self {
        Self {
            process: ProcessId::current(),
            device: guard.device(),
            mode: guard.mode(),
            is_local: guard.is_local(),
            streams: Streams::default(),
            state: Mutex::new(State {
                held: Some(Held {
                    guard: Detached::new(guard),
                    pool,
                    frame: None,
                }),
                busy: false,
                views: 0,
                released: false,
                discarded: false,
            }),
        }
    }

    /// The number of its device. `None`: host memory.
    pub(crate) fn ordinal(&self) -> Option<u32> {
        self.device.as_ref().map(Device::ordinal)
    }

    /// Whether its bytes may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.mode == AccessMode::ReadWrite
    }

    /// Whether a write would change its bytes, even if it is not allowed.
    pub(crate) fn is_mapped_writable(&self) -> bool {
        self.is_local
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn with<T>(
        &self,
        f: impl FnOnce(&mut core::BufferGuard) -> PyResult<T>,
    ) -> PyResult<T> {
        check_process(self.process)?;
        f(&mut self.lock().held()?.guard)
    }

    pub(crate) fn pool(&self) -> PyResult<Pool> {
        Ok(self.lock().held()?.pool.clone())
    }

    /// A buffer on a device that is read, as the frame that its views share. `None`: it is being written.
    pub(crate) fn frame(&self, py: Python<'_>) -> PyResult<Option<Arc<DeviceFrame>>> {
        let reading = {
            let mut state = self.lock();
            let held = state.held()?;
            if held.frame.is_some() {
                return Ok(held.frame.clone());
            }
            held.guard.clone_ref().ok()
        };
        let Some(reading) = reading else {
            return Ok(None);
        };
        // Without the lock and the interpreter, because it may import memory.
        let frame = py.detach(move || reading.cuda());
        let frame = DeviceFrame::of(frame.into_py_result()?);
        let mut state = self.lock();
        Ok(Some(state.held()?.frame.get_or_insert(frame).clone()))
    }

    /// Counts a view.
    pub(crate) fn begin_view(&self) -> PyResult<()> {
        check_process(self.process)?;
        let mut state = self.lock();
        state.held()?;
        state.views += 1;
        Ok(())
    }

    pub(crate) fn end_view(&self) {
        // Without locking, because a forked child may have inherited the lock in its locked state.
        if !self.process.is_current() {
            return;
        }
        let mut state = self.lock();
        state.views -= 1;
        self.end_unused(state);
    }

    /// Called for a new view of a buffer that is being written on a device.
    pub(crate) fn give_to(&self, to: Use) {
        self.streams.add(to.ends_on());
    }

    /// Runs slow work without the interpreter, and so without the lock, because a thread with the interpreter could wait for
    /// the lock. Meanwhile other threads get an error for a buffer that is being written.
    pub(crate) fn aside<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&core::BufferGuard) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        if let Some(another) = self.with(|guard| Ok(guard.clone_ref().ok()))? {
            let another = wait_until_written(py, another)?;
            return py.detach(move || f(&another));
        }
        self.settle(py)?;
        let held = {
            let mut state = self.lock();
            let held = state.take()?;
            state.busy = true;
            held
        };
        py.detach(move || {
            let done = f(&held.guard);
            let mut state = self.lock();
            state.busy = false;
            state.held = Some(held);
            self.end_unused(state);
            done
        })
    }

    /// Waits for the work of the streams with views of a buffer that is being written.
    pub(crate) fn settle(&self, py: Python<'_>) -> PyResult<()> {
        match &self.device {
            Some(device) => wait_for_streams(py, device, &self.streams),
            None => Ok(()),
        }
    }

    /// The stream after whose work a buffer that is being written on a device is complete. `stream`: the stream that writes it.
    /// Without it, a stream that waits for the default stream and for all streams with views. No CPU waits, except for a stream
    /// that was destroyed. An error if one of them is being captured. `None`: the buffer is complete.
    fn last_stream(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<Option<Stream>> {
        let Some(device) = self.device.as_ref().filter(|_| self.is_writable()) else {
            return Ok(None);
        };
        if let Some(stream) = stream {
            // A buffer that cannot be published after this stream would be lost.
            let mark = py.detach(|| stream.mark(device));
            return mark.map(|_| Some(stream)).into_py_result();
        }
        let mut last = Stream::LEGACY_DEFAULT;
        for stream in self.streams.all() {
            if stream == last {
                continue;
            }
            match py.detach(|| stream.wait_for(device, last)) {
                Ok(()) => last = stream,
                // The work would run with the graph, and not before the buffer is read.
                Err(error @ CudaError::Captured) => return Err(error.into_py_err()),
                Err(_) => wait_for_all_work(py, device)?,
            }
        }
        Ok(Some(last))
    }

    /// Takes the buffer, prepared by `prepare`, to forget it after the work of the returned stream
    /// ([`last_stream`](Self::last_stream)). An error changes nothing.
    pub(crate) fn take(
        &self,
        py: Python<'_>,
        stream: Option<Stream>,
        prepare: impl FnOnce(&mut core::BufferGuard) -> PyResult<()>,
    ) -> PyResult<(Held, Option<Stream>)> {
        check_process(self.process)?;
        let mut held = {
            let mut state = self.lock();
            state.held()?;
            if state.views > 0 {
                return Err(Kind::ViewsExist.error(
                    "arrays over the buffer still exist: delete them (del array) before you forget it, because the buffer can \
                     be reused afterwards",
                ));
            }
            let held = state.take()?;
            state.busy = true;
            held
        };
        // Not under the lock, because this may wait for a device. Nobody can make a view while the buffer is busy.
        let ready = self.last_stream(py, stream).and_then(|last| {
            prepare(&mut held.guard)?;
            Ok(last)
        });
        let mut state = self.lock();
        state.busy = false;
        match ready {
            Ok(last) => Ok((held, last)),
            Err(error) => {
                state.held = Some(held);
                // It may have been released meanwhile.
                self.end_unused(state);
                Err(error)
            }
        }
    }

    /// Releases the buffer with its last view. Returns it if there is none.
    pub(crate) fn release(&self) -> Option<Held> {
        let mut state = self.lock();
        state.released = true;
        (state.views == 0).then(|| state.held.take()).flatten()
    }

    /// Like `release`, and empties a buffer that is being written.
    pub(crate) fn discard(&self) {
        let mut state = self.lock();
        (state.released, state.discarded) = (true, true);
        self.end_unused(state);
    }

    fn end_unused(&self, mut state: MutexGuard<'_, State>) {
        if state.released && state.views == 0 {
            let (held, discarded) = (state.held.take(), state.discarded);
            drop(state);
            self.end(held, discarded);
        }
    }

    /// Ends a buffer that was [released](Self::release). The caller does not hold the lock of the state.
    pub(crate) fn end(&self, held: Option<Held>, discarded: bool) {
        let Some(Held { guard, .. }) = held else {
            return;
        };
        match &self.device {
            Some(device) if self.is_writable() => {
                let streams = self.streams.all();
                end_behind(guard, discarded, device, streams);
            }
            _ if discarded => {
                // Without the interpreter, like `Detached`.
                Python::try_attach(|py| {
                    py.detach(|| guard.into_inner().map(core::BufferGuard::discard))
                });
            }
            _ => drop(guard),
        }
    }
}

impl Drop for OpenBuffer {
    fn drop(&mut self) {
        // Without locking, because a forked child may have inherited the lock in its locked state.
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let (held, discarded) = (state.held.take(), state.discarded);
        if self.process.is_current() {
            self.end(held, discarded);
        }
    }
}

/// Waits until a buffer is written, before it is read.
pub(crate) fn wait_until_written(
    py: Python<'_>,
    reading: core::BufferGuard,
) -> PyResult<core::BufferGuard> {
    if !reading.is_on_device() {
        return Ok(reading);
    }
    let (reading, frame) = py.detach(move || {
        let frame = reading.cuda();
        (reading, frame)
    });
    device::wait(py, &frame.into_py_result()?)?;
    Ok(reading)
}

/// Gives back a buffer on a device that is being written, after the work of the streams of its views.
fn end_behind(
    guard: Detached<core::BufferGuard>,
    discarded: bool,
    device: &Device,
    mut streams: Vec<Stream>,
) {
    // Without the interpreter, like `Detached`.
    Python::try_attach(|py| {
        py.detach(|| {
            let device_too = device.clone();
            match streams.pop() {
                Some(stream) => stream.when_done(device, move || {
                    end_behind(guard, discarded, &device_too, streams);
                }),
                None if discarded => drop(guard.into_inner().map(core::BufferGuard::discard)),
                None => drop(guard),
            }
        });
    });
}
