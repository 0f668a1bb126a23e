// SPDX-License-Identifier: MPL-2.0

//! Points between steps that other processes can observe. Tests make a process die, stop or fail there.
//!
//! Builds with debug assertions have them. A release build has none, unless it has the feature `fault-points`.

#[cfg(any(feature = "fault-points", debug_assertions))]
mod armed;

#[cfg(any(feature = "fault-points", debug_assertions))]
pub use armed::{
    Action, arm, arrivals, call, clock_offset, disarm, is_armed, point, set_clock_offset,
};

/// The role of the processes that pass a point.
#[cfg(any(feature = "fault-points", debug_assertions))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Producers.
    Producer,
    /// Consumers.
    Consumer,
    /// Producers and consumers.
    Both,
}

macro_rules! points {
    ($($side:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        /// A step that a process has taken, or is about to take. Tests can stop the process there.
        #[allow(missing_docs)] // most names describe the point
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($($(#[$doc])* $name,)*)*
        }

        #[cfg(any(feature = "fault-points", debug_assertions))]
        impl Point {
            /// All points.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// Whether only processes with frames on devices pass it.
            pub fn is_cuda(self) -> bool {
                matches!(
                    self,
                    Self::TwinMade
                        | Self::CanaryWritten
                        | Self::EventsMade
                        | Self::EventRecorded
                        | Self::DeviceSettled
                        | Self::TwinImported
                        | Self::CanaryRead
                        | Self::DeviceSaid
                        | Self::EventOpened
                        | Self::EventWaited
                        | Self::ReleaseEnqueued
                        | Self::ReleaseRan
                        | Self::TwinClosed
                )
            }

            /// The role of the processes that pass it.
            pub fn side(self) -> Side {
                match self {
                    $($(Self::$name => Side::$side,)*)*
                }
            }
        }
    };
}

points! {
    Consumer {
        /// An entry of the ring was copied.
        EntryRead,
        /// The generation is in the lease word, and not validated yet.
        HoldAnnounced,
        /// The lease is valid.
        HoldGained,
        /// The lease word is cleared again, because the slot has another frame.
        HoldWithdrawn,
        TakenStored,
        ReadCounted,
        CursorMoved,
        MissedCounted,
        ReceivedCounted,
        /// The lease word is cleared; the producer is not woken yet.
        ReleaseCleared,
        /// The bit "sleeps" is set in the wake word.
        SleepAnnounced,
        SleepEnded,
        /// The socket is connected, and no message was sent.
        Connected,
        /// The answer to the first message has arrived with its descriptors.
        Answered,
        ControlMapped,
        PageMapped,
        SessionStarted,
        /// A region was mapped, and is not listed yet.
        RegionMapped,
        StickyRead,
        /// Retired regions are unmapped, and the producer was not notified yet.
        RegionsLetGo,
        RegionsSeenStored,
        LeaveMarked,
        LeaveLetGo,
        LeaveDone,
        /// A pool of origin was announced, and is not joined yet.
        OriginMet,
        /// A pool of origin is joined, and the producer was not notified yet.
        OriginJoined,
        OriginSaid,
        /// The cursor of a consumer of forwarded frames is set.
        Arrived,
        /// A part is held in its pool of origin, and the frame is not received yet.
        OriginHeld,
        BeginRead,
        /// A connection was made only to check whether the pool is live.
        PoolTried,
        /// Device memory of another process is mapped, and not checked yet.
        TwinImported,
        CanaryRead,
        /// The message about the way to device memory was sent.
        DeviceSaid,
        EventOpened,
        /// A stream waits for the producer's work.
        EventWaited,
        /// The end of a lease is queued on a stream.
        ReleaseEnqueued,
        /// A stream has reached the end of a lease.
        ReleaseRan,
    }
    Producer {
        LockOpened,
        LockTaken,
        LockEmptied,
        LockWritten,
        SegmentSwept,
        StaleSocketRemoved,
        SocketBound,
        SocketListening,
        ThreadStarted,
        MemfdCreate,
        MemfdCreated,
        Fallocate,
        SealedFilled,
        Sealed,
        ShmCreate,
        ShmCreated,
        Accepted,
        Admitted,
        LeasePageMade,
        CursorGiven,
        ConsumerListed,
        ConsumerWatched,
        /// The cursor of a consumer of forwarded frames is set, and no message was sent.
        ConsumerArrived,
        ConsumerForgotten,
        ConnectionClosed,
        CommandSent,
        /// The slot looks free, and is not claimed yet.
        ClaimLooked,
        ClaimAnnounced,
        ClaimPutBack,
        ClaimGained,
        SlotAbandoned,
        SlotPublished,
        /// A slot has a place, and was not used there yet.
        PlaceStored,
        /// A layout is in the table, and no entry refers to it yet.
        LayoutStored,
        EntryStamped,
        EntryFilled,
        EntryWritten,
        EosCleared,
        EosMarked,
        HeadMoved,
        FrameFinalized,
        RingAsked,
        /// Memory is listed as a region, and has no frame yet.
        MemoryImported,
        ImportForgotten,
        /// A pool of origin is known, and no consumer was notified yet.
        OriginNoted,
        /// All parts of a frame of another pool are regions of this pool, and the frame is not published yet.
        PartsImported,
        RegionMade,
        RegionsListed,
        RegionsShown,
        SlotRetired,
        WaitCounted,
        TimedOutMarked,
        ClosedMarked,
        SocketRemoved,
        LockRemoved,
        /// Device memory is allocated, and not announced.
        TwinMade,
        CanaryWritten,
        EventsMade,
        /// The slot's event is queued on a stream, and the frame is not published.
        EventRecorded,
        /// The device has finished the published frames, and the pool ends.
        DeviceSettled,
        /// The wake word is changed, and the consumer still sleeps.
        WakeChanged,
        WakeSent,
    }
    Both {
        Mmap,
        Mapped,
        Unmapped,
        Send,
        Sent,
        Received,
        /// Device memory is unmapped or freed.
        TwinClosed,
    }
}

/// Called when a process passes a point.
#[cfg(not(any(feature = "fault-points", debug_assertions)))]
#[inline(always)]
pub fn point(_: Point) {}

/// Called before a system call. A test can make it fail.
#[cfg(not(any(feature = "fault-points", debug_assertions, xmem_loom)))]
#[inline(always)]
pub fn call(_: Point) -> std::io::Result<()> {
    Ok(())
}

/// The offset of this process's clock from the host's, in nanoseconds.
#[cfg(not(any(feature = "fault-points", debug_assertions, xmem_loom)))]
#[inline(always)]
pub fn clock_offset() -> i64 {
    0
}
