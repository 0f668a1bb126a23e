// SPDX-License-Identifier: MPL-2.0

//! A received frame on a device. It is held until its last view is dropped.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::ReadLease;
use xmem_core::cuda::{CudaError, CudaFrame, PrivateMemory, Rows, Stream};

use super::{Streams, Use, wait};

/// The frame's lease ends with this, after the work of the streams of its views. It may be dropped on any thread, with or
/// without the interpreter, and does not call the driver there.
#[derive(Debug)]
pub(crate) struct DeviceFrame {
    /// `None` only while it is dropped.
    frame: Option<CudaFrame>,
    streams: Streams,
}

impl DeviceFrame {
    /// Imports the frame's memory, if this is the first frame in it.
    pub(crate) fn new(lease: ReadLease) -> Result<Arc<Self>, CudaError> {
        Ok(Self::of(lease.into_cuda()?))
    }

    pub(crate) fn of(frame: CudaFrame) -> Arc<Self> {
        Arc::new(Self {
            frame: Some(frame),
            streams: Streams::default(),
        })
    }

    /// The lease of a received frame. `None`: a producer of this process published the frame, and a channel does not forward
    /// it.
    pub(crate) fn received(&self) -> Option<&ReadLease> {
        let lease = self.lease();
        (!lease.is_local()).then_some(lease)
    }

    /// The offset of bytes on the device in the payload, whose parts are concatenated. `None`: they are in no part.
    pub(crate) fn offset_of(&self, ptr: u64, len: usize) -> Option<usize> {
        let mut before = 0;
        self.parts().find_map(|(start, size)| {
            let begin = before;
            before += size;
            let at = usize::try_from(ptr.checked_sub(start)?).ok()?;
            (at.checked_add(len)? <= size).then_some(begin + at)
        })
    }

    /// Called for a new view: its stream waits for the producer's work, and the end of this frame waits for that stream.
    pub(crate) fn give_to(&self, to: Use) -> Result<(), CudaError> {
        if let Use::On(stream) = to {
            self.wait_on(stream)?;
        }
        self.streams.add(to.ends_on());
        Ok(())
    }

    /// The end of this frame waits for the work that the stream has at that time.
    pub(crate) fn keep_for(&self, stream: Stream) {
        self.streams.add(Use::On(stream).ends_on());
    }

    /// Waits until the producer's work has ended.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self)
    }
}

impl Deref for DeviceFrame {
    type Target = CudaFrame;

    fn deref(&self) -> &CudaFrame {
        self.frame.as_ref().expect("it is not dropped")
    }
}

/// A copy of a frame's payload on its device, in one part.
pub(crate) fn copy_all(frame: &CudaFrame) -> Result<PrivateMemory, CudaError> {
    let mut len = 0;
    let rows: Vec<Rows> = frame
        .parts()
        .map(|(_, size)| {
            let rows = Rows::plain(len, len, size);
            len += size;
            rows
        })
        .collect();
    let copy = PrivateMemory::new(frame.device(), len)?;
    frame.copy_rows_to(&copy, &rows)?;
    Ok(copy)
}

impl Drop for DeviceFrame {
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            frame.release_later(self.streams.all());
        }
    }
}
