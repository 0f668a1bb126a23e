// SPDX-License-Identifier: MPL-2.0

//! Points between any two steps that other processes can see, where tests make a process die, stop or fail.
//!
//! A build without the feature `fault-points` has none of them.

#[cfg(feature = "fault-points")]
mod armed;

#[cfg(feature = "fault-points")]
pub use armed::{
    Action, arm, arrivals, call, clock_offset, disarm, is_armed, point, set_clock_offset,
};

/// The role of the processes that pass a point.
#[cfg(feature = "fault-points")]
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
        /// A step that a process took, or is about to take. Tests can stop it there.
        #[allow(missing_docs)] // most names are their description
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($($(#[$doc])* $name,)*)*
        }

        #[cfg(feature = "fault-points")]
        impl Point {
            /// All there are.
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
                        | Self::HandedOver
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
        /// The entry of the next frame was copied out of the ring.
        EntryRead,
        /// The generation is in the lease word, and not validated yet.
        HoldAnnounced,
        /// The lease is valid.
        HoldGained,
        /// The lease word is cleared again, since the frame is gone.
        HoldWithdrawn,
        TakenStored,
        CursorMoved,
        MissedCounted,
        ReceivedCounted,
        /// The lease word is cleared; the producer is not woken yet.
        ReleaseCleared,
        /// The bit "sleeps" is in the wake word.
        SleepAnnounced,
        SleepEnded,
        /// The socket is connected, and no message sent.
        Connected,
        /// The answer to the first message is here, with its descriptors.
        Answered,
        ControlMapped,
        PageMapped,
        SessionStarted,
        /// A region that was sent is mapped, and not listed yet.
        RegionMapped,
        StickyRead,
        /// Retired regions are unmapped, and the producer has no message yet.
        RegionsLetGo,
        RegionsSeenStored,
        LeaveMarked,
        LeaveLetGo,
        LeaveDone,
        /// A pool that frames come from was named, and is not joined yet.
        OriginMet,
        /// That pool is joined, and the producer has no message yet.
        OriginJoined,
        OriginSaid,
        /// The consumer has its place in a stream that is passed on.
        Arrived,
        /// A part is held in the pool that it comes from, and the frame not received yet.
        OriginHeld,
        BeginRead,
        /// A connection was made only to test whether the pool is live.
        PoolTried,
        /// Device memory of another process is mapped, and not checked yet.
        TwinImported,
        CanaryRead,
        /// The producer has the message about the way to device memory.
        DeviceSaid,
        EventOpened,
        /// A stream waits for the producer's work.
        EventWaited,
        /// The end of a lease is on a stream.
        ReleaseEnqueued,
        /// A stream got to the end of a lease.
        ReleaseRan,
        /// The address of a lease's word is about to be given to a device.
        HandedOver,
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
        /// A consumer that joined a stream that is passed on has its place there, and no message yet.
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
        /// A layout is in the table, and no entry names it yet.
        LayoutStored,
        EntryStamped,
        EntryFilled,
        EntryWritten,
        EosCleared,
        EosMarked,
        HeadMoved,
        FrameFinalized,
        RingAsked,
        /// Memory is listed as a region, and no frame lies in it yet.
        MemoryImported,
        ImportForgotten,
        /// A pool that frames come from is known, and no consumer has a message yet.
        OriginNoted,
        /// All parts of a frame of another pool are regions here, and it is not published yet.
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
        /// The slot's event is on a stream, and the frame not published.
        EventRecorded,
        /// The device is done with the published frames, and the pool ends.
        DeviceSettled,
    }
    Both {
        Mmap,
        Mapped,
        Unmapped,
        Send,
        Sent,
        Received,
        /// The wake word is changed, and its sleeper sleeps on.
        WakeChanged,
        WakeSent,
        /// Device memory is unmapped or freed.
        TwinClosed,
    }
}

/// A process passes a point.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub fn point(_: Point) {}

/// A process is about to make a system call, which may be made to fail.
#[cfg(not(any(feature = "fault-points", xmem_loom)))]
#[inline(always)]
pub fn call(_: Point) -> std::io::Result<()> {
    Ok(())
}

/// The offset of this process's clock from the host's, in nanoseconds.
#[cfg(not(any(feature = "fault-points", xmem_loom)))]
#[inline(always)]
pub fn clock_offset() -> i64 {
    0
}
