// SPDX-License-Identifier: MPL-2.0

//! The class `Reader`.

use pyo3::prelude::*;
use xmem_core as core;

/// A process that is connected to this process and can read its buffers: for `BufferGuard.forget(to=[reader, ...])`.
#[pyclass(frozen, eq, hash, module = "xmem")]
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader(core::Reader);

impl Reader {
    pub(super) fn new(reader: core::Reader) -> Self {
        Self(reader)
    }

    pub(super) fn core(&self) -> &core::Reader {
        &self.0
    }
}

#[pymethods]
impl Reader {
    /// The number of the connection.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id()
    }

    /// The process ID in this process's PID namespace, or 0 if it has none there.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// The name of the program.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        let (id, name, pid) = (self.0.id(), self.0.name(), self.0.pid());
        format!("<xmem.Reader {id}, {name:?}, process {pid}>")
    }
}
