// SPDX-License-Identifier: MPL-2.0

//! Buffers by number, their readers, and the exceptions for their errors.

mod cuda;
mod guard;
mod pool;

pub(crate) use guard::BufferGuard;
pub(crate) use pool::BufferPool;

use pyo3::prelude::*;
use xmem_core as core;

use crate::errors::{Kind, errors, not_pickled};

errors! {
    core::OpenError {
        Self::Name(_) | Self::MaxBuffers { .. } => Kind::Value,
        _ => Kind::Error,
    };
    core::WriteAccessError {
        Self::Acquire(error) => error.kind(),
        Self::Full { .. } => Kind::PoolFull,
        Self::Denied { .. } | Self::NotWriter => Kind::Refused,
        Self::NoReaders => Kind::Value,
        Self::Create(error) => error.kind(),
        Self::Get(error) => error.kind(),
        Self::Receive(error) => error.kind(),
        Self::Cuda(error) => error.kind(),
        _ => Kind::Error,
    } |error| match error {
        Self::Get(error) => error.message(),
        error => error.to_string(),
    };
    core::GetError {
        Self::OverBudget { .. } => Kind::OverBudget,
        Self::Connect(error) => error.kind(),
        Self::Receive(error) => error.kind(),
        _ => Kind::Error,
    } |error| match error {
        Self::Empty { .. } => format!("{error}, or it is being written"),
        error => error.to_string(),
    };
    core::RefCountError {
        Self::BadCount(_) => Kind::Value,
        _ => Kind::Error,
    };
    core::AccessError {
        _ => Kind::Error,
    };
}

/// A process that is connected to this process and can read its buffers: for `BufferGuard.forget(to=[reader, ...])`.
#[pyclass(frozen, eq, hash, module = "xmem")]
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader(core::Reader);

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

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<()> {
        Err(not_pickled(
            slf,
            "it is a connection of this process: send its pid",
        ))
    }

    fn __repr__(&self) -> String {
        let (id, name, pid) = (self.0.id(), self.0.name(), self.0.pid());
        format!("<xmem.Reader {id}, {name:?}, process {pid}>")
    }
}
