// SPDX-License-Identifier: MPL-2.0

//! The class `ReleaseWord`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xmem_core::cuda::{self, CudaError, Device};

/// A 32-bit word that holds a frame until a kernel stores 0 to it: see `Frame.release_word`.
///
/// Numba and CuPy take it as an array of one uint32.
#[pyclass(frozen, module = "xmem")]
#[derive(Debug)]
pub(crate) struct ReleaseWord(cuda::ReleaseWord);

impl ReleaseWord {
    pub(crate) fn new(kept: impl Send + 'static, device: &Device) -> Result<Self, CudaError> {
        cuda::ReleaseWord::new(kept, device).map(Self)
    }
}

#[pymethods]
impl ReleaseWord {
    /// The address of the word on the device.
    #[getter]
    fn ptr(&self) -> u64 {
        self.0.ptr()
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "<u4")?;
        interface.set_item("shape", (1,))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("data", (self.ptr(), false))?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    /// Releases the frame now, if you did not launch the kernel. No kernel may store to the word after this.
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.0.end());
    }

    fn __repr__(&self) -> String {
        format!("<xmem.ReleaseWord at {:#x}>", self.ptr())
    }
}
