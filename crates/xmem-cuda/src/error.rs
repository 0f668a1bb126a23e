// SPDX-License-Identifier: MPL-2.0

//! The errors of devices. Each message names the remedy.

use thiserror::Error;

use xmem_shm::abi::device_header::Uuid;

/// An operation on a CUDA device failed. Pools in host memory are never affected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no usable driver.
    #[error(
        "there is no usable CUDA driver ({reason}): install NVIDIA's driver, or give this container access to it"
    )]
    NoDriver {
        /// The attempts to load it.
        reason: String,
    },
    /// The driver has no function with this name.
    #[error("the CUDA driver is too old, because it has no {symbol}: update it")]
    DriverTooOld {
        /// The function.
        symbol: &'static str,
    },
    /// There is no device with this number.
    #[error(
        "there is no CUDA device {ordinal}: this process sees {count}; choose another one, or check CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The requested number.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The frame is on a device that this process does not see.
    #[error(
        "the frame is on device {uuid}, which this process cannot see: add that device to CUDA_VISIBLE_DEVICES"
    )]
    WrongDevice {
        /// The device.
        uuid: Uuid,
    },
    /// The device has no memory left.
    #[error("the device has no room for {size} bytes: free memory there, or lower max-slots")]
    OutOfMemory {
        /// The requested size, in bytes.
        size: usize,
    },
    /// A kernel of this process failed, so no call in its context succeeds any more.
    #[error(
        "CUDA is in error in this process ({name}), because a kernel failed: start the process again"
    )]
    ContextInError {
        /// The driver's name of the error.
        name: String,
    },
    /// The frame's producer is gone, and it is not known whether its work on the frame has ended.
    #[error("the frame's producer is gone and may not have finished it: drop the frame")]
    ExporterGone,
    /// The context of the frame's producer is in error, so its work on the frame never ends.
    #[error(
        "a kernel of the frame's producer failed, so it could not finish the frame: drop the frame"
    )]
    Unfinished,
    /// The frame's memory cannot be used in this process.
    #[error("the frame's device memory cannot be used here: {why}")]
    NotImportable {
        /// The reason, and the remedy.
        why: String,
    },
    /// The imported memory is not the producer's.
    #[error(
        "the imported device memory is not the producer's (its canary differs): both processes must see the same device, and \
         for legacy handles share a PID namespace"
    )]
    Canary,
    /// The frame or slot is not on a device.
    #[error("this frame is in host memory: read it there")]
    NotOnDevice,
    /// The frame or slot is on a device.
    #[error("this frame is on a device: use cuda()")]
    OnDevice,
    /// The guard is for reading.
    #[error("this buffer is read-only: use get_mut or acquire_cuda to write")]
    ReadOnly,
    /// The buffer is being written.
    #[error("the buffer is still being written: publish it with forget before you read it")]
    Writing,
    /// The memory is on a device other than the requested one.
    #[error("this memory is on device {actual}, not on the requested device {asked}")]
    OtherDevice {
        /// The device of the memory.
        actual: u32,
        /// The requested device.
        asked: u32,
    },
    /// The bytes to copy are outside of the frame or the slot.
    #[error(
        "the copy reaches beyond the end of the frame, the slot or the given memory: check the offset and the size"
    )]
    OutOfBounds,
    /// The stream is being captured. Work on it would run with the graph: never, once or repeatedly.
    #[error(
        "this stream is being captured into a graph: publish frames, wait for them, copy and release them outside of the capture"
    )]
    Captured,
    /// The device or its driver cannot do this.
    #[error("this device or its driver cannot {what}")]
    Unsupported {
        /// The missing capability.
        what: &'static str,
    },
    /// The description of another process's memory is invalid.
    #[error("the producer described its device memory wrongly: {0}")]
    Corrupt(&'static str),
    /// The memory's region was removed, or the pool is closed.
    #[error("this memory has been freed")]
    Gone,
    /// The handle was inherited through fork.
    #[error("a forked process cannot use CUDA: start a new process instead")]
    Forked,
    /// A call of the driver failed.
    #[error("cannot {what}: the CUDA driver returned {name} ({code})")]
    Driver {
        /// The attempted operation.
        what: &'static str,
        /// The driver's number of the error.
        code: u32,
        /// The driver's name of the error.
        name: String,
    },
}

// These codes are numbers and not an enum, because a newer driver may return others.

/// CUDA_ERROR_OUT_OF_MEMORY
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// CUDA_ERROR_INVALID_CONTEXT
pub(crate) const INVALID_CONTEXT: u32 = 201;
/// CUDA_ERROR_ALREADY_MAPPED
pub(crate) const ALREADY_MAPPED: u32 = 208;
/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
/// CUDA_ERROR_CONTEXT_IS_DESTROYED
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
/// CUDA_ERROR_NOT_READY
pub(crate) const NOT_READY: u32 = 600;

/// Whether no work runs in a context after this error.
pub fn is_fatal(code: u32) -> bool {
    // Uncorrectable ECC errors, contained errors, NVLink errors, errors of failed kernels, a client that the MPS server has
    // terminated (810), and an error of an external device (911). Not the error that the driver is being unloaded (4): its
    // devices may still run. Nor a destroyed context (709): see `in_context` in `device.rs`.
    matches!(
        code,
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911
    )
}

impl CudaError {
    /// The driver's number of a [`Driver`](Self::Driver) error.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Driver { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a call of the driver failed with this number.
    pub fn is(&self, code: u32) -> bool {
        self.code() == Some(code)
    }
}
