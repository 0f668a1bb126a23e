// SPDX-License-Identifier: MPL-2.0

//! The requirements of a slot.

use super::devices;
use crate::error::AcquireError;
use crate::producer::pool::slots::Want;
use crate::region::device::Device;

/// The requirements by which [`Producer::acquire`](crate::Producer::acquire) finds a slot: the size of the frame and others. A
/// number converts into a spec: that many bytes of payload in host memory.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let pool = dir.path().join("p.sock");
/// # let pool = pool.to_str().unwrap();
/// use xmem_core::{FrameMeta, Producer, SlotSpec};
///
/// let producer = Producer::builder(pool).build()?;
/// let mut meta = FrameMeta::new(4096);
/// meta.attachments.set("note", "a kitten");
/// let slot = producer.acquire(SlotSpec::new(4096).attachments(meta.attachments.encoded_len()))?;
/// slot.publish(meta)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct SlotSpec {
    size: usize,
    room: usize,
    is_ahead: bool,
    device: Option<Device>,
    /// The frame is in other memory of the device. The slot has only its event.
    is_event: bool,
}

impl From<usize> for SlotSpec {
    fn from(size: usize) -> Self {
        Self::new(size)
    }
}

impl SlotSpec {
    /// For a frame of this many bytes, at least 1.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            room: 0,
            is_ahead: false,
            device: None,
            is_event: false,
        }
    }

    /// For a frame that is in [imported device memory](crate::Producer::import_cuda). The slot has no payload, only the
    /// event that consumers' streams wait for. It needs room for the [parts](crate::Parts::room) of the frame.
    #[cfg(feature = "cuda")]
    pub fn device_event(device: &Device) -> Self {
        Self {
            is_event: true,
            ..Self::new(0).on(device)
        }
    }

    /// With room for [attachments](crate::FrameMeta::attachments) of this many bytes, in host memory. Default: 0.
    pub fn attachments(self, room: usize) -> Self {
        Self { room, ..self }
    }

    /// For a frame that does not exist yet, where the caller has other memory if there is no slot. Frames of this size
    /// that are kept for consumers stay.
    pub fn ahead(self) -> Self {
        Self {
            is_ahead: true,
            ..self
        }
    }

    /// With the payload on this CUDA device.
    #[cfg(feature = "cuda")]
    pub fn on(self, device: &Device) -> Self {
        Self {
            device: Some(device.clone()),
            ..self
        }
    }

    /// The device of the payload.
    pub(super) fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn want(&self) -> Result<Want, AcquireError> {
        if self.size == 0 && !self.is_event {
            return Err(AcquireError::ZeroSize);
        }
        let device = self.device.as_ref().map(devices::ordinal).transpose()?;
        Ok(Want {
            size: self.size,
            room: self.room,
            device,
            is_ahead: self.is_ahead,
        })
    }
}
