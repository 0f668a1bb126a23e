// SPDX-License-Identifier: MPL-2.0

//! A frame that this process writes and publishes.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use xmem_core::{FrameFlags, monotonic_ns};

use crate::about;
use crate::base::{Base, objects};
use crate::device;
use crate::keeper::Keeper;
use crate::layout::{self, Arrays, Part};
use crate::lock;
use crate::number::{count, count_or_none, present_or_none};
use crate::plane::Plane;
use crate::publisher::Publisher;
use crate::signals::Deadline;
use crate::slot::WriteSlot;
use crate::wanted::Wanted;

/// A frame that can be written until it is published.
///
/// A frame that was not published is discarded at the end of a `with` block.
#[pyclass(frozen, extends = Base, module = "xmem")]
#[derive(Debug)]
pub(crate) struct WritableFrame {
    pool: String,
    /// `None`: it was published or given back.
    publisher: Mutex<Option<Arc<Publisher>>>,
    slot: Arc<WriteSlot>,
    arrays: Arc<Arrays>,
    wanted: Arc<Wanted>,
}

impl WritableFrame {
    pub(crate) fn new(
        publisher: Arc<Publisher>,
        slot: WriteSlot,
        wanted: Arc<Wanted>,
    ) -> PyResult<Self> {
        let slot = Arc::new(slot);
        let (ptr, len) = slot.bytes();
        let part = Part {
            keeper: Keeper::Slot(slot.clone()),
            start: 0,
            bytes: (ptr, wanted.size.min(len)),
        };
        let arrays = layout::arrays(&wanted.meta, false, &[part])
            .ok_or_else(|| PyValueError::new_err("the frame does not fit into its slot"))?;
        Ok(Self {
            pool: publisher.pool().to_owned(),
            publisher: Mutex::new(Some(publisher)),
            slot,
            arrays: Arc::new(arrays),
            wanted,
        })
    }

    /// Drops its reference to the pool. The last reference closes the pool.
    fn forget_publisher(&self) {
        let publisher = lock(&self.publisher).take();
        // Without the lock, because closing a pool waits for threads.
        drop(publisher);
    }
}

objects!(WritableFrame, arrays);

#[pymethods]
impl WritableFrame {
    /// The planes of the frame. A frame that is not planar has one plane.
    #[getter]
    fn planes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.arrays.check_process()?;
        PyTuple::new(py, self.arrays.planes.iter().cloned().map(Plane::new))
    }

    /// Video: the name of the format, as in caps.
    #[getter]
    fn format(&self) -> Option<&str> {
        let video = self.wanted.meta.layout.video.as_ref();
        video.map(|video| video.format.as_str())
    }

    /// Video: the width in pixels.
    #[getter]
    fn width(&self) -> Option<u32> {
        self.wanted.meta.layout.video.map(|video| video.width)
    }

    /// Video: the height in pixels.
    #[getter]
    fn height(&self) -> Option<u32> {
        self.wanted.meta.layout.video.map(|video| video.height)
    }

    /// The caps that the frame will be published with.
    #[getter]
    fn caps(&self) -> &str {
        &self.wanted.caps
    }

    /// Publishes the frame. Returns its sequence. Times are in nanoseconds.
    ///
    /// timestamp: the presentation time on CLOCK_MONOTONIC, as from time.monotonic_ns(). Default: now. Raises ValueError for
    /// a time that is clearly of another clock or unit.
    /// attachments: named bytes. More than 1 KiB need `room` in `acquire`.
    /// flags: GstBufferFlags.
    /// content_type: the type of the content, such as "image/jpeg". Default: the type of the acquired format.
    /// trust_views: publish even if arrays can still write to the frame. Your program must not write to them.
    /// stream: the stream that writes a frame on a device. The work of this stream may still be running. Default: the streams
    /// of the arrays.
    /// timeout: in a lossless pool, the longest wait in seconds for consumers that are behind. On Timeout the frame can
    /// be published later.
    #[pyo3(signature = (*, pts=None, dts=None, duration=None, timestamp=None, attachments=Vec::new(), flags=0, content_type=None,
        trust_views=false, stream=None, timeout=None))]
    #[allow(clippy::too_many_arguments)] // keyword arguments
    fn publish(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = count_or_none)] pts: Option<u64>,
        #[pyo3(from_py_with = count_or_none)] dts: Option<u64>,
        #[pyo3(from_py_with = count_or_none)] duration: Option<u64>,
        #[pyo3(from_py_with = present_or_none)] timestamp: Option<i64>,
        #[pyo3(from_py_with = about::attachments)] attachments: Vec<(String, Vec<u8>)>,
        #[pyo3(from_py_with = count)] flags: u32,
        content_type: Option<&str>,
        trust_views: bool,
        stream: Option<Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let deadline = Deadline::after(timeout)?;
        let stream = stream.as_ref().map(device::stream_of).transpose()?;
        let mut meta = self.wanted.meta.clone();
        meta.pts = pts;
        meta.dts = dts;
        meta.duration = duration;
        meta.timestamp = Some(timestamp.unwrap_or_else(monotonic_ns));
        meta.flags = FrameFlags::from_bits(flags);
        if let Some(text) = content_type {
            meta.layout_mut().content_type = about::content_type(text)?;
        }
        for (name, value) in attachments {
            meta.attachments.set(&name, value);
        }
        let publisher = lock(&self.publisher).clone();
        let Some(publisher) = publisher else {
            return Err(self.slot.why_not());
        };
        self.slot.check(trust_views, stream)?;
        publisher.wait_for_room(py, deadline)?;
        py.detach(|| {
            let publish = || self.slot.publish(meta, trust_views, stream);
            let sequence = publisher.publish_with(&self.wanted.caps, publish)?;
            self.forget_publisher();
            Ok(sequence)
        })
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        py.detach(|| {
            self.slot.close();
            self.forget_publisher();
        });
    }

    fn __repr__(&self) -> String {
        let what = self.arrays.describe(&self.wanted.meta);
        format!("<xmem.WritableFrame of {:?}: {what}>", self.pool)
    }
}
