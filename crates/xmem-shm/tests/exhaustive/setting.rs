// SPDX-License-Identifier: MPL-2.0

//! The size of the model, and the optional defect of the protocol.

/// The limits of one exploration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) lossless: bool,
    pub(crate) history: u8,
    pub(crate) budget: u8,
    /// The number of slots in a pool's first region. Further regions have one slot each.
    pub(crate) first: u8,
    pub(crate) max_slots: u8,
    /// The capacity of the message queue to a consumer, at most 3. Further messages are lost.
    pub(crate) queue: u8,
    /// Slots are shared out among consumers (`Shares::share_out`), and each may take one frame past its budget.
    pub(crate) reserve: bool,
    /// A slot may also be given back unpublished.
    pub(crate) abandon: bool,
    pub(crate) frames: u8,
    /// The total number of connections of consumers.
    pub(crate) joins: u8,
    pub(crate) crashes: u8,
    pub(crate) producer_crashes: u8,
    pub(crate) restarts: u8,
    /// The number of times that the producer tries to remove a region.
    pub(crate) collects: u8,
    pub(crate) stickies: u8,
    /// The number of times that a `Consumer` is dropped.
    pub(crate) leaves: u8,
    /// The number of waits for a region that time out.
    pub(crate) timeouts: u8,
    /// The number of times that a lossless producer disconnects a slow consumer.
    pub(crate) give_ups: u8,
    pub(crate) wrong: Option<Wrong>,
}

impl Setting {
    /// The number of slots that a consumer may hold, including the one past its budget that is copied (`receive_with`).
    pub(crate) fn limit(&self) -> usize {
        usize::from(self.budget) + usize::from(self.reserve)
    }
}

/// The base of the other settings: live, one slot more than the history, no other features.
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

/// Defects of the protocol that are hard to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// A consumer checks the slot before it stores its lease.
    HoldLooksFirst,
    /// The producer reads the leases before it stores its claim.
    ClaimLooksFirst,
    /// A claim does not increment the generation.
    SameGeneration,
    /// A claim waits until the lease that it found is released.
    ClaimWaits,
    /// The descriptor of the lease page is sent before the page is listed.
    WelcomeBeforeListing,
    /// The page of a live process is dropped because the process was stopped for a long time.
    PageOfALivingProcessDropped,
    /// A page is dropped when its consumer leaves, although it holds frames.
    PageDroppedAtGoodbye,
    /// The page of a dead process stays in the list.
    DeathIsNotNoticed,
    /// The head is stored before the entry.
    HeadBeforeEntry,
    /// The slot word is stored last.
    WordAfterHead,
    /// The cursor is stored before the frame is held.
    CursorBeforeHold,
    /// In lossless delivery, a claim does not check the cursors.
    CursorIsNotLookedAt,
    /// A region is removed without reading the leases.
    RetiredWhileHeld,
    /// The next region gets the lowest free id.
    RegionIdsAreReused,
    /// The version of the list of regions is stored before the list.
    VersionBeforeIds,
    /// Two threads of a consumer unmap regions at the same time.
    TwoSweep,
    /// A consumer keeps a region that arrived too late.
    LateRegionIsKept,
    /// A restarted producer uses the existing memory of that name.
    MemoryIsReusedAfterRestart,
    /// All consumers keep the budget that they requested.
    NothingIsReserved,
    /// A consumer reads its budget before it stores its lease.
    BudgetIsReadFirst,
    /// The producer counts leases before it stores a smaller share.
    LeasesAreCountedFirst,
    /// The last but one version of the sticky state is removed.
    StickyIsForgotten,
}
