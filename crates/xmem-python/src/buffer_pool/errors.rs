// SPDX-License-Identifier: MPL-2.0

//! The exceptions for the errors of buffers by number.

use xmem_core as core;

use crate::errors::{IntoPyErr, Kind};

impl IntoPyErr for core::OpenError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::MaxBuffers { .. } => None,
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for core::WriteAccessError {
    fn message(&self) -> String {
        match self {
            Self::Get(error) => error.message(),
            error => error.to_string(),
        }
    }

    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Acquire(error) => error.kind(),
            Self::Full { .. } => Some(Kind::PoolFull),
            Self::Denied { .. } | Self::NotWriter => Some(Kind::Refused),
            Self::Create(error) => error.kind(),
            Self::Get(error) => error.kind(),
            Self::Receive(error) => error.kind(),
            Self::Cuda(error) => error.kind(),
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for core::GetError {
    fn message(&self) -> String {
        match self {
            Self::Empty { .. } => format!("{self}, or it is being written"),
            error => error.to_string(),
        }
    }

    fn kind(&self) -> Option<Kind> {
        Some(match self {
            Self::OverBudget { .. } => Kind::OverBudget,
            Self::Connect(error) => return error.kind(),
            Self::Receive(error) => return error.kind(),
            _ => Kind::Error,
        })
    }
}

impl IntoPyErr for core::RefCountError {
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::BadCount(_) => None,
            _ => Some(Kind::Error),
        }
    }
}

impl IntoPyErr for core::AccessError {
    fn kind(&self) -> Option<Kind> {
        Some(Kind::Error)
    }
}
