// SPDX-License-Identifier: MPL-2.0

//! Divides the slots that consumers may hold among them.
//!
//! The budget of a consumer is the requested one, limited by the share, which is in control memory. In addition, one slot is
//! reserved for each consumer, for a frame that it takes past its budget. The share is the largest one with which all of these
//! fit into `max_slots`, and the budgets into `max_bytes`. It is recomputed when a consumer joins or leaves, when a region is
//! allocated, and every 64 frames. Slots that a consumer already holds stay reserved, and count in place of its budget.

use xmem_shm::abi::budget::{BudgetLimit, Share};
use xmem_shm::abi::layout::Control;
use xmem_shm::sync::{Ordering, fence};

use super::consumer::Claim;
use super::consumer::Consumers;
use super::event::Cut;
use super::regions::Regions;
use super::settings::{LIKELY_UPSTREAM_NEED, Settings};
use super::slots::{Place, Slots};

/// The values besides the settings that the share depends on.
#[derive(Debug, Default)]
pub(in crate::producer) struct Shares {
    /// Slots for buffers that upstream holds. `None`: not known yet.
    upstream_need: Option<u32>,
    /// The number of slots that upstream may hold. `None`: not computed yet, so there is no limit.
    upstream_most: Option<u32>,
    /// The smallest share that was reported.
    least: Option<u32>,
}

impl Shares {
    pub(in crate::producer) fn set_upstream_need(&mut self, slots: u32) {
        self.upstream_need = Some(slots);
    }

    fn likely_upstream_need(&self, settings: &Settings) -> u32 {
        let unknown = (settings.max_slots / 8).min(LIKELY_UPSTREAM_NEED);
        self.upstream_need.unwrap_or(unknown)
    }

    /// Slots for buffers that upstream holds. 0 if not known.
    pub(in crate::producer) fn upstream_need(&self) -> u32 {
        self.upstream_need.unwrap_or(0)
    }

    /// The number of slots that upstream may hold. The others are for the history, for the consumers, and one for a frame that
    /// upstream has in other memory.
    pub(super) fn upstream_most(&self) -> u32 {
        self.upstream_most.unwrap_or(u32::MAX)
    }

    /// Computes the share for the present consumers. Returns a cut that is to be reported.
    pub(super) fn share_out(
        &mut self,
        control: &Control,
        settings: &Settings,
        consumers: &Consumers,
        regions: &Regions,
        slots: &Slots,
    ) -> Option<Cut> {
        if settings.by_number {
            // No budgets are guaranteed: each consumer may hold all buffers.
            consumers
                .iter()
                .for_each(|consumer| consumer.reserve(u32::MAX, slots));
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
            // Since the leases were counted, consumers may have taken frames within the larger budget. Pairs with the fence in
            // `lease::hold`: either such a lease is visible now, or its consumer sees the smaller budget and withdraws it.
            fence(Ordering::SeqCst);
            let again = largest();
            if again.most >= share.most {
                break;
            }
            share = again;
        }
        let mut reserved = 0_u32;
        for consumer in consumers.iter() {
            consumer.reserve(share.most, slots);
            reserved = reserved.saturating_add(consumer.claim(slots).slots(share.most));
        }
        // Upstream always gets its need and the slot that is being written.
        let most = settings.max_slots.saturating_sub(settings.history + 1);
        let least = self.likely_upstream_need(settings).max(1) + 1;
        let upstream_most = most.saturating_sub(reserved).max(least).min(most);
        self.upstream_most = Some(upstream_most.max(1));
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

    /// The largest share that fits.
    fn largest(
        &self,
        control: &Control,
        settings: &Settings,
        consumers: &Consumers,
        regions: &Regions,
        slots: &Slots,
    ) -> Share {
        let claims: Vec<_> = consumers
            .iter()
            .map(|consumer| consumer.claim(slots))
            .collect();
        // One slot is being written, and the producer may hold the previous one.
        let others = self.likely_upstream_need(settings) + settings.history + 2;
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
            // For bytes the history gives way, so none are reserved for it or for frames past a budget.
            let left = room.slots.saturating_sub(2);
            let held: Vec<u64> = consumers
                .iter()
                .map(|consumer| {
                    let places = consumer.held(control, slots).filter_map(|info| info.place);
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

/// The largest share with which at most `left` slots are taken. `u32::MAX` if all requests fit.
fn largest(claims: &[Claim], left: u32, taken: impl Fn(u32) -> u64) -> u32 {
    let requested = claims
        .iter()
        .map(|claim| claim.requested)
        .max()
        .unwrap_or(0);
    match (0..=requested).find(|share| taken(*share) > left.into()) {
        None => u32::MAX,
        Some(too_many) => too_many.saturating_sub(1),
    }
}
