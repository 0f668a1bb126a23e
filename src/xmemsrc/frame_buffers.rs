// SPDX-License-Identifier: MPL-2.0

//! The buffers of received frames. When its last reference is dropped, a buffer is kept for a later frame.

use std::sync::Arc;

use crate::buffers::{
    bufferpool::buffer_of,
    memory::{self, Spare, SpareBuffers},
    planes::Planes,
};

/// Buffers for frames with the same planes.
#[derive(Debug, Default)]
pub(super) struct FrameBuffers {
    planes: Option<Planes>,
    spare: Arc<SpareBuffers>,
}

impl FrameBuffers {
    /// Frees the kept buffers. The next frames have these planes.
    pub(super) fn reset(&mut self, planes: Option<Planes>) {
        self.spare.close();
        self.planes = planes;
        self.spare.open();
    }

    /// A buffer with these planes and a memory without a slot. `None`: it cannot be made.
    pub(super) fn empty(&self) -> Option<Spare> {
        self.spare.take_or(|| {
            let mut buffer = buffer_of([memory::empty()]);
            if let Some(planes) = &self.planes {
                planes.describe(buffer.make_mut()).ok()?;
            }
            Some(buffer)
        })
    }
}

impl Drop for FrameBuffers {
    fn drop(&mut self) {
        // From now on, released buffers are freed.
        self.spare.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_buffer_is_kept_after_the_source_has_stopped() {
        gst::init().unwrap();
        let mut buffers = FrameBuffers::default();
        buffers.reset(None);
        let list = buffers.spare.clone();
        let out = buffers.empty();
        drop(buffers.empty());
        assert!(list.take().is_some(), "the source is not stopped yet");
        drop(buffers.empty());
        drop(buffers);
        assert!(list.take().is_none(), "it was kept when the source stopped");
        drop(out);
        assert!(list.take().is_none(), "it was released later");
    }
}
