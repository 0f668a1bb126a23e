// SPDX-License-Identifier: MPL-2.0

//! Which points the processes of which pool pass, and how often something happens at them.

use xmem_core::fault::{Point, Side};

use crate::support::victim::IN_CHAINS;

pub(crate) const HISTORY: u32 = 4;

/// Small slots, one that shares a region with it, and raw video, whose regions go when the size changes.
pub(crate) const SIZES: [usize; 3] = [6_000, 300_000, 40_000];

/// How many frames a producer publishes before it makes its pool anew.
pub(crate) const LIFE: u64 = 130;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Live,
    Lossless,
    PosixShm,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Live, Kind::Lossless, Kind::PosixShm];

/// Points that only processes that play a part of their own pass: in `turns` and `buffers`.
const RARE: [Point; 4] = [
    Point::HoldWithdrawn,
    Point::ClaimPutBack,
    Point::TimedOutMarked,
    Point::RingAsked,
];

/// Whether processes of such a pool pass a point over and over.
pub(crate) fn is_passed(point: Point, kind: Kind) -> bool {
    match point {
        _ if RARE.contains(&point) || IN_CHAINS.contains(&point) => false,
        // `tests/cuda` has those.
        _ if point.is_cuda() => false,
        // The same code as in a live pool, where it is not about memory.
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

/// Which arrivals a victim dies at. Points that many things pass are tried more often.
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

/// How many arrivals a system call is refused at, one after the other.
pub(crate) const REFUSALS: u32 = 8;
