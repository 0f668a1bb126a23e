// SPDX-License-Identifier: MPL-2.0

//! The sizes of a region that is to be made, and which frames go into its slots.

use xmem_shm::abi::device_header::{SLOT_HEAD, header_len};

use super::slots::{DevicePlace, Place, Want};

/// From this size on a slot is exactly as large as its frames (raw video has one size). Below it, sizes vary (encoded
/// data), and slots are rounded up to powers of two so that they can be reused.
pub(super) const EXACT_FROM: usize = 256 << 10;
/// A region is not made larger than this to have more slots.
const REGION_LEN: usize = 64 << 20;

/// A region that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Plan {
    pub(in crate::producer) slots: u32,
    /// Bytes of a slot where the payload lies.
    pub(in crate::producer) slot_len: usize,
    /// If that is on a device: its number, and bytes of a slot in the host half.
    pub(in crate::producer) device: Option<(u16, usize)>,
}

impl Plan {
    /// A region with one slot for such frames. `None`: no address space has so much memory.
    pub(super) fn of_one_slot(want: Want) -> Option<Self> {
        let slot_len = match want.slot_size() {
            0 => 0,
            size => slot_len_for(size)?,
        };
        let device = match want.device {
            None => None,
            Some(device) => Some((device, host_stride_for(want.room)?)),
        };
        Some(Self {
            slots: 1,
            slot_len,
            device,
        })
    }

    /// How many such slots a region may have, at least one.
    pub(super) fn most_slots(self) -> u32 {
        let most = REGION_LEN / self.slot_len.max(1);
        u32::try_from(most).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes of a slot, in all memory.
    pub(super) fn slot_bytes(self) -> u64 {
        self.slot_len as u64 + self.device.map_or(0, |(_, host_stride)| host_stride as u64)
    }

    /// Bytes of host memory.
    pub(in crate::producer) fn len(self) -> usize {
        match self.device {
            None => self.slots as usize * self.slot_len,
            Some((_, host_stride)) => header_len(self.slots) + self.slots as usize * host_stride,
        }
    }

    /// Bytes of all memory, about.
    pub(super) fn bytes(self) -> u64 {
        let on_device = self
            .device
            .map_or(0, |_| self.slots as usize * self.slot_len);
        self.len() as u64 + on_device as u64
    }

    /// Where its slots lie.
    pub(super) fn places(self, region: u32) -> impl Iterator<Item = Place> {
        (0..self.slots).map(move |index| match self.device {
            None => Place {
                region,
                offset: index as usize * self.slot_len,
                len: self.slot_len,
                device: None,
            },
            Some((ordinal, host_stride)) => Place {
                region,
                offset: header_len(self.slots) + index as usize * host_stride,
                len: host_stride,
                device: Some(DevicePlace {
                    len: self.slot_len,
                    index,
                    ordinal,
                    events_only: self.slot_len == 0,
                }),
            },
        })
    }

    /// Whether such frames go into its slots.
    pub(super) fn takes(self, want: Want) -> bool {
        self.places(0).next().is_some_and(|place| want.fits(place))
    }
}

impl Want {
    /// Bytes of a slot that is made for such a frame, in all memory.
    pub(in crate::producer) fn slot_bytes(self) -> u64 {
        Plan::of_one_slot(self).map_or(u64::MAX, Plan::slot_bytes)
    }

    /// Whether a place can take such a frame without wasting it.
    pub(in crate::producer) fn fits(self, place: Place) -> bool {
        match (place.device, self.device) {
            (None, None) => fits(place.len, self.slot_size()),
            (Some(on), Some(device)) => {
                on.ordinal == device
                    && on.events_only == (self.size == 0)
                    && fits(on.len, self.size)
                    && place.len - SLOT_HEAD >= self.room
            }
            _ => false,
        }
    }
}

/// Whether a frame of `size` bytes goes into a slot without wasting it.
fn fits(slot_len: usize, size: usize) -> bool {
    size <= slot_len && slot_len <= size.saturating_mul(4).max(64 << 10)
}

/// `None`: no address space has so much memory.
fn slot_len_for(size: usize) -> Option<usize> {
    let page = rustix::param::page_size();
    let len = if size >= EXACT_FROM {
        size.checked_next_multiple_of(page)?
    } else {
        size.next_power_of_two().max(page)
    };
    // The largest file size that the kernel accepts.
    i64::try_from(len).ok().map(|_| len)
}

/// Bytes of a slot in the host half of a CUDA region: the frame's description, and room for attachments.
fn host_stride_for(room: usize) -> Option<usize> {
    SLOT_HEAD.checked_add(room)?.checked_next_multiple_of(4096)
}
