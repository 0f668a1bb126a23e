// SPDX-License-Identifier: MPL-2.0

//! The exceptions for the errors of buffers by number.

use xmem_core as core;

use crate::errors::{Kind, errors};

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
