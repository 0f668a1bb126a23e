// SPDX-License-Identifier: MPL-2.0

//! Keeps the memory of an array alive, and counts the views of other libraries.

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::cuda::CudaError;
use xmem_core::{AccessError, ProcessId, ReadLease};

use crate::device::{DeviceCopy, DeviceFrame, ReleaseWord, Use};
use crate::fork::check_process;
use crate::open_buffer::OpenBuffer;
use crate::slot::WriteSlot;

/// Keeps memory alive until its last view is dropped. Can be dropped without the interpreter.
#[derive(Debug, Clone)]
pub(crate) enum Keeper {
    /// A received frame, or the producer's own reference to a frame that it published.
    Lease(Held),
    /// A slot that is being written, or that was published.
    Slot(Arc<WriteSlot>),
    /// A copy.
    Private(#[expect(dead_code, reason = "kept, not read")] Arc<PrivateBytes>),
    /// A received frame on a device.
    Device(Arc<DeviceFrame>),
    /// A copy on a device.
    PrivateDevice(Arc<DeviceCopy>),
    /// A buffer by number, if it is in host memory or is being written.
    Buffer(Arc<OpenBuffer>),
}

/// A lease, and the process that holds the frame with it. In a forked child it holds nothing.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) lease: Arc<ReadLease>,
    process: ProcessId,
}

impl Held {
    pub(crate) fn new(lease: Arc<ReadLease>) -> Self {
        Self {
            lease,
            process: ProcessId::current(),
        }
    }
}

/// Private memory. Views write it through its address.
#[derive(Debug)]
pub(crate) struct PrivateBytes {
    /// Keeps the memory. Not used after `start` was taken.
    _bytes: Vec<u8>,
    start: usize,
}

impl PrivateBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self::from_offset(bytes, 0)
    }

    /// A copy whose first byte is aligned to `align`. `None`: there is no memory.
    pub(crate) fn aligned(bytes: &[u8], align: usize) -> Option<Self> {
        let mut copy: Vec<u8> = Vec::new();
        copy.try_reserve_exact(bytes.len().checked_add(align)?)
            .ok()?;
        let start = copy.as_ptr().addr();
        let before = start.next_multiple_of(align) - start;
        copy.resize(before, 0);
        copy.extend_from_slice(bytes);
        Some(Self::from_offset(copy, before))
    }

    fn from_offset(mut bytes: Vec<u8>, offset: usize) -> Self {
        let start = bytes.as_mut_ptr().expose_provenance() + offset;
        Self {
            _bytes: bytes,
            start,
        }
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.start)
    }
}

impl Keeper {
    /// Whether new views may write.
    pub(crate) fn is_writable(&self) -> bool {
        match self {
            Self::Lease(_) | Self::Device(_) => false,
            Self::Slot(slot) => slot.is_writing(),
            Self::Private(_) | Self::PrivateDevice(_) => true,
            Self::Buffer(buffer) => buffer.is_writable(),
        }
    }

    /// Whether a call can end its hold on the memory while the object exists, such as `publish` or `release`.
    pub(crate) fn ends_by_a_call(&self) -> bool {
        matches!(self, Self::Slot(_) | Self::Buffer(_))
    }

    /// Why a view may not write, for an error message.
    pub(crate) fn why_read_only(&self) -> String {
        match self {
            Self::Buffer(_) => AccessError::ReadOnly.to_string(),
            _ => "this frame is shared with other processes and read-only: write to frame.copy()"
                .into(),
        }
    }

    /// An error in a forked child, because its parent may write the bytes again. Frames on devices have their own checks.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        let process = match self {
            Self::Lease(held) => held.process,
            Self::Slot(slot) => slot.process(),
            Self::Private(_) | Self::Device(_) | Self::PrivateDevice(_) | Self::Buffer(_) => {
                return Ok(());
            }
        };
        check_process(process)
    }

    /// The number of the device of the bytes. `None`: host memory.
    pub(crate) fn device(&self) -> Option<u32> {
        match self {
            Self::Lease(_) | Self::Private(_) => None,
            Self::Slot(slot) => slot.device(),
            Self::Device(frame) => Some(frame.device().ordinal()),
            Self::PrivateDevice(memory) => Some(memory.device().ordinal()),
            Self::Buffer(buffer) => buffer.ordinal(),
        }
    }

    /// A word that holds bytes on a device until a kernel stores 0 to it.
    pub(crate) fn release_word(keepers: Vec<Self>) -> Result<ReleaseWord, CudaError> {
        let device = match keepers.first() {
            Some(Self::Device(frame)) => frame.device().clone(),
            Some(Self::PrivateDevice(copy)) => copy.device().clone(),
            _ => return Err(CudaError::NotOnDevice),
        };
        ReleaseWord::new(keepers, &device)
    }

    /// Waits until the bytes are written, for a reader without a stream.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Device(frame) => frame.wait(py),
            Self::Slot(slot) => slot.wait(py),
            Self::Lease(_) | Self::Private(_) | Self::PrivateDevice(_) | Self::Buffer(_) => Ok(()),
        }
    }

    /// Like `wait`, before the bytes are copied: also waits for views that write them.
    pub(crate) fn settle(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::PrivateDevice(copy) => copy.wait(py),
            _ => self.wait(py),
        }
    }

    /// Called for a new view on a device: its stream waits until the bytes are written, and the lease ends after that stream.
    pub(crate) fn give_to(&self, to: Use) -> Result<(), CudaError> {
        match self {
            Self::Device(frame) => frame.give_to(to),
            Self::Slot(slot) => slot.give_to(to),
            Self::PrivateDevice(copy) => {
                copy.give_to(to);
                Ok(())
            }
            Self::Buffer(buffer) => {
                buffer.give_to(to);
                Ok(())
            }
            Self::Lease(_) | Self::Private(_) => Ok(()),
        }
    }
}

/// A view of another library. A slot is not published while a writable view exists.
#[derive(Debug)]
pub(crate) struct Export {
    keeper: Keeper,
    writable: bool,
}

impl Export {
    /// A view. It is writable if the memory may be written now.
    pub(crate) fn new(keeper: &Keeper) -> PyResult<Self> {
        keeper.check_process()?;
        let writable = match keeper {
            Keeper::Slot(slot) => slot.begin_export()?,
            Keeper::Buffer(buffer) => {
                buffer.begin_view()?;
                buffer.is_writable()
            }
            keeper => keeper.is_writable(),
        };
        Ok(Self {
            keeper: keeper.clone(),
            writable,
        })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether a write would change the memory, even if it is not allowed.
    pub(crate) fn is_mapped_writable(&self) -> bool {
        match &self.keeper {
            Keeper::Lease(held) => held.lease.is_local(),
            Keeper::Device(frame) => frame.is_same_process(),
            Keeper::Buffer(buffer) => buffer.is_mapped_writable(),
            Keeper::Slot(_) | Keeper::Private(_) | Keeper::PrivateDevice(_) => true,
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        match &self.keeper {
            Keeper::Slot(slot) => slot.end_export(),
            Keeper::Buffer(buffer) => buffer.end_view(),
            _ => {}
        }
    }
}
