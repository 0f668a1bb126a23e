// SPDX-License-Identifier: MPL-2.0

//! The values that publishing adds to the description of a frame.

/// The kind of memory of a frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Storage {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a CUDA device.
    Cuda,
}

/// The values that publishing adds to the [description](crate::abi::meta::FrameMeta) of a frame.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FrameInfo {
    /// Number of the frame in its pool, from 0. Frames and events share one count.
    pub sequence: u64,
    /// Number of events before the frame, modulo 2^32.
    pub events_before: u32,
    /// The slot of the frame.
    pub slot: u32,
    /// How often that slot was reused, never 0.
    pub generation: u32,
    /// When the frame was published, in nanoseconds of CLOCK_MONOTONIC.
    pub published_at: i64,
    /// Version of the sticky state (caps and so on) that the frame belongs to.
    pub sticky_version: u64,
    /// The kind of the slot's memory.
    pub storage: Storage,
    /// Number of the slot's device, 0 for host memory.
    pub device_id: u8,
}

impl FrameInfo {
    /// Number of the frame in its pool, from 0, without the events; right as long as there were fewer than 2^32 events.
    pub fn number(&self) -> u64 {
        self.sequence.saturating_sub(self.events_before.into())
    }
}
