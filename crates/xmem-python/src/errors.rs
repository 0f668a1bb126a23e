// SPDX-License-Identifier: MPL-2.0

//! The exceptions for errors of the core. `xmem/_errors.py` has their classes.

use pyo3::PyClass;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use rustix::io::Errno;
use xmem_core::cuda::CudaError;
use xmem_core::{
    AcquireError, ConnectError, CreateError, EventError, NameError, PublishError, ReceiveError,
    RequestError, StickyError, SystemError, WaitError,
};

pyo3::import_exception!(xmem._errors, SystemFailure);

/// The number of the system's error that is the cause of an error.
pub(crate) fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    if let Some(ConnectError::Denied { .. }) = error.downcast_ref() {
        return Some(Errno::ACCESS.raw_os_error());
    }
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// Why an object that uses a pool cannot be pickled, and what to do.
pub(crate) const OF_THIS_PROCESS: &str = "it belongs to this process: send the name of the pool, and create another one in the other process";

/// The error of pickling an object. Python's own does not say what to send instead.
pub(crate) fn not_pickled<T: PyClass>(it: &Bound<'_, T>, reason: &str) -> PyErr {
    match it.as_any().get_type().name() {
        Ok(class) => PyTypeError::new_err(format!(
            "an xmem.{class} cannot be pickled, because {reason}"
        )),
        Err(error) => error,
    }
}

macro_rules! kinds {
    ($($kind:ident is $class:ident),* $(,)?) => {
        mod classes {
            $(pyo3::import_exception!(xmem._errors, $class);)*
        }

        /// The classes in `_errors.py`, and Python's own for invalid arguments.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Kind {
            Value,
            $($kind,)*
        }

        impl Kind {
            /// An exception with this message. Python creates it when it is raised, so the caller needs no interpreter and may
            /// hold locks.
            pub(crate) fn error(self, message: impl Into<String>) -> PyErr {
                let message = message.into();
                match self {
                    Self::Value => PyValueError::new_err(message),
                    $(Self::$kind => classes::$class::new_err(message),)*
                }
            }
        }
    };
}

impl Kind {
    /// Like `error`, for an error that the system reported with this number.
    pub(crate) fn of_system(self, errno: Option<i32>, message: impl Into<String>) -> PyErr {
        let is_denied = errno.is_some_and(|errno| {
            [Errno::ACCESS, Errno::PERM].contains(&Errno::from_raw_os_error(errno))
        });
        match (self, errno) {
            (Self::Error | Self::Value | Self::Refused, Some(errno)) if is_denied => {
                classes::Refused::new_err((errno, message.into()))
            }
            (Self::Error | Self::Value, Some(errno)) => {
                SystemFailure::new_err((errno, message.into()))
            }
            (kind, _) => kind.error(message),
        }
    }
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

/// The exception for a process that cannot create the descriptor that an event loop waits for.
pub(crate) fn no_descriptor(error: std::io::Error) -> PyErr {
    let number = error.raw_os_error();
    let error = SystemError::at("create a file descriptor to wait on")(error);
    Kind::Error.of_system(number, error.to_string())
}

/// Emits a `PoolWarning` with the user's line of Python. An error if Python turns warnings into errors.
pub(crate) fn warn(py: Python<'_>, message: String) -> PyResult<()> {
    py.import("xmem._warnings")?
        .call_method1("warn_each_time", (message,))?;
    Ok(())
}

/// Maps each error of the core to a class of exceptions.
pub(crate) trait IntoPyErr: std::error::Error + 'static {
    fn kind(&self) -> Kind;

    /// The message, in terms of the Python module.
    fn message(&self) -> String {
        self.to_string()
    }

    fn into_py_err(self) -> PyErr
    where
        Self: Sized,
    {
        self.kind().of_system(errno_of(&self), self.message())
    }
}

/// Like `IntoPyErr`, for a result.
pub(crate) trait IntoPyResult<T> {
    fn into_py_result(self) -> PyResult<T>;
}

impl<T, E: IntoPyErr> IntoPyResult<T> for Result<T, E> {
    fn into_py_result(self) -> PyResult<T> {
        self.map_err(IntoPyErr::into_py_err)
    }
}

/// Maps errors to classes. `|error| text` is a message in terms of the Python module.
macro_rules! errors {
    ($($error:ty { $($pattern:pat => $kind:expr,)+ } $(|$it:ident| $message:expr)?;)*) => {
        $(impl $crate::errors::IntoPyErr for $error {
            fn kind(&self) -> $crate::errors::Kind {
                match self {
                    $($pattern => $kind,)+
                }
            }

            $(fn message(&self) -> String {
                let $it = self;
                $message
            })?
        })*
    };
}

pub(crate) use errors;

errors! {
    ConnectError {
        Self::Name(_) => Kind::Value,
        Self::NotFound { .. } | Self::NoAnswer { .. } => Kind::NoProducer,
        Self::Denied { .. } | Self::Refused { .. } | Self::OtherVersion { .. } => Kind::Refused,
        Self::Cancelled => Kind::Closed,
        _ => Kind::Error,
    };
    CreateError {
        Self::Name(_) | Self::Settings(_) => Kind::Value,
        Self::InUse { .. } => Kind::PoolInUse,
        Self::Foreign { .. } => Kind::Refused,
        _ => Kind::Error,
    };
    ReceiveError {
        Self::Timeout => Kind::Timeout,
        Self::Cancelled => Kind::Closed,
        Self::Eos => Kind::EndOfStream,
        Self::ProducerLost | Self::TimedOut | Self::CutOff => Kind::ProducerLost,
        Self::OverBudget { .. } => Kind::OverBudget,
        Self::Forked => Kind::Forked,
        _ => Kind::Error,
    };
    AcquireError {
        // 0 means no limit, so the number of bytes is invalid.
        Self::ZeroSize | Self::TooLarge { max_bytes: 0, .. } => Kind::Value,
        Self::Exhausted { .. } | Self::TooLarge { .. } => Kind::PoolFull,
        Self::Timeout => Kind::Timeout,
        Self::Cancelled | Self::Closed => Kind::Closed,
        Self::Forked => Kind::Forked,
        Self::Cuda(error) => error.kind(),
        _ => Kind::Error,
    };
    CudaError {
        Self::NoDriver { .. } | Self::DriverTooOld { .. } | Self::NoDevice { .. } => Kind::NoCuda,
        Self::Forked => Kind::Forked,
        _ => Kind::Cuda,
    };
    PublishError {
        Self::Cuda(error) => error.kind(),
        Self::Closed => Kind::Closed,
        Self::Forked => Kind::Forked,
        _ => Kind::Error,
    } |error| match error {
        Self::NoRoomForAttachments { needed, room } => format!(
            "the frame's attachments need {needed} bytes, including their names and sizes, but the frame has room for {room}: \
             use acquire(..., room={needed})"
        ),
        error => error.to_string(),
    };
    EventError {
        Self::Acquire(error) => error.kind(),
        Self::Publish(error) => error.kind(),
        _ => Kind::Error,
    };
    WaitError {
        Self::Timeout => Kind::Timeout,
        Self::Cancelled | Self::Closed => Kind::Closed,
        Self::Forked => Kind::Forked,
        _ => Kind::Error,
    };
    RequestError {
        Self::TooLarge { .. } => Kind::Value,
        Self::Busy => Kind::Timeout,
        Self::ProducerLost => Kind::ProducerLost,
        Self::Forked => Kind::Forked,
        _ => Kind::Error,
    };
    StickyError {
        Self::Forked => Kind::Forked,
        _ => Kind::Error,
    };
    NameError {
        _ => Kind::Value,
    };
}
