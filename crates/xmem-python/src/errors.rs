// SPDX-License-Identifier: MPL-2.0

//! The exceptions for the core's errors. `xmem/_errors.py` has their classes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{
    AcquireError, ConnectError, CreateError, EventError, PublishError, ReceiveError, RegionError,
    RequestError, WaitError,
};

macro_rules! kinds {
    ($($kind:ident is $class:ident),* $(,)?) => {
        mod classes {
            $(pyo3::import_exception!(xmem._errors, $class);)*
        }

        /// The classes in `_errors.py`.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// An exception with this message. Python makes it when it is raised, so the caller needs no interpreter and may
            /// hold locks.
            pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
                let message = message.into();
                match self {
                    $(Self::$kind => classes::$class::new_err(message),)*
                }
            }
        }
    };
}

kinds! {
    Error is Error,
    Timeout is Timeout,
    NoProducer is NoProducer,
    Refused is Refused,
    Closed is Closed,
    EndOfStream is EndOfStream,
    ProducerLost is ProducerLost,
    OverBudget is OverBudget,
    PoolFull is PoolFull,
    PoolInUse is PoolInUse,
    ViewsExist is ViewsExist,
    Forked is Forked,
    Cuda is CudaError,
    NoCuda is NoCuda,
}

/// Warns with the user's line of Python (`PoolWarning`). An error if Python turns warnings into errors.
pub(crate) fn warn(py: Python<'_>, message: String) -> PyResult<()> {
    py.import("xmem._warnings")?
        .call_method1("warn_each_time", (message,))?;
    Ok(())
}

/// A class of exceptions for each of the core's errors.
pub(crate) trait IntoPyErr: std::fmt::Display {
    fn kind(&self) -> Option<Kind>;

    /// The message, in terms of the module.
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
            // 0 is no limit, so the number of bytes is the error.
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
                 use acquire(..., room={needed})"
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
