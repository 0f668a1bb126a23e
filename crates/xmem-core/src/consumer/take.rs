// SPDX-License-Identifier: MPL-2.0

//! Takes the frame of an entry: its sticky state, its region, its lease, its parts.

use std::sync::{Arc, Weak};

use xmem_shm::abi::entry::Entry;
use xmem_shm::abi::named::Sticky;
use xmem_shm::abi::parts::PartPlace;
use xmem_shm::bounds::is_range_inside;
use xmem_shm::os::clock::Deadline;
use xmem_shm::prefetch;

use super::leases::{Purpose, TakeError};
use super::session::Session;
use crate::cancel::Canceller;
use crate::error::ReceiveError;
use crate::frame::hold::{Memory, SlotPlace};
use crate::frame::lease::{Described, Descriptions, Malformed, ReadLease};
use crate::frame::parts::Part;
use crate::region::RegionView;

impl From<Malformed> for ReceiveError {
    fn from(Malformed(what): Malformed) -> Self {
        Self::Corrupt(what)
    }
}

/// How a frame is taken: its purpose, and the time limit.
pub(super) struct Take<'a> {
    pub(super) session: &'a Session,
    pub(super) purpose: Purpose,
    /// Frames in parts are received as parts.
    pub(super) wants_parts: bool,
    /// Frames are received as DMA buffers.
    pub(super) wants_dmabuf: bool,
    pub(super) deadline: Deadline,
    pub(super) cancel: &'a Canceller,
}

/// What a consumer keeps of its last frame. The next one mostly has the same sticky state, and lies in the same region.
#[derive(Debug, Default)]
pub(super) struct Kept {
    descriptions: Descriptions,
    sticky: Option<(u64, Arc<Sticky>)>,
    /// Does not keep the region mapped.
    view: (u32, Weak<RegionView>),
    slot: u32,
}

impl Kept {
    /// The slot of the last frame. The words of the next slot are mostly in the same cache lines.
    pub(super) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Take<'_> {
    /// Takes the frame of an entry, with its description. `None`: the slot has another frame.
    pub(super) fn frame(
        &self,
        entry: &Entry,
        described: Described<'_>,
        kept: &mut Kept,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        if entry.generation() == 0 {
            return Err(ReceiveError::Corrupt("an entry without a generation"));
        }
        if kept.slot != entry.slot() {
            kept.slot = entry.slot();
            self.session.leases().expect(kept.slot);
        }
        let Some(sticky) = self.sticky(entry.sticky_version(), &mut kept.sticky)? else {
            return Ok(None);
        };
        let Some(shared) = self.session.connection().control().place(entry.slot()) else {
            return Ok(None);
        };
        let Some(view) = self.view(shared.region, &mut kept.view)? else {
            return Ok(None);
        };
        prefetch::to_read(view.ptr().wrapping_add(shared.offset as usize));
        let is_inside = is_range_inside(shared.offset, shared.len, view.len() as u64);
        let has_slots = view.has_slots();
        let place = SlotPlace {
            slot: entry.slot(),
            generation: entry.generation(),
            memory: Memory::Received(view),
            offset: shared.offset as usize,
            len: shared.len as usize,
        };
        match self.session.leases().take(place, self.purpose) {
            // Checked after the lease was taken, because only then the place is known to be that of this frame.
            Ok(_) if !is_inside => Err(ReceiveError::Corrupt("a slot lies outside its region")),
            Ok(_) if !has_slots => Err(ReceiveError::Corrupt("a slot lies in imported memory")),
            Ok(held) => {
                let info = entry.info(shared.storage, shared.device_id);
                let find_parts = |places| self.parts(places);
                let kept = &mut kept.descriptions;
                let lease = ReadLease::new(kept, held, entry, info, described, sticky, &find_parts);
                if self.wants_dmabuf {
                    return self.as_dmabuf(shared.region, lease?);
                }
                lease
            }
            Err(TakeError::Gone) => Ok(None),
            Err(TakeError::OverBudget) => {
                self.session.connection().warn_of_budget();
                Err(self.over_budget())
            }
        }
    }

    /// The sticky state of this version. `None`: the producer does not have it any more.
    fn sticky<'a>(
        &self,
        version: u64,
        kept: &'a mut Option<(u64, Arc<Sticky>)>,
    ) -> Result<Option<&'a Arc<Sticky>>, ReceiveError> {
        if kept.as_ref().is_none_or(|(kept, _)| *kept != version) {
            let stickies = self.session.connection().stickies();
            let sticky = stickies.get(version, self.deadline, self.cancel)?;
            *kept = sticky.map(|sticky| (version, sticky));
        }
        Ok(kept.as_ref().map(|(_, sticky)| sticky))
    }

    /// The mapped region with this ID. `None`: it is retired.
    fn view(
        &self,
        id: u32,
        kept: &mut (u32, Weak<RegionView>),
    ) -> Result<Option<Arc<RegionView>>, ReceiveError> {
        if kept.0 == id
            && let Some(view) = kept.1.upgrade()
        {
            return Ok(Some(view));
        }
        let view = self.session.regions().get(id, self.deadline, self.cancel)?;
        if let Some(view) = &view {
            *kept = (id, Arc::downgrade(view));
        }
        Ok(view)
    }

    #[cold]
    fn over_budget(&self) -> ReceiveError {
        ReceiveError::OverBudget {
            budget: self.session.connection().budget(),
        }
    }

    /// Gets the slot of a held frame as a DMA buffer, if the frame is in its slot. `None`: the producer is gone.
    #[cold]
    fn as_dmabuf(
        &self,
        region: u32,
        lease: Option<ReadLease>,
    ) -> Result<Option<ReadLease>, ReceiveError> {
        let Some(lease) = lease else {
            return Ok(None);
        };
        let meta = lease.meta();
        let is_there = match lease.hold().memory() {
            Memory::Received(view) if !meta.event && lease.parts().is_empty() => {
                let start = lease.hold().offset() as u64 + meta.offset;
                self.get_dmabuf(region, view, start, meta.size)?
            }
            _ => true,
        };
        Ok(is_there.then_some(lease))
    }

    /// Gets bytes of a held frame as a DMA buffer. `false`: the producer is gone.
    fn get_dmabuf(
        &self,
        region: u32,
        view: &Arc<RegionView>,
        start: u64,
        size: u64,
    ) -> Result<bool, ReceiveError> {
        let no = |reason: &str| Err(ReceiveError::NoDmabuf(reason.to_owned()));
        if size == 0 {
            return Ok(true);
        }
        if view.cuda().is_some() {
            return no("it is on a CUDA device");
        }
        if let Some(imported) = view.imported() {
            return match imported.is_dmabuf() {
                true => Ok(true),
                false => no(
                    "it is in memory that its pool did not make, such as that of the pool that it was forwarded from: receive it there",
                ),
            };
        }
        // Inside of the region, as the caller has checked.
        let bytes = start as usize..(start + size) as usize;
        let (deadline, cancel) = (self.deadline, self.cancel);
        let regions = self.session.regions();
        regions.get_dmabuf(region, view, &bytes, deadline, cancel)
    }

    /// The parts of a held frame. `None`: one is gone, or the caller does not receive parts.
    #[cold]
    fn parts(&self, places: Vec<PartPlace>) -> Result<Option<Vec<Part>>, ReceiveError> {
        let (deadline, cancel) = (self.deadline, self.cancel);
        let mut parts = Vec::with_capacity(places.len());
        for place in places {
            let Some(view) = self.session.regions().get(place.region, deadline, cancel)? else {
                return Ok(None);
            };
            let held_there = match place.origin {
                Some(origin) => {
                    let origins = self.session.origins();
                    match origins.hold(origin, &view, self.purpose, deadline, cancel)? {
                        Ok(held) => Some(held),
                        Err(TakeError::Gone) => return Ok(None),
                        Err(TakeError::OverBudget) => return Err(self.over_budget()),
                    }
                }
                None => None,
            };
            let (region, start, size) = (place.region, place.offset, place.size);
            let part = Part::new(view, place, held_there)
                .ok_or(ReceiveError::Corrupt("a part lies outside its region"))?;
            if self.wants_dmabuf && !self.get_dmabuf(region, part.view(), start, size)? {
                return Ok(None);
            }
            parts.push(part);
        }
        if self.wants_parts {
            return Ok(Some(parts));
        }
        if parts.iter().all(Part::is_on_device) {
            // The payload is for the device.
            return Ok(Some(parts));
        }
        let readable = match parts.as_slice() {
            [part] => part.map().map(drop).map_err(|error| error.to_string()),
            parts => Err(format!("it is in {} parts", parts.len())),
        };
        match readable {
            Ok(()) => Ok(Some(parts)),
            Err(reason) => {
                log::warn!(
                    "pool {:?}: missing a frame, because {reason}: set `parts` to receive such frames",
                    self.session.connection().pool_name()
                );
                Ok(None)
            }
        }
    }
}
