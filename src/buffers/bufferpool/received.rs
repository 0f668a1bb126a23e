// SPDX-License-Identifier: MPL-2.0

//! A pool of buffers for received frames. Its buffers have no slot: xmemsrc fills them.

use std::sync::Mutex;

use gst::{glib, prelude::*, subclass::prelude::*};

use super::buffer_of;
use crate::buffers::{
    allocator::{KeepsBuffers, XmemAllocator},
    kept::KeptBuffers,
    memory,
    planes::Planes,
};
use crate::lock;

#[derive(Default, Debug)]
pub struct ReceivedPoolImp {
    planes: Mutex<Option<Planes>>,
    kept: KeptBuffers,
}

#[glib::object_subclass]
impl ObjectSubclass for ReceivedPoolImp {
    const NAME: &'static str = "GstXmemReceivedBufferPool";
    type Type = ReceivedBufferPool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for ReceivedPoolImp {}
impl GstObjectImpl for ReceivedPoolImp {}

impl BufferPoolImpl for ReceivedPoolImp {
    /// The parent class would allocate buffers here.
    fn start(&self) -> bool {
        true
    }

    fn flush_start(&self) {
        self.kept.close();
    }

    fn flush_stop(&self) {
        self.kept.open();
    }

    fn acquire_buffer(
        &self,
        _params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if let Some(buffer) = self.kept.take() {
            return Ok(buffer);
        }
        let mut buffer = buffer_of([memory::empty(XmemAllocator::of_received_frames())]);
        let buffer_ref = buffer.make_mut();
        if let Some(planes) = &*lock(&self.planes) {
            let described = planes.describe(buffer_ref);
            described.map_err(|_| gst::FlowError::Error)?;
        }
        self.kept.register(buffer_ref);
        Ok(buffer)
    }

    /// Does nothing: `release_buffer` resets the buffer.
    fn reset_buffer(&self, _buffer: &mut gst::BufferRef) {}

    /// Releases the frame. Keeps the rest of the buffer while the pool is active.
    fn release_buffer(&self, buffer: gst::Buffer) {
        self.kept.keep(buffer);
    }

    /// `flush_start` has already freed the kept buffers.
    fn stop(&self) -> bool {
        true
    }
}

glib::wrapper! {
    /// A buffer pool of a source.
    pub struct ReceivedBufferPool(ObjectSubclass<ReceivedPoolImp>) @extends gst::BufferPool, gst::Object;
}

/// An active pool. Nothing is kept after this is dropped. A pool has a file descriptor, so a source has one pool for all layouts:
/// one that reconnects needs no new descriptor.
#[derive(Debug)]
pub(crate) struct ReceivedBuffers(ReceivedBufferPool);

impl ReceivedBuffers {
    pub(crate) fn new() -> Result<Self, glib::BoolError> {
        let pool = glib::Object::new::<ReceivedBufferPool>();
        pool.set_config(pool.config())?;
        pool.set_active(true)?;
        Ok(Self(pool))
    }

    /// From now on buffers have this layout.
    pub(crate) fn set_layout(&self, planes: Option<&Planes>) {
        let own = self.0.imp();
        *lock(&own.planes) = planes.cloned();
        own.kept.begin_layout();
    }

    /// A buffer with the planes of the layout, whose memory has no slot.
    pub(crate) fn acquire(&self) -> Result<gst::Buffer, gst::FlowError> {
        self.0.acquire_buffer(None)
    }
}

impl Drop for ReceivedBuffers {
    fn drop(&mut self) {
        // Fails for no pool that is active.
        let _ = self.0.set_active(false);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::buffers::planes;

    fn buffers() -> ReceivedBuffers {
        gst::init().unwrap();
        ReceivedBuffers::new().unwrap()
    }

    #[test]
    fn a_buffer_is_kept_at_its_last_reference_until_the_source_stops() {
        let buffers = buffers();
        let pool = buffers.0.clone();
        let kept = |pool: &ReceivedBufferPool| pool.imp().kept.take();
        let (first, out) = (buffers.acquire().unwrap(), buffers.acquire().unwrap());
        let address = first.as_ptr();
        let second = first.clone();
        drop(first);
        assert!(kept(&pool).is_none(), "there is another reference");
        drop(second);
        assert_eq!(buffers.acquire().unwrap().as_ptr(), address);
        drop(buffers);
        assert!(kept(&pool).is_none(), "it was kept when the source stopped");
        drop(out);
        assert!(kept(&pool).is_none(), "it was released later");
        let gone = pool.downgrade();
        drop(pool);
        assert!(gone.upgrade().is_none(), "all are freed");
    }

    #[test]
    fn a_buffer_that_is_released_after_a_change_gets_the_new_layout() {
        let buffers = buffers();
        let of_width = |width| {
            let info = gst_video::VideoInfo::builder(gst_video::VideoFormat::Nv12, width, 48);
            let info = info.build().unwrap();
            Planes::check(&planes::of_info(&info), info.size(), &info).unwrap()
        };
        let width = |buffer: &gst::Buffer| buffer.meta::<gst_video::VideoMeta>().unwrap().width();
        buffers.set_layout(Some(&of_width(64)));
        let (kept, out) = (buffers.acquire().unwrap(), buffers.acquire().unwrap());
        let address = out.as_ptr();
        drop(kept);
        buffers.set_layout(Some(&of_width(96)));
        let first = buffers.acquire().unwrap();
        assert_eq!(width(&first), 96);
        assert_eq!(width(&out), 64);
        drop(out);
        let again = buffers.acquire().unwrap();
        assert_eq!((again.as_ptr(), width(&again)), (address, 96));
        buffers.set_layout(None);
        drop((first, again));
        let bare = buffers.acquire().unwrap();
        assert!(bare.meta::<gst_video::VideoMeta>().is_none());
    }

    #[test]
    fn all_buffers_are_freed_with_their_pool_under_concurrent_use() {
        let buffers = buffers();
        let (sender, receiver) = mpsc::sync_channel(4);
        let releasing = thread::spawn(move || receiver.into_iter().for_each(drop::<gst::Buffer>));
        for _ in 0..10_000 {
            sender.send(buffers.acquire().unwrap()).unwrap();
        }
        drop(sender);
        releasing.join().unwrap();
        let pool = buffers.0.downgrade();
        drop(buffers);
        assert!(pool.upgrade().is_none(), "all are freed");
    }
}
