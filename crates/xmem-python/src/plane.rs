// SPDX-License-Identifier: MPL-2.0

//! The Python class for a plane of a frame.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::array::Array;
use crate::base::{Base, objects};
use crate::dtype;
use crate::layout::Arrays;

/// One plane of a frame.
#[pyclass(frozen, extends = Base, module = "xmem")]
#[derive(Debug)]
pub(crate) struct Plane(Arc<Arrays>);

impl Plane {
    pub(crate) fn new(array: Array) -> Self {
        Self(Arc::new(Arrays::one(array)))
    }

    pub(crate) fn array(&self) -> &Array {
        &self.0.planes[0]
    }
}

objects!(Plane, 0);

#[pymethods]
impl Plane {
    /// The size of one element in bytes.
    #[getter]
    fn itemsize(&self) -> isize {
        self.array().itemsize()
    }

    /// A writable copy in private memory, as from Frame.copy.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        self.array().keeper.settle(py)?;
        Ok(Self::new(py.detach(|| self.array().to_private())?))
    }

    /// The plane itself, which does not change.
    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.copy(py)
    }

    /// The plane in host memory, as from Frame.cpu.
    fn cpu(&self, py: Python<'_>) -> PyResult<Self> {
        self.array().keeper.check_process()?;
        self.array().keeper.settle(py)?;
        Ok(Self::new(py.detach(|| self.array().to_host())?))
    }

    fn __repr__(&self) -> String {
        let array = self.array();
        format!(
            "<xmem.Plane {:?} {}>",
            array.shape,
            dtype::name(array.dtype)
        )
    }
}
