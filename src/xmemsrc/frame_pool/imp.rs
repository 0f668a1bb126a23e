// SPDX-License-Identifier: MPL-2.0

// Everything here is called from C without a guard: a panic would abort the process.

use std::sync::Mutex;

use gst::{glib, subclass::prelude::*};

use crate::{
    bufferpool::buffer_of,
    lock,
    memory::{self, SpareBuffers},
    planes::Planes,
};

#[derive(Debug, Default)]
pub struct FramePool {
    planes: Mutex<Option<Planes>>,
    spare: SpareBuffers,
}

#[glib::object_subclass]
impl ObjectSubclass for FramePool {
    const NAME: &'static str = "GstXmemFramePool";
    type Type = super::FramePool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for FramePool {}
impl GstObjectImpl for FramePool {}

impl BufferPoolImpl for FramePool {
    /// Buffers are made when there are frames for them.
    fn start(&self) -> bool {
        true
    }

    fn stop(&self) -> bool {
        true
    }

    fn flush_start(&self) {
        self.spare.close();
    }

    fn flush_stop(&self) {
        self.spare.open();
    }

    fn acquire_buffer(
        &self,
        _params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        match self.spare.take() {
            Some(spare) => Ok(spare.into_empty()),
            None => self.make(),
        }
    }

    /// GStreamer's own resets fewer fields than others can write.
    fn reset_buffer(&self, _buffer: &mut gst::BufferRef) {}

    fn release_buffer(&self, buffer: gst::Buffer) {
        self.spare.keep(buffer);
    }
}

impl FramePool {
    pub(super) fn reset(&self, planes: Option<Planes>) {
        self.spare.close();
        *lock(&self.planes) = planes;
        self.spare.open();
    }

    fn make(&self) -> Result<gst::Buffer, gst::FlowError> {
        let mut buffer = buffer_of([memory::empty()]);
        if let Some(planes) = &*lock(&self.planes) {
            let described = planes.describe(buffer.make_mut());
            described.map_err(|_| gst::FlowError::Error)?;
        }
        let params = gst::AllocationParams::default();
        self.spare.note_made(buffer.make_mut(), 0, &params);
        Ok(buffer)
    }
}
