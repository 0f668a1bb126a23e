// SPDX-License-Identifier: MPL-2.0

//! The producer's private state of a pool. [`Guard`](super::guard::Guard) holds its lock.

use super::consumers::Consumers;
use super::history::History;
use super::layouts::Layouts;
use super::reach::Origins;
use super::regions::Regions;
use super::settings::Settings;
use super::share::Shares;
use super::slots::Slots;
use super::sticky_log::StickyLog;

/// The parts of the state. Each keeps its own invariants. Operations that involve several are methods of the guard.
#[derive(Debug)]
pub(in crate::producer) struct State {
    pub(in crate::producer) slots: Slots,
    pub(in crate::producer) regions: Regions,
    pub(in crate::producer) consumers: Consumers,
    pub(in crate::producer) history: History,
    pub(in crate::producer) shares: Shares,
    pub(in crate::producer) layouts: Layouts,
    pub(in crate::producer) sticky: StickyLog,
    pub(in crate::producer) origins: Origins,
    /// The number of published events.
    pub(in crate::producer) events: u64,
}

impl State {
    pub(super) fn new(settings: &Settings, sticky: StickyLog) -> Self {
        Self {
            slots: Slots::new(settings.most_slots(0)),
            regions: Regions::new(settings.mixed_sizes, settings.max_bytes),
            consumers: Consumers::new(),
            history: History::new(settings),
            shares: Shares::default(),
            layouts: Layouts::default(),
            sticky,
            origins: Origins::default(),
            events: 0,
        }
    }
}
