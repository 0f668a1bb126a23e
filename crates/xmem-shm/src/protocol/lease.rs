// SPDX-License-Identifier: MPL-2.0

//! Holding and claiming: how a reader and the writer of a slot keep out of each other's way.
//!
//! The reader announces (its lease word), then validates (the slot word). The writer announces (`CLAIMED` in the
//! slot word), then validates (all lease words). Each side has a full fence between its store and its loads, so at
//! least one of them sees the other: either the reader finds the slot claimed and withdraws, or the writer finds the
//! lease and takes another slot. The other order, validate and then announce, tears frames.

use crate::fault::{self, Point};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, spin_loop};

use super::slot::{SlotState, SlotWord};

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The frame is held until [`release`].
    Held,
    /// The slot holds another frame by now, or none.
    Gone,
    /// The writer checks this very frame; it may put it back.
    Claimed,
}

/// Takes a lease on the frame of `generation` in a slot. The lease word must be 0 before; it is 0 after, unless held.
pub fn hold(slot: &AtomicU64, lease: &AtomicU32, generation: u32) -> Hold {
    // Release: it takes the place of the 0 of the lease before, which a device may have stored, so a writer that sees this
    // word instead must see the reads of that lease done too.
    lease.store(generation, Ordering::Release);
    fault::point(Point::HoldAnnounced);
    // Pairs with the fence in `claim`: announce before validate.
    fence(Ordering::SeqCst);
    let word = SlotWord(slot.load(Ordering::Relaxed));
    if word.generation() == generation && word.state() == Some(SlotState::Published) {
        // Pairs with the release store of the word in `publish`: the frame's bytes are visible from here on.
        fence(Ordering::Acquire);
        fault::point(Point::HoldGained);
        return Hold::Held;
    }
    // Nothing was read, so no ordering is needed.
    lease.store(0, Ordering::Relaxed);
    fault::point(Point::HoldWithdrawn);
    if word.generation() == generation && word.state() == Some(SlotState::Claimed) {
        Hold::Claimed
    } else {
        Hold::Gone
    }
}

/// The number of times to read a slot again that the writer is checking.
const LOOKS: u32 = 1000;

/// Whether the frame of `generation` is still in a slot, for a reader without a lease of it. If it is, then all that was read of the
/// slot before was that frame.
pub fn is_there(slot: &AtomicU64, generation: u32) -> bool {
    // Pairs with the fence in `claim`: a reader that saw bytes written after it finds the slot claimed, or used again.
    fence(Ordering::Acquire);
    for _ in 0..LOOKS {
        let word = SlotWord(slot.load(Ordering::Relaxed));
        if word.generation() != generation {
            return false;
        }
        match word.state() {
            Some(SlotState::Published) => {
                // As in `hold`.
                fence(Ordering::Acquire);
                return true;
            }
            // The writer checks it briefly, and puts it back if it is held.
            Some(SlotState::Claimed) => spin_loop(),
            _ => return false,
        }
    }
    false
}

/// Ends a lease. Returns whether the producer asked for a ring (for this frame).
pub fn release(slot: &AtomicU64, lease: &AtomicU32) -> bool {
    // Release: all reads of the frame are done before the writer can see the word cleared.
    lease.store(0, Ordering::Release);
    fault::point(Point::ReleaseCleared);
    rings(slot)
}

/// Whether the producer asked for a ring when a lease ends, for a lease that was ended before.
pub fn rings(slot: &AtomicU64) -> bool {
    // Pairs with the fence in `ask_to_ring`: either we see its flag, or it sees our lease gone.
    fence(Ordering::SeqCst);
    SlotWord(slot.load(Ordering::Relaxed)).rings()
}

/// How many of these leases, each with the generation that was seen in it, are held still. So many were held at one moment,
/// although the words were not read at one.
pub fn still_held(seen: &[(&AtomicU32, u32)]) -> usize {
    // Pairs with the release store in `hold`: the holder of a lease that was seen had ended those before it. So this look comes
    // after all of the first.
    fence(Ordering::Acquire);
    let is_held =
        |(lease, generation): &&(&AtomicU32, u32)| lease.load(Ordering::Relaxed) == *generation;
    seen.iter().filter(is_held).count()
}

/// Claims a slot for writing, unless `held` finds a lease on the generation that is in it.
///
/// `held` is called after the announcement and must look at every consumer that there is *then*: a list that was
/// read before would miss one that joined in between.
pub fn claim(slot: &AtomicU64, held: impl FnOnce(u32) -> bool) -> Option<SlotWord> {
    // Only the producer writes slot words, so this is its own last store.
    let word = SlotWord(slot.load(Ordering::Relaxed));
    slot.store(word.looked_at().0, Ordering::Relaxed);
    fault::point(Point::ClaimAnnounced);
    // Pairs with the fence in `hold`: announce before validate.
    fence(Ordering::SeqCst);
    if word.state() == Some(SlotState::Published) && held(word.generation()) {
        // Release: a reader that finds the word again must find the frame's bytes with it.
        slot.store(word.0, Ordering::Release);
        fault::point(Point::ClaimPutBack);
        return None;
    }
    // Pairs with the release store in `release`: all reads of the old frame are over.
    fence(Ordering::Acquire);
    let next = word.next(SlotState::Claimed);
    slot.store(next.0, Ordering::Relaxed);
    fault::point(Point::ClaimGained);
    Some(next)
}

/// Makes a claimed slot's frame visible.
pub fn publish(slot: &AtomicU64, claimed: SlotWord, ring: bool) -> SlotWord {
    let mut word = claimed.with_state(SlotState::Published);
    if ring {
        word = word.ringing();
    }
    // Release: the frame's bytes come first.
    slot.store(word.0, Ordering::Release);
    fault::point(Point::SlotPublished);
    word
}

/// Asks the consumers that release the published frame to ring. Look at the leases only after this.
pub fn ask_to_ring(slot: &AtomicU64) {
    let word = SlotWord(slot.load(Ordering::Relaxed));
    if !word.rings() {
        slot.store(word.ringing().0, Ordering::Release);
    }
    fault::point(Point::RingAsked);
    // Pairs with the fence in `release`.
    fence(Ordering::SeqCst);
}
