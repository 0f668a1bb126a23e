// SPDX-License-Identifier: MPL-2.0

//! The errors of buffers by number.

use thiserror::Error;

use crate::error::{AcquireError, ConnectError, CreateError, ReceiveError};

/// A [`BufferPool`](crate::BufferPool) could neither be joined nor made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is one, and it could not be joined.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is one, and its frames have no numbers.
    #[error(
        "pool {pool:?} has no buffers by number: it is the pool of a stream, whose frames a `Consumer` takes"
    )]
    Stream {
        /// The pool.
        pool: String,
    },
    /// There is none, and it could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// The right to write a buffer was not given.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteAccessError {
    /// The pool is this process's own, and has none.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The pool's owner refused.
    #[error("the pool's owner refused: {reason}")]
    Denied {
        /// Why, in words.
        reason: String,
    },
    /// The buffer is held, or there is no such buffer.
    #[error(
        "buffer {index} cannot be written: another process holds it, or there is no buffer of that number"
    )]
    InUse {
        /// The buffer.
        index: u32,
    },
    /// The buffer was to lie on a CUDA device, or lies there.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] xmem_cuda::error::CudaError),
    /// Only the process that made the pool can do this.
    #[error(
        "only the process that made the pool can preallocate, or make buffers on devices: this one did not make it, since it was there already"
    )]
    NotOwner,
    /// The owner did not answer, or its grant is invalid.
    #[error("asking the pool's owner failed: {0}")]
    Owner(#[from] ReceiveError),
}

/// A buffer could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GetError {
    /// Nothing is published under that number, or not any more.
    #[error("buffer {index} holds nothing: it was not published yet, or its count reached zero")]
    Empty {
        /// The buffer.
        index: u32,
    },
    /// This process holds as many as it may.
    #[error("this process holds its budget of {budget} buffers: drop one first")]
    OverBudget {
        /// How many it may hold.
        budget: u32,
    },
    /// The owner did not answer, or its description of the buffer is invalid.
    #[error("asking the pool's owner failed: {0}")]
    Owner(#[from] ReceiveError),
}

/// A buffer cannot be used in this way.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// It was got for reading.
    #[error("the buffer was got for reading: use get_mut or acquire_cpu to write")]
    ReadOnly,
    /// It lies on a device.
    #[error("the buffer lies on a CUDA device: use as_cuda_ptr, or copy_to_cpu")]
    OnDevice,
    /// It is being written, so there can be no second reference to it.
    #[error("the buffer is being written: publish it (forget) before it is shared")]
    Writing,
}

/// A buffer's count could not be set.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefCountError {
    /// A count below one.
    #[error(
        "a count of {0} keeps nothing: give the number of consumers that are to take the buffer"
    )]
    BadCount(i32),
    /// Not one that this process writes, nor, as the pool's owner, has published.
    #[error(
        "the count of buffer {0} is not this process's to change: it neither writes it nor owns the pool"
    )]
    NotYours(u32),
}
