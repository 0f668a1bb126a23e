// SPDX-License-Identifier: MPL-2.0

//! The exceptions for the errors of buffers by number.

use xmem_core as core;

use crate::errors::{Kind, errors};

errors! {
    core::OpenError {
        Self::Connect(error) => error.kind(),
        Self::Create(error) => error.kind(),
        _ => Kind::Error,
    };
    core::WriteAccessError {
        Self::Acquire(error) => error.kind(),
        Self::Full { .. } => Kind::PoolFull,
        Self::Denied { .. } | Self::NotOwner => Kind::Refused,
        Self::Owner(error) => error.kind(),
        Self::Cuda(error) => error.kind(),
        _ => Kind::Error,
    };
    core::GetError {
        Self::OverBudget { .. } => Kind::OverBudget,
        Self::Owner(error) => error.kind(),
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
