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
    #[error("{0}")]
    Acquire(#[source] AcquireError),
    /// All buffers are in use, and there may be no more.
    #[error(
        "all {buffers} buffers of pool {pool:?} are in use, and there may be no more (max_buffers {max_buffers}): a buffer \
         is empty again when it was read as often as its count; discard empties one that is not read, and so does \
         a timeout"
    )]
    Full {
        /// The pool.
        pool: String,
        /// How many buffers there are.
        buffers: u32,
        /// The limit.
        max_buffers: u32,
    },
    /// A copy that this process made for itself.
    #[error(
        "this copy is this process's own, so no other process can get it: only the process that made the pool publishes \
         copies"
    )]
    Private,
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
        "only the process that made the pool preallocates, acquires buffers on devices and sets timeouts: this one joined it. Open the pool in the writing process first, or copy a buffer (copy_to_cuda, copy_to_cpu) to write"
    )]
    NotOwner,
    /// The owner did not answer, or its grant is invalid.
    #[error("asking the pool's owner failed: {0}")]
    Owner(#[from] ReceiveError),
}

impl From<AcquireError> for WriteAccessError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Exhausted {
                pool,
                slots: buffers,
                max_slots: max_buffers,
                ..
            } => Self::Full {
                pool,
                buffers,
                max_buffers,
            },
            error => Self::Acquire(error),
        }
    }
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
    #[error(
        "this process holds its budget of {budget} buffers: drop one first, or open the pool with a larger max_held, here and \
         in the process that makes it"
    )]
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
