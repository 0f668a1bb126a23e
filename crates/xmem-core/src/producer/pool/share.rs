// SPDX-License-Identifier: MPL-2.0

//! How the slots that consumers may hold are shared out among them.
//!
//! Every consumer has the budget that it asked for, but at most the share of all, which is in control memory. Besides the
//! budgets, one slot more is set aside for each consumer, for a frame that it looks at past its budget. The share is the
//! largest with which all of this fits into `max_slots`, and the budgets into `max_bytes`. It is computed anew when a
//! consumer comes or goes, when a region is made, and every 64 frames. Slots that a consumer holds from before stay its
//! own, and count in place of its budget.

use xmem_shm::abi::budget::{BudgetLimit, Share};
use xmem_shm::abi::layout::Control;
use xmem_shm::sync::{Ordering, fence};

use super::consumer::Claim;
use super::consumers::Consumers;
use super::event::Cut;
use super::regions::Regions;
use super::settings::Settings;
use super::slots::{Place, Slots};

/// The slots left for an upstream whose need is not known: as many as a decoder usually needs.
const LIKELY_UPSTREAM_NEED: u32 = 16;

/// The values that the shares depend on, besides the settings.
#[derive(Debug, Default)]
pub(in crate::producer) struct Shares {
    /// Slots for buffers that upstream keeps. `None`: not known yet.
    upstream_need: Option<u32>,
    /// The smallest share that was reported.
    least: Option<u32>,
}

impl Shares {
    pub(in crate::producer) fn set_upstream_need(&mut self, slots: u32) {
        self.upstream_need = Some(slots);
    }

    /// Slots for buffers that upstream keeps, as far as that is known.
    pub(in crate::producer) fn upstream_need(&self) -> u32 {
        self.upstream_need.unwrap_or(0)
    }

    /// Gives each consumer its budget, for as many as there are now. Returns the cut to report.
    pub(super) fn share_out(
        &mut self,
        control: &Control,
        settings: &Settings,
        consumers: &Consumers,
        regions: &Regions,
        slots: &Slots,
    ) -> Option<Cut> {
        if settings.by_number {
            // No process promises another one anything: each may hold all buffers.
            consumers
                .iter()
                .for_each(|consumer| consumer.reserve(u32::MAX));
            return None;
        }
        let largest = || self.largest(control, settings, consumers, regions, slots);
        let mut share = largest();
        loop {
            let is_smaller = share.most < control.share().most;
            control.set_share(share);
            if !is_smaller {
                break;
            }
            // Frames may have been taken within the larger budget since the leases were counted. Pairs with the fence in
            // `lease::hold`: either such a lease is visible now, or its holder sees the smaller budget and withdraws.
            fence(Ordering::SeqCst);
            let again = largest();
            if again.most >= share.most {
                break;
            }
            share = again;
        }
        for consumer in consumers.iter() {
            consumer.reserve(share.most);
        }
        let is_less = share.most < self.least.unwrap_or(u32::MAX);
        let is_news = self.least.is_none() || share.most == 0;
        (is_less && is_news).then(|| {
            self.least = Some(share.most);
            Cut {
                budget: share.most,
                consumers: consumers.len() as u32,
                limit: share.limit,
            }
        })
    }

    /// The largest share that there is room for.
    fn largest(
        &self,
        control: &Control,
        settings: &Settings,
        consumers: &Consumers,
        regions: &Regions,
        slots: &Slots,
    ) -> Share {
        let claims: Vec<_> = consumers.iter().map(|consumer| consumer.claim()).collect();
        // One slot is being written, and the producer may keep the one before.
        let unknown = (settings.max_slots / 8).min(LIKELY_UPSTREAM_NEED);
        let others = self.upstream_need.unwrap_or(unknown) + settings.history + 2;
        let left = settings.max_slots.saturating_sub(others);
        let by_slots = Share {
            most: largest(&claims, left, |share| {
                claims
                    .iter()
                    .map(|claim| u64::from(claim.slots(share)))
                    .sum()
            }),
            limit: BudgetLimit::MaxSlots,
        };
        let by_bytes = regions.room().map(|room| {
            // Here the history gives way, so nothing is set aside for it, nor for frames past a budget.
            let left = room.slots.saturating_sub(2);
            let place = |slot| slots.get(slot).and_then(|info| info.place);
            let held: Vec<u64> = consumers
                .iter()
                .map(|consumer| {
                    let places = consumer.held(control).filter_map(place);
                    let bytes: u64 = places.map(Place::bytes).sum();
                    bytes.div_ceil(room.slot_bytes)
                })
                .collect();
            Share {
                most: largest(&claims, left, |share| {
                    let each = claims.iter().zip(&held);
                    each.map(|(claim, held)| {
                        u64::from(claim.budget(share)).max((*held).min(claim.kept_budget().into()))
                    })
                    .sum()
                }),
                limit: BudgetLimit::MaxBytes,
            }
        });
        let share = match by_bytes {
            Some(by_bytes) if by_bytes.most < by_slots.most => by_bytes,
            _ => by_slots,
        };
        if share.most == u32::MAX {
            Share::ALL
        } else {
            share
        }
    }
}

/// The largest share with which no more than `left` slots are taken; `u32::MAX` where there is room for all that was asked for.
fn largest(claims: &[Claim], left: u32, taken: impl Fn(u32) -> u64) -> u32 {
    let asked = claims.iter().map(|claim| claim.asked).max().unwrap_or(0);
    match (0..=asked).find(|share| taken(*share) > left.into()) {
        None => u32::MAX,
        Some(too_many) => too_many.saturating_sub(1),
    }
}
