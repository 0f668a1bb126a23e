// SPDX-License-Identifier: MPL-2.0

//! The core's errors as Python's exceptions. `xmem/_errors.py` has their classes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{
    AcquireError, ConnectError, CreateError, EventError, PublishError, ReceiveError, RegionError,
    RequestError, WaitError,
};

/// The classes in `_errors.py`.
mod classes {
    pyo3::import_exception!(xmem._errors, Error);
    pyo3::import_exception!(xmem._errors, Timeout);
    pyo3::import_exception!(xmem._errors, NoProducer);
    pyo3::import_exception!(xmem._errors, Refused);
    pyo3::import_exception!(xmem._errors, Closed);
    pyo3::import_exception!(xmem._errors, EndOfStream);
    pyo3::import_exception!(xmem._errors, ProducerLost);
    pyo3::import_exception!(xmem._errors, OverBudget);
    pyo3::import_exception!(xmem._errors, PoolFull);
    pyo3::import_exception!(xmem._errors, PoolInUse);
    pyo3::import_exception!(xmem._errors, ViewsExist);
    pyo3::import_exception!(xmem._errors, Forked);
    pyo3::import_exception!(xmem._errors, CudaError);
    pyo3::import_exception!(xmem._errors, NoCuda);
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Error,
    Timeout,
    NoProducer,
    Refused,
    Closed,
    EndOfStream,
    ProducerLost,
    OverBudget,
    PoolFull,
    PoolInUse,
    ViewsExist,
    Forked,
    Cuda,
    NoCuda,
}

impl Kind {
    /// The exception, with this message. It is made when it is raised, so this may be called without the interpreter, and
    /// with locks held.
    pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        match self {
            Self::Error => classes::Error::new_err(message),
            Self::Timeout => classes::Timeout::new_err(message),
            Self::NoProducer => classes::NoProducer::new_err(message),
            Self::Refused => classes::Refused::new_err(message),
            Self::Closed => classes::Closed::new_err(message),
            Self::EndOfStream => classes::EndOfStream::new_err(message),
            Self::ProducerLost => classes::ProducerLost::new_err(message),
            Self::OverBudget => classes::OverBudget::new_err(message),
            Self::PoolFull => classes::PoolFull::new_err(message),
            Self::PoolInUse => classes::PoolInUse::new_err(message),
            Self::ViewsExist => classes::ViewsExist::new_err(message),
            Self::Forked => classes::Forked::new_err(message),
            Self::Cuda => classes::CudaError::new_err(message),
            Self::NoCuda => classes::NoCuda::new_err(message),
        }
    }
}

/// Warns with the user's line of Python (`PoolWarning`). An error if warnings are to be errors.
pub(crate) fn warn(py: Python<'_>, message: String) -> PyResult<()> {
    py.import("xmem._warnings")?
        .call_method1("warn_each_time", (message,))?;
    Ok(())
}

/// A class of exceptions for each of the core's errors.
pub(crate) trait IntoPyErr: std::fmt::Display {
    fn kind(&self) -> Option<Kind>;

    /// What is wrong, in terms of the module.
    fn message(&self) -> String {
        self.to_string()
    }

    fn into_py_err(self) -> PyErr
    where
        Self: Sized,
    {
        match self.kind() {
            Some(kind) => kind.error(self.message()),
            None => PyValueError::new_err(self.message()),
        }
    }
}

impl IntoPyErr for ConnectError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Name(_) => None,
            Self::NotFound { .. } | Self::NoAnswer { .. } => Some(Kind::NoProducer),
            Self::Denied { .. } | Self::Refused { .. } => Some(Kind::Refused),
            Self::Cancelled => Some(Kind::Closed),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for CreateError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Name(_) | Self::Settings(_) => None,
            Self::InUse { .. } => Some(Kind::PoolInUse),
            Self::Foreign { .. } => Some(Kind::Refused),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for ReceiveError {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Timeout => Kind::Timeout,
            Self::Cancelled => Kind::Closed,
            Self::Eos => Kind::EndOfStream,
            Self::ProducerLost | Self::TimedOut | Self::CutOff => Kind::ProducerLost,
            Self::OverBudget { .. } => Kind::OverBudget,
            Self::Forked => Kind::Forked,
            _ => Kind::Error,
        })
    }
}

impl IntoPyErr for AcquireError {
    fn kind(&self) -> Option<Kind> {
        match self {
            // 0 is no limit: there is no such number of bytes.
            Self::ZeroSize | Self::TooLarge { max_bytes: 0, .. } => None,
            Self::Exhausted { .. } | Self::TooLarge { .. } => Some(Kind::PoolFull),
            Self::Timeout => Some(Kind::Timeout),
            Self::Cancelled | Self::Closed => Some(Kind::Closed),
            Self::Forked => Some(Kind::Forked),
            Self::Cuda(error) => error.kind(),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for CudaError {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::NoDriver { .. } | Self::DriverTooOld { .. } | Self::NoDevice { .. } => {
                Kind::NoCuda
            }
            Self::Forked => Kind::Forked,
            _ => Kind::Cuda,
        })
    }
}

impl IntoPyErr for PublishError {
    fn message(&self) -> String {
        match self {
            Self::NoRoomForAttachments { needed, room } => format!(
                "the frame's attachments have {needed} bytes, with their names and sizes, and there is room for {room}: \
                 say acquire(..., room={needed})"
            ),
            error => error.to_string(),
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Cuda(error) => return error.kind(),
            Self::Closed => Kind::Closed,
            Self::Forked => Kind::Forked,
            _ => Kind::Error,
        })
    }
}

impl IntoPyErr for EventError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Acquire(error) => error.kind(),
            Self::Publish(error) => error.kind(),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for WaitError {
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Timeout => Kind::Timeout,
            Self::Cancelled | Self::Closed => Kind::Closed,
            Self::Forked => Kind::Forked,
            _ => Kind::Error,
        })
    }
}

impl IntoPyErr for RequestError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::TooLarge { .. } => None,
            Self::Busy => Some(Kind::Timeout),
            Self::ProducerLost => Some(Kind::ProducerLost),
            Self::Forked => Some(Kind::Forked),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for RegionError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Forked => Some(Kind::Forked),
            _ => Some(Kind::Error),
        }
    }
}
