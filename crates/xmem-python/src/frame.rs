// SPDX-License-Identifier: MPL-2.0

//! A received frame.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use xmem_core::cuda::CudaError;
use xmem_core::{DmabufError, ReadLease};

use crate::about::About;
use crate::addresses;
use crate::array::Array;
use crate::base::{Base, objects};
use crate::device::{DeviceFrame, ReleaseWord, stream_of};
use crate::dmabuf::Dmabuf;
use crate::errors::IntoPyResult;
use crate::keeper::Keeper;
use crate::layout::{self, Arrays};
use crate::plane::Plane;

/// A frame of a pool. The process holds it as long as this object or an array made from it exists.
///
/// Times are in nanoseconds.
#[pyclass(frozen, extends = Base, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Frame {
    arrays: Arc<Arrays>,
    about: Arc<About>,
}

/// Whether the bytes of a frame were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    InPlace,
    Copied,
}

impl Frame {
    /// Refers to a frame in place. The frame is copied if one of its planes is in several parts.
    pub(crate) fn in_place(lease: ReadLease) -> Result<(Self, Placement), Unusable> {
        let lease = Arc::new(lease);
        // Noted, so that a channel can forward its arrays.
        let parts = if lease.is_on_device() {
            let frame = DeviceFrame::new(ReadLease::clone(&lease))?;
            addresses::note_on_device(&frame);
            layout::device_parts(&frame)
        } else {
            addresses::note(&lease);
            let parts = layout::parts(&lease);
            parts.ok_or(Unusable::Invalid(
                "the frame's memory cannot be mapped".into(),
            ))?
        };
        match layout::arrays(lease.meta(), is_field(&lease), &parts) {
            Some(arrays) => Ok((Self::new(arrays, About::of(&lease)), Placement::InPlace)),
            // A plane is in several parts, or not aligned for its type.
            None => Self::copied(&lease),
        }
    }

    /// A copy, in the same kind of memory as the frame.
    pub(crate) fn copied(lease: &ReadLease) -> Result<(Self, Placement), Unusable> {
        let part = if lease.is_on_device() {
            layout::copy_on_device(lease, PATIENCE, None)?.ok_or(Unusable::Unfinished)?
        } else {
            let copy = lease.to_vec().map_err(|error| {
                Unusable::Invalid(format!("the frame cannot be copied: {error}").into())
            })?;
            layout::private(copy)
        };
        let arrays = layout::arrays(lease.meta(), is_field(lease), &[part])
            .ok_or_else(|| Unusable::Invalid(layout::why_invalid(lease).into()))?;
        Ok((Self::new(arrays, About::of(lease)), Placement::Copied))
    }

    /// The same frame with each of its arrays converted.
    fn with_each(
        &self,
        py: Python<'_>,
        make: impl Fn(&Array) -> PyResult<Array> + Send,
    ) -> PyResult<Self> {
        self.arrays.check_process()?;
        let mut planes = self.arrays.planes.iter();
        planes.try_for_each(|plane| plane.keeper.settle(py))?;
        let arrays = py.detach(|| self.arrays.map(make))?;
        Ok(Self::new(arrays, self.about.clone()))
    }

    /// A frame with arrays in any memory.
    pub(crate) fn new(arrays: Arrays, about: Arc<About>) -> Self {
        Self {
            arrays: Arc::new(arrays),
            about,
        }
    }

    pub(crate) fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    pub(crate) fn about(&self) -> &About {
        &self.about
    }
}

objects!(Frame, arrays);

/// Whether the stream's frames are fields, with half of the stated rows.
fn is_field(lease: &ReadLease) -> bool {
    if lease.meta().layout.video.is_none() {
        return false;
    }
    let caps = lease.sticky().text("caps").unwrap_or_default();
    caps.contains("interlace-mode=(string)alternate") || caps.contains("interlace-mode=alternate")
}

/// Why a received frame cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// It contradicts its producer's description.
    Invalid(Cow<'static, str>),
    /// It is on an inaccessible device.
    Cuda(CudaError),
    /// It must be copied, but the device did not finish writing it in time.
    Unfinished,
}

impl From<CudaError> for Unusable {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

/// The longest wait for a frame that is copied, because it holds its slot beyond the consumer's budget.
const PATIENCE: Duration = Duration::from_secs(1);

#[pymethods]
impl Frame {
    /// The planes of the frame. A frame that is not planar has one plane.
    #[getter]
    fn planes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.arrays.check_process()?;
        PyTuple::new(py, self.arrays.planes.iter().cloned().map(Plane::new))
    }

    /// Video: the name of the format, as in caps.
    #[getter]
    fn format(&self) -> Option<&str> {
        let video = self.about.meta.layout.video.as_ref();
        video.map(|video| video.format.as_str())
    }

    /// Video: the width in pixels.
    #[getter]
    fn width(&self) -> Option<u32> {
        self.about.meta.layout.video.map(|video| video.width)
    }

    /// Video: the height in pixels.
    #[getter]
    fn height(&self) -> Option<u32> {
        self.about.meta.layout.video.map(|video| video.height)
    }

    /// The presentation time in the producer's pipeline.
    #[getter]
    fn pts(&self) -> Option<u64> {
        self.about.meta.pts
    }

    /// The decoding time in the producer's pipeline.
    #[getter]
    fn dts(&self) -> Option<u64> {
        self.about.meta.dts
    }

    /// The duration of the frame.
    #[getter]
    fn duration(&self) -> Option<u64> {
        self.about.meta.duration
    }

    /// The presentation time on CLOCK_MONOTONIC (time.monotonic_ns()).
    #[getter]
    fn timestamp(&self) -> Option<i64> {
        self.about.meta.timestamp
    }

    /// The time of publishing on CLOCK_MONOTONIC.
    #[getter]
    fn published_at(&self) -> i64 {
        self.about.info.published_at
    }

    /// The number of the frame in its pool, from 0. Frames and events are counted together.
    #[getter]
    fn sequence(&self) -> u64 {
        self.about.info.sequence
    }

    /// The number of the frame among the frames of its pool, from 0, without events.
    #[getter]
    fn number(&self) -> u64 {
        self.about.info.number()
    }

    /// The number of the slot that the frame is in.
    #[getter]
    fn slot(&self) -> u32 {
        self.about.info.slot
    }

    /// The generation of the slot, which changes with each use of the slot, and is never 0.
    #[getter]
    fn generation(&self) -> u32 {
        self.about.info.generation
    }

    /// The flags, as GstBufferFlags.
    #[getter]
    fn flags(&self) -> u32 {
        self.about.meta.flags.bits()
    }

    /// The type of the content, such as "image/raw".
    #[getter]
    fn content_type(&self) -> &str {
        self.about.meta.layout.content_type.as_str()
    }

    /// The name of the program that published it.
    #[getter]
    fn producer(&self) -> &str {
        self.about.meta.layout.producer.as_str()
    }

    /// The name of the pool that it was received from.
    #[getter]
    fn pool(&self) -> &str {
        &self.about.pool
    }

    /// The caps of the stream, as a string.
    #[getter]
    fn caps(&self) -> Option<&str> {
        self.about.caps()
    }

    /// The attachments by name.
    #[getter]
    fn attachments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.about.attachments(py)
    }

    /// A writable copy in private memory: without padding in host memory, or with the frame's padding on the frame's device.
    /// Waits until the copy is complete.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        self.with_each(py, Array::to_private)
    }

    /// The frame itself, which does not change.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copy(py)
    }

    /// The frame in host memory: the frame itself, or a copy without padding if it is on a device.
    fn cpu(&self, py: Python<'_>) -> PyResult<Self> {
        self.with_each(py, Array::to_host)
    }

    /// Waits until a frame on a device is written. Only reads without a stream need this.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        // A frame from a channel may be in several frames of a pool.
        let mut planes = self.arrays.planes.iter();
        planes.try_for_each(|plane| plane.keeper.wait(py))
    }

    /// Keeps a frame on a device until `stream`, which also reads it, has finished the work submitted before the last array was
    /// deleted. Not needed for an array's own stream: DLPack does this.
    fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = stream_of(stream)?;
        for plane in &self.arrays.planes {
            match &plane.keeper {
                Keeper::Device(frame) => frame.keep_for(stream),
                Keeper::PrivateDevice(copy) => copy.keep_for(stream),
                _ => {}
            }
        }
        Ok(())
    }

    /// The frame in DMA buffers, as devices import them: memory of a camera's driver or, with Consumer(..., dmabuf=True), slots of a
    /// producer that allows it (dmabuf=allow of xmemsink).
    fn dmabuf(&self) -> PyResult<Dmabuf> {
        self.arrays.check_process()?;
        match self.arrays.planes.first().map(|plane| &plane.keeper) {
            // The frame of a channel may be another one than that of its memory.
            Some(Keeper::Lease(held)) if held.lease.info() == &self.about.info => {
                Dmabuf::new(&held.lease)
            }
            _ => Err(DmabufError::NoDmabuf).into_py_result(),
        }
    }

    /// Returns a new word that holds a frame on a device until a kernel stores 0 to the word. The kernel must store the 0 once,
    /// with its last instruction, after a fence for the whole system. You may delete the frame object and its arrays earlier.
    /// If no kernel stores 0, the frame counts towards the budget until you call `end` of the word, or this process ends.
    fn release_word(&self, py: Python<'_>) -> PyResult<ReleaseWord> {
        self.arrays.check_process()?;
        // A frame that came through a channel may lie in several frames.
        let keepers = self.arrays.planes.iter().map(|plane| plane.keeper.clone());
        let keepers = keepers.collect();
        py.detach(|| Keeper::release_word(keepers)).into_py_result()
    }

    fn __repr__(&self) -> String {
        format!(
            "<xmem.Frame {} of {:?}: {}>",
            self.sequence(),
            self.about.pool,
            self.arrays.describe(&self.about.meta)
        )
    }
}
