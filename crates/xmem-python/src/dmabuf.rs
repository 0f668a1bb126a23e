// SPDX-License-Identifier: MPL-2.0

//! Frames in DMA buffers, which devices import.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use xmem_core::{DmabufError, DmabufPlane, ReadLease, VideoFormat};

use crate::errors::{IntoPyResult, Kind, errors, not_pickled};

errors! {
    DmabufError {
        _ => Kind::Error,
    } |error| match error {
        Self::NoDmabuf => "the frame is in no DMA buffer: use Consumer(..., dmabuf=True), and dmabuf=allow on xmemsink. Frames \
                           past the budget, and frames from a channel, are in none"
            .to_owned(),
        error => error.to_string(),
    };
}

/// A frame in DMA buffers, as EGL, V4L2, DRM and FFmpeg import them. Holds the frame, and its descriptors are open, as long as this
/// object exists. Do not write to the memory: other consumers read it.
#[pyclass(frozen, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Dmabuf {
    // Before the lease, because they are in its memory.
    planes: Vec<DmabufPlane>,
    lease: Arc<ReadLease>,
}

impl Dmabuf {
    pub(crate) fn new(lease: &Arc<ReadLease>) -> PyResult<Self> {
        Ok(Self {
            planes: lease.dmabuf_planes().into_py_result()?,
            lease: lease.clone(),
        })
    }

    fn each<'py, T: IntoPyObject<'py>>(
        &self,
        py: Python<'py>,
        value: impl Fn(&DmabufPlane) -> T,
    ) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.planes.iter().map(value))
    }
}

#[pymethods]
impl Dmabuf {
    /// The format, as DRM_FORMAT_... of drm_fourcc.h. 0: it is not known.
    #[getter]
    fn fourcc(&self) -> u32 {
        let video = self.lease.meta().layout.video.as_ref();
        let format = video.and_then(VideoFormat::of);
        format.and_then(VideoFormat::drm_fourcc).unwrap_or(0)
    }

    /// DRM_FORMAT_MOD_LINEAR.
    #[getter]
    fn modifier(&self) -> u64 {
        0
    }

    /// For each plane, the descriptor of its buffer. Planes may share one.
    #[getter]
    fn fds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.each(py, |plane| plane.dmabuf.as_fd().as_raw_fd())
    }

    /// For each plane, its first byte in the buffer.
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.each(py, |plane| plane.dmabuf.offset())
    }

    /// For each plane, the bytes from one row to the next. 0 if the frame is no video: the plane has all bytes.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.each(py, |plane| plane.stride)
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(
            slf,
            "its descriptors are of this process: send them with socket.send_fds, or receive the frame in the other process",
        ))
    }
}
