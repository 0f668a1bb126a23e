// SPDX-License-Identifier: MPL-2.0

//! How the slots that consumers may hold are shared out among them.
//!
//! Every consumer has the budget that it asked for, but no more than the share of all, which is in control memory. Besides the
//! budgets there is one slot more for each consumer, for a frame that it looks at past its budget. The share is the largest with
//! which all of that fits into `max_slots`, and the budgets into `max_bytes`. It is found anew when a consumer comes or goes, when
//! a region comes, and every 64 frames. What a consumer holds from before stays its own and counts in place of its budget.

use std::sync::atomic::{Ordering, fence};

use xmem_shm::abi::budget::{BudgetLimit, Share};
use xmem_shm::abi::layout::Control;

use super::builder::Settings;
use super::slots::Place;
use super::state::{Effects, State};

/// What is left for an upstream that has not said what it needs: as much as a decoder usually does.
const LIKELY_UPSTREAM_NEED: u32 = 16;

/// Consumers may hold fewer slots than they asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) budget: u32,
    pub(super) consumers: u32,
    pub(super) limit: BudgetLimit,
}

impl Cut {
    pub(super) fn warn(self, pool: &str) {
        let Self {
            budget,
            consumers,
            limit,
        } = self;
        log::warn!(
            "pool {pool:?}: {limit} has room for a budget of {budget} slots for each of {consumers} consumers, which copy frames \
             beyond that: raise {limit}"
        );
    }
}

/// What one consumer takes of the slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// The budget that it asked for. 0 when it takes no more frames.
    pub(super) asked: u32,
    /// 1 for as long as it looks at frames past its budget.
    pub(super) look: u32,
    /// What it may hold from before, with the frame that it looks at.
    pub(super) kept: u32,
}

impl Claim {
    fn budget(self, share: u32) -> u32 {
        self.asked.min(share)
    }

    fn kept_budget(self) -> u32 {
        self.kept.saturating_sub(self.look)
    }

    /// The slots that are reserved for it where each consumer gets this share.
    pub(super) fn slots(self, share: u32) -> u32 {
        self.budget(share).saturating_add(self.look).max(self.kept)
    }
}

impl State {
    /// Gives each consumer its budget, for as many as there are now.
    pub(super) fn share_out(
        &mut self,
        control: &Control,
        settings: &Settings,
        effects: &mut Effects,
    ) {
        let mut share = self.share(control, settings);
        loop {
            let is_smaller = share.most < control.share().most;
            control.set_share(share);
            if !is_smaller {
                break;
            }
            // Frames may have been taken within the larger budget since that was looked at. Pairs with the fence in
            // `lease::hold`: either such a lease is seen now, or its holder sees the smaller budget and gives it back.
            fence(Ordering::SeqCst);
            let again = self.share(control, settings);
            if again.most >= share.most {
                break;
            }
            share = again;
        }
        for peer in self.peers.iter() {
            peer.reserve(share.most);
        }
        let is_news = self.least_share == u32::MAX || share.most == 0;
        if share.most < self.least_share && is_news {
            self.least_share = share.most;
            effects.cut = Some(Cut {
                budget: share.most,
                consumers: self.peers.len() as u32,
                limit: share.limit,
            });
        }
    }

    /// The largest share that there is room for.
    fn share(&self, control: &Control, settings: &Settings) -> Share {
        let claims: Vec<_> = self.peers.iter().map(|peer| peer.claim()).collect();
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
        let by_bytes = self.regions.room().map(|room| {
            // The history gives way here, so nothing is kept free for it, nor for frames that are looked at.
            let left = room.slots.saturating_sub(2);
            let bytes = |slot| self.slots.get(slot).and_then(|info| info.place);
            let held: Vec<u64> = self
                .peers
                .iter()
                .map(|peer| {
                    let bytes: u64 = peer.held(control).filter_map(bytes).map(Place::bytes).sum();
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
