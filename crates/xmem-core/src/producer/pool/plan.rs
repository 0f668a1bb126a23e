// SPDX-License-Identifier: MPL-2.0

//! The sizes of a region that will be allocated, and the rules for which frames fit into its slots.

use xmem_shm::abi::device_header::{SLOT_HEAD, header_len};

use super::slots::{DevicePlace, Place, Want};

/// From this size on a slot has exactly the size of its frames, because raw video has one size. Smaller sizes vary (encoded
/// data), so slots are rounded up to powers of two and can be reused.
pub(super) const EXACT_FROM: usize = 256 << 10;
/// A region gets no more slots than fit into this size.
const REGION_LEN: usize = 64 << 20;

/// A region that will be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct Plan {
    pub(in crate::producer) slots: u32,
    /// The size of a slot in the memory of the payload, in bytes.
    pub(in crate::producer) slot_len: usize,
    /// For a payload on a device: the number of the device, and the size of a slot in the host half.
    pub(in crate::producer) device: Option<(u16, usize)>,
}

/// Slots of one class are alike: the size of the payload's memory, and the number of its device if it is on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::producer) struct SlotClass {
    slot_len: usize,
    device: Option<u16>,
}

impl SlotClass {
    /// Whether slots of this class have a payload of this size.
    pub(in crate::producer) fn has_size(self, payload_len: usize) -> bool {
        self.slot_len == payload_len
    }
}

impl Plan {
    /// A region with one slot for such frames. `None`: the size exceeds the address space.
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

    pub(super) fn class(self) -> SlotClass {
        SlotClass {
            slot_len: self.slot_len,
            device: self.device.map(|(device, _)| device),
        }
    }

    /// The maximum number of such slots in a region, at least one.
    pub(super) fn most_slots(self) -> u32 {
        let most = REGION_LEN / self.slot_len.max(1);
        u32::try_from(most).unwrap_or(u32::MAX).max(1)
    }

    /// The size of a slot in all memories.
    pub(super) fn slot_bytes(self) -> u64 {
        self.slot_len as u64 + self.device.map_or(0, |(_, host_stride)| host_stride as u64)
    }

    /// The size in host memory.
    pub(in crate::producer) fn len(self) -> usize {
        match self.device {
            None => self.slots as usize * self.slot_len,
            Some((_, host_stride)) => header_len(self.slots) + self.slots as usize * host_stride,
        }
    }

    /// The approximate size in all memories.
    pub(super) fn bytes(self) -> u64 {
        let on_device = self
            .device
            .map_or(0, |_| self.slots as usize * self.slot_len);
        self.len() as u64 + on_device as u64
    }

    /// The places of its slots.
    pub(super) fn places(self, region: u32) -> impl ExactSizeIterator<Item = Place> {
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

    /// Whether such frames fit into its slots.
    pub(super) fn takes(self, want: Want) -> bool {
        self.places(0).next().is_some_and(|place| want.fits(place))
    }
}

impl Want {
    /// The class of new slots for such frames. `None`: the size exceeds the address space.
    pub(in crate::producer) fn class(self) -> Option<SlotClass> {
        Plan::of_one_slot(self).map(Plan::class)
    }

    /// The size of a slot for such a frame, in all memories.
    pub(in crate::producer) fn slot_bytes(self) -> u64 {
        Plan::of_one_slot(self).map_or(u64::MAX, Plan::slot_bytes)
    }

    /// Whether a place fits such a frame without wasting memory.
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

/// Whether a frame of `size` bytes fits into a slot without wasting memory.
fn fits(slot_len: usize, size: usize) -> bool {
    size <= slot_len && slot_len <= size.saturating_mul(4).max(64 << 10)
}

/// `None`: the size exceeds the address space.
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

/// The size of a slot in the host half of a CUDA region: the slot head, and room for attachments.
fn host_stride_for(room: usize) -> Option<usize> {
    SLOT_HEAD.checked_add(room)?.checked_next_multiple_of(4096)
}
