// SPDX-License-Identifier: MPL-2.0

//! A copy of a buffer in memory of this process's own: no other process can get it.

#[cfg(feature = "cuda")]
use crate::cuda::PrivateMemory;

#[derive(Debug)]
pub(super) enum PrivateCopy {
    Host(Vec<u8>),
    #[cfg(feature = "cuda")]
    Device(PrivateMemory),
}

impl PrivateCopy {
    pub(super) fn is_on_device(&self) -> bool {
        !matches!(self, Self::Host(_))
    }

    /// Empty if it lies on a device.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Host(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Self::Device(_) => &[],
        }
    }

    /// Empty if it lies on a device.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Host(bytes) => bytes,
            #[cfg(feature = "cuda")]
            Self::Device(_) => &mut [],
        }
    }

    /// The memory on a device. `None`: it lies in host memory.
    #[cfg(feature = "cuda")]
    pub(super) fn on_device(&self) -> Option<&PrivateMemory> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory),
        }
    }
}
