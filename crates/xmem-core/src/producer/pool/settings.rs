// SPDX-License-Identifier: MPL-2.0

//! The settings of a pool, with their defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::layout::Shape;
use xmem_shm::os::udmabuf::Udmabuf;

use super::access::Access;
use super::event::PoolEvent;
use crate::delivery::Delivery;
use crate::region::Backing;
use crate::region::device::mode::Mode;

pub(super) type OnEvent = Arc<dyn Fn(PoolEvent) + Send + Sync>;

/// The maximum number of entries that are kept for consumers which have not taken them yet. With room for the backlog and for
/// events, the ring has 1024 entries.
pub(super) const KEPT_FOR_TIME: usize = 1024 - MAX_BACKLOG as usize - EVENTS_BETWEEN as usize;
/// The maximum size of the slots of these entries.
pub(super) const KEPT_BYTES: u64 = 256 << 20;
/// The slots reserved for upstream if its need is not known: as many as a decoder usually needs.
pub(super) const LIKELY_UPSTREAM_NEED: u32 = 16;
/// Up to this size of a slot, the limit of slots is `small_slots`.
const SMALL: usize = 64 << 10;
/// How many frames the slowest consumer of a lossless pool may be behind before the producer waits.
pub(super) const MAX_BACKLOG: u32 = 8;
/// Room for events in the ring, in addition to the frames.
const EVENTS_BETWEEN: u32 = 64;

#[derive(Clone)]
pub(in crate::producer) struct Settings {
    pub(in crate::producer) delivery: Delivery,
    pub(in crate::producer) history: u32,
    pub(in crate::producer) history_time: Duration,
    /// Buffers are found by number.
    pub(in crate::producer) by_number: bool,
    pub(in crate::producer) min_slots: u32,
    pub(in crate::producer) mixed_sizes: bool,
    pub(in crate::producer) max_slots: u32,
    /// The limit for small slots. If it is not larger than `max_slots`, that applies.
    pub(in crate::producer) small_slots: u32,
    pub(in crate::producer) max_bytes: u64,
    pub(in crate::producer) max_consumers: u32,
    pub(in crate::producer) max_held: u32,
    pub(in crate::producer) backing: Backing,
    /// Whether consumers may have DMA buffers of slots, and what makes these.
    pub(in crate::producer) allow_dmabuf: bool,
    pub(in crate::producer) udmabuf: Option<Arc<Udmabuf>>,
    pub(in crate::producer) access: Access,
    pub(in crate::producer) lossless_timeout: Option<Duration>,
    pub(in crate::producer) on_event: Option<OnEvent>,
    pub(in crate::producer) cuda_mode: Mode,
    pub(in crate::producer) release_timeout: Duration,
}

impl Settings {
    /// The sizes of control memory. The ring has room for the kept entries, for the entries that consumers may be behind, and
    /// for events between them. In a live pool further events displace frames.
    pub(in crate::producer) fn shape(&self) -> Shape {
        let for_time = if self.keep_for() > 0 {
            KEPT_FOR_TIME
        } else {
            0
        };
        let kept = self.history.max(for_time as u32);
        let behind = match self.delivery {
            Delivery::Live => MAX_BACKLOG,
            Delivery::Lossless => self.max_slots,
        };
        Shape {
            max_slots: self.most_slots(0),
            ring_len: (kept + behind + EVENTS_BETWEEN).next_power_of_two(),
            by_number: self.by_number,
        }
    }

    /// How long frames beyond the promised ones are kept for a consumer that has not asked for more, in nanoseconds. 0: never, and
    /// a consumer cannot ask for more.
    pub(in crate::producer) fn keep_for(&self) -> u64 {
        match self.delivery {
            Delivery::Live => u64::try_from(self.history_time.as_nanos()).unwrap_or(u64::MAX),
            Delivery::Lossless => 0,
        }
    }

    /// The number of frames of this size that can be kept for a consumer that has not taken them.
    pub(in crate::producer) fn most_kept(&self, size: usize) -> u32 {
        if self.keep_for() == 0 {
            return self.history;
        }
        // The other slots are for upstream, and for one consumer with its full budget.
        let others = LIKELY_UPSTREAM_NEED + self.max_held + 2;
        let by_slots = self.most_slots(size).saturating_sub(others);
        let bytes = match self.max_bytes {
            0 => KEPT_BYTES,
            most => most
                .saturating_sub(u64::from(others) * size as u64)
                .min(KEPT_BYTES),
        };
        let by_bytes = bytes / (size as u64).max(1);
        let most = by_slots.min(KEPT_FOR_TIME as u32);
        most.min(u32::try_from(by_bytes).unwrap_or(u32::MAX))
            .max(self.history)
    }

    /// The maximum number of slots if a slot has this size.
    pub(in crate::producer) fn most_slots(&self, slot_size: usize) -> u32 {
        if slot_size <= SMALL {
            self.max_slots.max(self.small_slots)
        } else {
            self.max_slots
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("delivery", &self.delivery)
            .field("history", &self.history)
            .field("max_slots", &self.max_slots)
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            delivery: Delivery::Live,
            history: 4,
            history_time: Duration::ZERO,
            by_number: false,
            min_slots: 0,
            mixed_sizes: false,
            max_slots: 256,
            small_slots: 0,
            max_bytes: 0,
            max_consumers: 256,
            max_held: 8,
            backing: Backing::Memfd,
            allow_dmabuf: false,
            udmabuf: None,
            access: Access::default(),
            lossless_timeout: None,
            on_event: None,
            cuda_mode: Mode::Auto,
            release_timeout: Duration::from_secs(5),
        }
    }
}
