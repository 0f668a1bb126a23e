// SPDX-License-Identifier: MPL-2.0

//! Replaces `cuda` in builds without CUDA. No memory is on a device, and none is offered.

use gst::prelude::*;
use xmem_core::ReadLease;

/// Copies frames on devices. Unused.
#[derive(Debug, Default)]
pub(crate) struct Copier(());

/// GstCudaMemory. Has no values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CudaMemory {}

impl CudaMemory {
    pub(crate) fn of_buffer(_buffer: &gst::BufferRef) -> Option<Self> {
        None
    }

    pub(crate) fn info(self) -> gst_video::VideoInfo {
        match self {}
    }
}

/// A slot on a device. Has no values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SlotMemory {}

impl SlotMemory {
    pub(crate) fn of(_memory: &gst::MemoryRef) -> Option<Self> {
        None
    }

    pub(crate) fn frame(self) -> Option<ReadLease> {
        match self {}
    }

    pub(crate) fn received(self) -> Option<ReadLease> {
        match self {}
    }
}

/// A cache of memories on a device. Has no values.
#[derive(Debug)]
pub(crate) enum MemoryCache {}

/// A GstCudaStream. Has no values.
#[derive(Debug)]
pub(crate) enum Stream {}

impl Stream {
    pub(crate) fn of_config(_config: &gst::BufferPoolConfigRef) -> Option<Self> {
        None
    }
}

pub(crate) fn is_offered() -> bool {
    false
}

pub(crate) fn to_share(
    kind: &str,
    element: &gst::Element,
    _ordinal: Option<u32>,
) -> Option<gst::Context> {
    element.context(kind)
}
