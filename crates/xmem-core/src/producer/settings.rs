// SPDX-License-Identifier: MPL-2.0

//! The settings of a pool, with their defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::event::ConsumerEvent;
use crate::delivery::Delivery;
use crate::region::Backing;
use crate::region::device::mode::Mode;

pub(super) type OnConsumer = Arc<dyn Fn(ConsumerEvent) + Send + Sync>;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) delivery: Delivery,
    pub(super) history: u32,
    pub(super) history_time: Duration,
    pub(super) min_slots: u32,
    pub(super) mixed_sizes: bool,
    pub(super) max_slots: u32,
    pub(super) max_bytes: u64,
    pub(super) max_consumers: u32,
    pub(super) max_held: u32,
    pub(super) backing: Backing,
    pub(super) access: Access,
    pub(super) lossless_timeout: Option<Duration>,
    pub(super) peers_may_write: bool,
    pub(super) on_consumer: Option<OnConsumer>,
    pub(super) cuda_mode: Mode,
    pub(super) release_timeout: Duration,
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
            min_slots: 0,
            mixed_sizes: false,
            max_slots: 256,
            max_bytes: 0,
            max_consumers: 256,
            max_held: 8,
            backing: Backing::Memfd,
            access: Access::default(),
            lossless_timeout: None,
            peers_may_write: false,
            on_consumer: None,
            cuda_mode: Mode::Auto,
            release_timeout: Duration::from_secs(5),
        }
    }
}
