// SPDX-License-Identifier: MPL-2.0

//! The size of the model, and the mistake, if any, that the protocol makes.

/// The bounds of one exploration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) lossless: bool,
    pub(crate) history: u8,
    pub(crate) budget: u8,
    /// Slots of a pool's first region; further ones have one slot each.
    pub(crate) first: u8,
    pub(crate) max_slots: u8,
    /// Messages that fit into the queue to a consumer, at most 3; what comes then is lost.
    pub(crate) queue: u8,
    /// Slots are shared out among consumers (`Shares::share_out`), and each takes one frame past its budget.
    pub(crate) reserve: bool,
    /// A slot may also be given back unpublished.
    pub(crate) abandon: bool,
    pub(crate) frames: u8,
    /// How often a consumer connects, in all.
    pub(crate) joins: u8,
    pub(crate) crashes: u8,
    pub(crate) producer_crashes: u8,
    pub(crate) restarts: u8,
    /// How often the producer tries to let a region go.
    pub(crate) collects: u8,
    pub(crate) stickies: u8,
    /// How often a `Consumer` is dropped.
    pub(crate) leaves: u8,
    /// How often a wait for a region ends without one.
    pub(crate) timeouts: u8,
    /// How often a lossless producer gives up on a consumer.
    pub(crate) give_ups: u8,
    pub(crate) wrong: Option<Wrong>,
}

impl Setting {
    /// How many slots a consumer may hold, with the one that is being copied out past its budget (`receive_with`).
    pub(crate) fn limit(&self) -> usize {
        usize::from(self.budget) + usize::from(self.reserve)
    }
}

/// The pool that the others are made of: live, one slot more than its history, nothing else.
pub(crate) const SMALL: Setting = Setting {
    lossless: false,
    history: 1,
    budget: 1,
    first: 2,
    max_slots: 2,
    queue: 3,
    reserve: false,
    abandon: false,
    frames: 3,
    joins: 2,
    crashes: 0,
    producer_crashes: 0,
    restarts: 0,
    collects: 0,
    stickies: 0,
    leaves: 0,
    timeouts: 0,
    give_ups: 0,
    wrong: None,
};

/// Protocols that look right and are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A consumer looks at the slot, then announces its lease.
    HoldLooksFirst,
    /// The producer looks at the leases, then announces its claim.
    ClaimLooksFirst,
    /// A claim does not count the generation up.
    SameGeneration,
    /// A claim waits until the lease that it found is gone.
    ClaimWaits,
    /// The descriptor of the lease page is sent, then the page is listed.
    WelcomeBeforeListing,
    /// A page is dropped though its process lives: it was stopped for long.
    PageOfALivingProcessDropped,
    /// A page is dropped when its consumer leaves, though it holds frames.
    PageDroppedAtGoodbye,
    /// The page of a dead process stays in the list.
    DeathIsNotNoticed,
    /// The head is stored before the entry.
    HeadBeforeEntry,
    /// The slot word is stored last.
    WordAfterHead,
    /// The cursor is moved before the frame is held.
    CursorBeforeHold,
    /// Lossless, without a look at cursors before a claim.
    CursorIsNotLookedAt,
    /// A region goes without a look at the leases.
    RetiredWhileHeld,
    /// The next region gets the lowest id that is free.
    RegionIdsAreReused,
    /// The version of the list of regions is stored before the list.
    VersionBeforeIds,
    /// Two threads of a consumer release regions at once.
    TwoSweep,
    /// A consumer keeps a region that came too late.
    LateRegionIsKept,
    /// A restarted producer uses the memory that is there by that name.
    MemoryIsReusedAfterRestart,
    /// All consumers keep the budget that they asked for.
    NothingIsReserved,
    /// A consumer looks at its budget, then takes its lease.
    BudgetIsReadFirst,
    /// The producer looks at leases, then makes the share smaller.
    LeasesAreCountedFirst,
    /// The sticky state that came before the last is forgotten.
    StickyIsForgotten,
}
