// SPDX-License-Identifier: MPL-2.0

//! A handle to a slot. It keeps the slot from being written. The role that owns the handle counts it.

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use xmem_shm::abi::device_header::DeviceHeader;
use xmem_shm::abi::parts::Origin;

use crate::region::{Region, RegionView, device};

/// Counts the handles of this process to the slots of a pool: a consumer's leases, or the producer's pool. In a forked child
/// nothing is counted and no lock is taken, because the slots belong to its parent.
pub(crate) trait Holder: Any + Send + Sync {
    /// Adds a handle to a slot that has one.
    fn add(&self, slot: u32);

    /// Removes a handle. The last one gives the slot back.
    fn remove(&self, slot: u32);

    /// Whether the slot still has this frame. Generations are not reused.
    fn is_there(&self, slot: u32, generation: u32) -> bool;

    fn producer_is_gone(&self) -> bool;

    fn pool_name(&self) -> &str;

    fn pool_id(&self) -> u64;

    /// The pool's socket.
    fn socket_path(&self) -> &Path;
}

/// The region of a slot, in the producer or in a consumer.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    Own(Arc<Region>),
    Received(Arc<RegionView>),
}

/// A frame's slot, and its bytes in this process.
#[derive(Debug)]
pub(crate) struct SlotPlace {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// A handle that keeps a slot from being written. The slot is given back when its last handle is dropped.
pub(crate) struct Hold {
    holder: Arc<dyn Holder>,
    place: SlotPlace,
    /// `false`: another process has the lease, or a device ends it.
    is_counted: bool,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("slot", &self.place.slot)
            .field("generation", &self.place.generation)
            .finish_non_exhaustive()
    }
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        if self.is_counted {
            self.holder.add(self.place.slot);
        }
        Self {
            holder: self.holder.clone(),
            place: SlotPlace {
                memory: self.place.memory.clone(),
                ..self.place
            },
            is_counted: self.is_counted,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_counted {
            self.holder.remove(self.place.slot);
        }
    }
}

impl Hold {
    /// A handle that `holder` has already counted.
    pub(crate) fn new(holder: Arc<dyn Holder>, place: SlotPlace) -> Self {
        Self {
            holder,
            place,
            is_counted: true,
        }
    }

    /// A handle that is not counted, to a frame that another process holds.
    pub(crate) fn unleased(holder: Arc<dyn Holder>, place: SlotPlace) -> Self {
        Self {
            holder,
            place,
            is_counted: false,
        }
    }

    /// The holder that counts the handle, if it is of this type.
    pub(crate) fn holder<H: Holder>(&self) -> Option<Arc<H>> {
        let holder: Arc<dyn Any + Send + Sync> = self.holder.clone();
        holder.downcast().ok()
    }

    pub(crate) fn is_of<H: Holder>(&self, holder: &Arc<H>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.holder), Arc::as_ptr(holder))
    }

    pub(crate) fn slot(&self) -> u32 {
        self.place.slot
    }

    pub(crate) fn generation(&self) -> u32 {
        self.place.generation
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.place.memory
    }

    /// The slot's first byte in its region.
    pub(crate) fn offset(&self) -> usize {
        self.place.offset
    }

    /// The slot's size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.place.len
    }

    /// The slot's first byte.
    pub(crate) fn ptr(&self) -> *const u8 {
        let start = match &self.place.memory {
            Memory::Own(region) => region.ptr(),
            Memory::Received(view) => view.ptr(),
        };
        start.wrapping_add(self.place.offset).cast_const()
    }

    /// The header of the slot's region, if the region is on a device.
    pub(crate) fn device_header(&self) -> Option<&DeviceHeader> {
        match &self.place.memory {
            Memory::Own(region) => region.cuda().map(device::Owned::header),
            Memory::Received(view) => view.cuda().map(device::View::header),
        }
    }

    /// The maximum size of a payload, if it is on a device.
    pub(crate) fn device_len(&self) -> Option<usize> {
        usize::try_from(self.device_header()?.device_stride).ok()
    }

    /// Whether it is the producer's own reference.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.place.memory, Memory::Own(_))
    }

    /// Whether this handle keeps the slot. Otherwise another process does.
    pub(crate) fn is_lease(&self) -> bool {
        self.is_counted
    }

    /// Whether the slot still has the frame. With a lease it always has. Without one, all bytes that were read before this call
    /// belonged to the frame if it returns true.
    pub(crate) fn is_intact(&self) -> bool {
        self.is_counted || self.holder.is_there(self.place.slot, self.place.generation)
    }

    pub(crate) fn producer_is_gone(&self) -> bool {
        self.holder.producer_is_gone()
    }

    pub(crate) fn pool_name(&self) -> &str {
        self.holder.pool_name()
    }

    /// The slot, and the socket of its pool.
    pub(crate) fn origin(&self) -> (Origin, &Path) {
        let origin = Origin {
            pool_id: self.holder.pool_id(),
            slot: self.place.slot,
            generation: self.place.generation,
        };
        (origin, self.holder.socket_path())
    }
}
