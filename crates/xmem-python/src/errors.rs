// SPDX-License-Identifier: MPL-2.0

//! The core's errors as Python's exceptions. `xmem/_errors.py` has their classes.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use xmem_core::cuda::CudaError;
use xmem_core::{
    AcquireError, ConnectError, CreateError, PublishError, ReceiveError, RegionError, RequestError,
    WaitError,
};

/// One of the classes in `_errors.py`.
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
    fn name(self) -> &'static str {
        match self {
            Self::Error => "Error",
            Self::Timeout => "Timeout",
            Self::NoProducer => "NoProducer",
            Self::Refused => "Refused",
            Self::Closed => "Closed",
            Self::EndOfStream => "EndOfStream",
            Self::ProducerLost => "ProducerLost",
            Self::OverBudget => "OverBudget",
            Self::PoolFull => "PoolFull",
            Self::PoolInUse => "PoolInUse",
            Self::ViewsExist => "ViewsExist",
            Self::Forked => "Forked",
            Self::Cuda => "CudaError",
            Self::NoCuda => "NoCuda",
        }
    }

    /// The exception, with this message.
    pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
        let message = message.into();
        Python::attach(|py| {
            let class = py
                .import("xmem._errors")
                .and_then(|module| module.getattr(self.name()))
                .and_then(|class| Ok(class.cast_into::<PyType>()?));
            match class {
                Ok(class) => PyErr::from_type(class, message),
                Err(_) => PyRuntimeError::new_err(message),
            }
        })
    }
}

/// A class of exceptions for each of the core's errors.
pub(crate) trait IntoPyErr: std::fmt::Display {
    fn kind(&self) -> Option<Kind>;

    fn into_py_err(self) -> PyErr
    where
        Self: Sized,
    {
        match self.kind() {
            Some(kind) => kind.error(self.to_string()),
            None => PyValueError::new_err(self.to_string()),
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
            Self::ZeroSize => None,
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
    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::Cuda(error) => return error.kind(),
            Self::Closed => Kind::Closed,
            Self::Forked => Kind::Forked,
            _ => Kind::Error,
        })
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
