// SPDX-License-Identifier: MPL-2.0

//! The settings of a pool, with their defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use xmem_shm::abi::layout::Shape;

use super::access::Access;
use super::event::ConsumerEvent;
use crate::delivery::Delivery;
use crate::region::Backing;
use crate::region::device::mode::Mode;

pub(super) type OnConsumer = Arc<dyn Fn(ConsumerEvent) + Send + Sync>;

/// The maximum number of entries that are kept for `history_time`.
pub(super) const KEPT_FOR_TIME: usize = 64;
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
    pub(in crate::producer) max_bytes: u64,
    pub(in crate::producer) max_consumers: u32,
    pub(in crate::producer) max_held: u32,
    pub(in crate::producer) backing: Backing,
    pub(in crate::producer) access: Access,
    pub(in crate::producer) lossless_timeout: Option<Duration>,
    pub(in crate::producer) on_consumer: Option<OnConsumer>,
    pub(in crate::producer) cuda_mode: Mode,
    pub(in crate::producer) release_timeout: Duration,
}

impl Settings {
    /// The sizes of control memory. The ring has room for the kept entries, for the entries that consumers may be behind, and
    /// for events between them. In a live pool further events displace frames.
    pub(in crate::producer) fn shape(&self) -> Shape {
        let kept = self.history.max(KEPT_FOR_TIME as u32);
        let behind = match self.delivery {
            Delivery::Live => MAX_BACKLOG,
            Delivery::Lossless => self.max_slots,
        };
        Shape {
            max_slots: self.max_slots,
            ring_len: (kept + behind + EVENTS_BETWEEN).next_power_of_two(),
            by_number: self.by_number,
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
            max_bytes: 0,
            max_consumers: 256,
            max_held: 8,
            backing: Backing::Memfd,
            access: Access::default(),
            lossless_timeout: None,
            on_consumer: None,
            cuda_mode: Mode::Auto,
            release_timeout: Duration::from_secs(5),
        }
    }
}
