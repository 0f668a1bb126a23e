// SPDX-License-Identifier: MPL-2.0

//! Results: a code for programs, and a text for people.
#![allow(unsafe_code)] // functions and pointers of C

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;

use xmem_core::cuda::CudaError;
use xmem_core::follow::FollowError;
use xmem_core::{
    AccessError, AcquireError, ConnectError, CreateError, DmabufError, GetError, LayoutError,
    OpenError, PublishError, ReceiveError, RefCountError, RequestError, StickyError, WaitError,
    WriteAccessError,
};

/// `xmem_result` of xmem.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Ok = 0,
    Timeout = 1,
    End = 2,
    Cancelled = 3,
    Argument = -1,
    Handle = -2,
    Busy = -3,
    NoProducer = -4,
    ProducerLost = -5,
    Refused = -6,
    PoolInUse = -7,
    PoolFull = -8,
    OverBudget = -9,
    NotReadable = -10,
    Invalid = -11,
    Forked = -12,
    System = -13,
    Internal = -14,
}

/// Why a function failed. Boxed, so that results without a failure are small.
#[derive(Debug)]
pub(crate) struct Failure(Box<(Code, String)>);

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self(Box::new((code, text.into())))
    }

    pub(crate) fn is_timeout(&self) -> bool {
        self.0.0 == Code::Timeout
    }

    fn of(code: Code, error: impl fmt::Display) -> Self {
        Self::new(code, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text for `xmem_error`, and returns the code.
#[cold]
pub(crate) fn report(Failure(failure): Failure) -> c_int {
    let (code, text) = *failure;
    // A text with a zero byte would be cut off there.
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    // While a thread ends, the text can't be kept.
    let _ = LAST.try_with(|last| last.replace(text));
    code as c_int
}

#[unsafe(no_mangle)]
extern "C" fn xmem_error() -> *const c_char {
    const NONE: &CStr = c"";
    let text = LAST.try_with(|last| last.borrow().as_ptr());
    text.unwrap_or(NONE.as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn xmem_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::End => Self::of(Code::End, error),
            FollowError::Cancelled => Self::of(Code::Cancelled, error),
            FollowError::NoProducer(error) => Self::of(Code::NoProducer, error),
            FollowError::Connect(error) => error.into(),
            FollowError::Lost(lost) => lost.error.into(),
            FollowError::Receive(error) => error.into(),
            other => Self::of(Code::System, other),
        }
    }
}

impl From<GetError> for Failure {
    fn from(error: GetError) -> Self {
        match error {
            GetError::Connect(error) => error.into(),
            GetError::Receive(error) => error.into(),
            GetError::NoWriter { .. } => Self::of(Code::NoProducer, error),
            GetError::OverBudget { .. } => Self::of(Code::OverBudget, error),
            _ => Self::of(Code::NotReadable, error),
        }
    }
}

impl From<WriteAccessError> for Failure {
    fn from(error: WriteAccessError) -> Self {
        match error {
            WriteAccessError::Acquire(error) => error.into(),
            WriteAccessError::Get(error) => error.into(),
            WriteAccessError::Create(error) => error.into(),
            WriteAccessError::Receive(error) => error.into(),
            WriteAccessError::Full { .. } => Self::of(Code::PoolFull, error),
            _ => Self::of(Code::Argument, error),
        }
    }
}

/// The codes of the core's errors.
macro_rules! codes {
    ($($error:ty { $($pattern:pat => $code:ident,)+ })*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let code = match &error {
                    $($pattern => Code::$code,)+
                };
                Self::of(code, error)
            }
        })*
    };
}

codes! {
    ReceiveError {
        ReceiveError::Timeout => Timeout,
        ReceiveError::Cancelled => Cancelled,
        ReceiveError::Eos => End,
        ReceiveError::ProducerLost | ReceiveError::TimedOut | ReceiveError::CutOff => ProducerLost,
        ReceiveError::OverBudget { .. } => OverBudget,
        ReceiveError::NoDmabuf(_) => NotReadable,
        ReceiveError::Corrupt(_) => Invalid,
        ReceiveError::Forked => Forked,
        _ => System,
    }
    ConnectError {
        ConnectError::Name(_) => Argument,
        ConnectError::NotFound { .. } | ConnectError::NoAnswer { .. } => NoProducer,
        ConnectError::Cancelled => Cancelled,
        ConnectError::System(_) => System,
        _ => Refused,
    }
    CreateError {
        CreateError::Name(_) | CreateError::Settings(_) => Argument,
        CreateError::InUse { .. } => PoolInUse,
        _ => System,
    }
    AcquireError {
        AcquireError::Exhausted { .. } => PoolFull,
        AcquireError::TooLarge { .. } | AcquireError::ZeroSize => Argument,
        AcquireError::Timeout => Timeout,
        AcquireError::Cancelled => Cancelled,
        AcquireError::Closed => Handle,
        AcquireError::Forked => Forked,
        _ => System,
    }
    PublishError {
        PublishError::Closed => Handle,
        PublishError::Forked => Forked,
        _ => Argument,
    }
    CudaError {
        CudaError::NotOnDevice => Argument,
        CudaError::Forked => Forked,
        CudaError::WrongDevice { .. }
        | CudaError::ExporterGone
        | CudaError::Unfinished
        | CudaError::NotImportable { .. }
        | CudaError::Canary => NotReadable,
        _ => System,
    }
    WaitError {
        WaitError::Timeout => Timeout,
        WaitError::Cancelled => Cancelled,
        WaitError::Forked => Forked,
        _ => Handle,
    }
    AccessError { _ => Argument, }
    DmabufError { _ => NotReadable, }
    LayoutError { _ => Argument, }
    OpenError { _ => System, }
    RefCountError { _ => Argument, }
    RequestError { _ => ProducerLost, }
    StickyError { _ => Argument, }
    std::io::Error { _ => System, }
}
