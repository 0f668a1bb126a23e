// SPDX-License-Identifier: MPL-2.0

//! In the place of `cuda` in builds without CUDA: no memory lies on a device, and none is offered.

use gst::prelude::*;
use xmem_core::ReadLease;

/// Copies frames on devices, of which there are none.
#[derive(Debug, Default)]
pub(crate) struct Copier(());

/// GstCudaMemory, of which there is none.
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

/// A slot on a device, of which there is none.
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

/// Memories of one layout on a device, of which there are none.
#[derive(Debug)]
pub(crate) enum Home {}

/// A GstCudaStream, of which there is none.
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
