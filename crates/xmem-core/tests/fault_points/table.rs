// SPDX-License-Identifier: MPL-2.0

//! The points that the processes of each kind of pool pass, and the number of faults at each.

use xmem_core::fault::{Point, Side};

use crate::support::victim::IN_CHAINS;

pub(crate) const HISTORY: u32 = 4;

/// Small slots, large ones that share a region with them, and raw video, whose regions are removed when the size changes.
pub(crate) const SIZES: [usize; 3] = [6_000, 300_000, 40_000];

/// The number of frames after which a producer recreates its pool.
pub(crate) const LIFE: u64 = 130;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Live,
    Lossless,
    PosixShm,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Live, Kind::Lossless, Kind::PosixShm];

/// Points that only processes with special roles pass: in `turns` and `buffers`.
const RARE: [Point; 5] = [
    Point::HoldWithdrawn,
    Point::ReadCounted,
    Point::ClaimPutBack,
    Point::TimedOutMarked,
    Point::RingAsked,
];

/// Whether processes of such a pool pass a point repeatedly.
pub(crate) fn is_passed(point: Point, kind: Kind) -> bool {
    match point {
        _ if RARE.contains(&point) || IN_CHAINS.contains(&point) => false,
        // `tests/cuda` tests them.
        _ if point.is_cuda() => false,
        // If memory is not involved, the code is the same as in a live pool.
        Point::ShmCreate | Point::ShmCreated | Point::SegmentSwept => kind == Kind::PosixShm,
        Point::Mmap | Point::Mapped | Point::Unmapped | Point::Fallocate | Point::RegionMapped => {
            true
        }
        Point::MissedCounted => kind == Kind::Live,
        Point::WaitCounted => kind == Kind::Lossless,
        _ => kind != Kind::PosixShm,
    }
}

pub(crate) fn points(side: Side, kind: Kind) -> impl Iterator<Item = Point> {
    Point::ALL.iter().copied().filter(move |point| {
        (point.side() == side || point.side() == Side::Both) && is_passed(*point, kind)
    })
}

/// The arrivals at which a victim dies. Points that are passed in many situations are tested more often.
pub(crate) fn arrivals(point: Point) -> &'static [u32] {
    match point {
        Point::Sent | Point::Received | Point::Mapped => &[1, 2, 3, 4, 5, 9],
        Point::Send | Point::Mmap | Point::Unmapped | Point::Sealed | Point::MemfdCreated => {
            &[1, 2, 3, 4, 11]
        }
        Point::EntryStamped | Point::EntryFilled | Point::EntryWritten => &[1, 2, 17],
        _ => &[1, 4],
    }
}

/// The number of consecutive arrivals at which a system call fails.
pub(crate) const REFUSALS: u32 = 8;
