// SPDX-License-Identifier: MPL-2.0

//! The errors of buffers by number.

use thiserror::Error;

use super::number::name_of;
use crate::error::{AcquireError, ConnectError, CreateError, NameError, ReceiveError};

/// A [`BufferPool`](crate::BufferPool) was not opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not a name for a pool.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A pool of this name has frames without numbers.
    #[error(
        "pool {pool:?} carries a stream and has no buffers by number: read it with a `Consumer`, or choose another name"
    )]
    Stream {
        /// The pool.
        pool: String,
    },
    /// More buffers than there are numbers for.
    #[error("max_buffers is {max_buffers}: it must be from 2 to 4096")]
    MaxBuffers {
        /// The setting.
        max_buffers: u32,
    },
}

/// A buffer cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteAccessError {
    /// The process's own pool has no slot.
    #[error("{0}")]
    Acquire(#[source] AcquireError),
    /// All buffers are in use, and the limit is reached.
    #[error(
        "all {buffers} buffers of pool {pool:?} are in use: raise max_buffers ({max_buffers}), or free those that nobody reads, \
         with discard or a timeout; the others are free when they have been read as often as their count says"
    )]
    Full {
        /// The pool.
        pool: String,
        /// The number of buffers.
        buffers: u32,
        /// The limit.
        max_buffers: u32,
    },
    /// The pool of this process could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The limits do not allow as many buffers, or the buffer could not be published.
    #[error("{reason}")]
    Denied {
        /// The reason as text.
        reason: String,
    },
    /// The buffer to edit could not be read.
    #[error(transparent)]
    Get(#[from] GetError),
    /// The buffer is held, or there is no such buffer.
    #[error(
        "buffer {index} cannot be written: it does not exist, or a process holds it; in that case wait until it is released"
    )]
    InUse {
        /// The buffer.
        index: u32,
    },
    /// An operation on a CUDA device failed.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] xmem_cuda::error::CudaError),
    /// Only the process that wrote a buffer can do this.
    #[error(
        "only the process that wrote a buffer can discard it, or set its timeout and its readers, and these only before it \
         publishes the buffer"
    )]
    NotWriter,
    /// A reader that the buffer should be kept for is not connected.
    #[error(
        "{reader} is not connected: name only readers that `readers` returns; a process that has read nothing yet must call \
         connect first"
    )]
    NotConnected {
        /// The reader.
        reader: String,
    },
    /// The list of readers is empty.
    #[error("the list of readers is empty: name at least one, or use the count (set_ref_count)")]
    NoReaders,
    /// This is a forked child, which has no buffers of its parent's pool.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
}

impl From<AcquireError> for WriteAccessError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Exhausted {
                pool,
                slots: buffers,
                max_slots: max_buffers,
                shortage: None,
                ..
            } => Self::Full {
                // Users know the name of the buffer pool, not that of the process's own pool.
                pool: name_of(&pool).unwrap_or(&pool).to_owned(),
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
    /// Nothing is published with that number, or not any more.
    #[error(
        "there is nothing to read in buffer {index}: it is not published yet, it has been read as often as its count says, or \
         the number is from an earlier use"
    )]
    Empty {
        /// The buffer.
        index: u32,
    },
    /// The process that wrote the buffer has ended, or never existed.
    #[error(
        "no running process of pool {pool:?} has written buffer {index}: a buffer can be read while the process that wrote it \
         runs (wait_until_read)"
    )]
    NoWriter {
        /// The buffer.
        index: u32,
        /// The pool.
        pool: String,
    },
    /// This process's budget is used up.
    #[error(
        "this process may hold {budget} buffers of this writer at once: drop one first, or open the pool with a larger \
         max_held, here and in the process that writes them"
    )]
    OverBudget {
        /// The maximum number of buffers of one process that it may hold.
        budget: u32,
    },
    /// The process that wrote the buffer could not be joined.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The process that wrote the buffer did not answer, or its description of the buffer is invalid.
    #[error("cannot get the buffer from the process that wrote it: {0}")]
    Receive(#[from] ReceiveError),
}

/// A buffer cannot be used in this way.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// The guard is for reading.
    #[error("the buffer is read-only: use get_mut or acquire_cpu to write")]
    ReadOnly,
    /// The buffer is on a device.
    #[error("the buffer is on a CUDA device: use as_cuda_ptr, or copy_to_cpu")]
    OnDevice,
    /// The buffer is being written, so no second reference is possible.
    #[error("the buffer is still being written: publish it with forget before you share it")]
    Writing,
}

/// A buffer's count could not be set.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefCountError {
    /// A count below one.
    #[error("the count is {0}: set it to the number of reads to come, which is at least 1")]
    BadCount(i32),
    /// This process neither writes nor has published the buffer.
    #[error(
        "this process cannot set the count of buffer {0}: another process wrote it, or it is empty"
    )]
    NotYours(u32),
}
