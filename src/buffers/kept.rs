// SPDX-License-Identifier: MPL-2.0

//! Buffers that a GstBufferPool keeps between two frames. Each has one memory, which holds no slot meanwhile.

// The bindings cannot write all fields of a GstVideoMeta.
#![allow(unsafe_code)]

use std::{
    fmt, mem,
    ops::ControlFlow,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

use gst::buffer::BufferMetaForeachAction as Action;
use gst_video::ffi::{GstVideoMeta, gst_video_meta_api_get_type};

use super::{allocator::KeepsBuffers, memory};
use crate::lock;

/// GST_BUFFER_OFFSET_NONE.
const OFFSET_NONE: u64 = u64::MAX;

/// The buffers that one pool keeps. The pool makes all in the same way while it is active.
#[derive(Default)]
pub(crate) struct KeptBuffers(Mutex<List>);

#[derive(Default)]
struct List {
    is_open: bool,
    /// The initial GstVideoMeta of each buffer.
    planes: Option<Planes>,
    buffers: Vec<gst::Buffer>,
}

struct Planes(GstVideoMeta);

// SAFETY: the pointers in it are never dereferenced.
unsafe impl Send for Planes {}

impl fmt::Debug for KeptBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptBuffers").finish_non_exhaustive()
    }
}

impl KeepsBuffers for KeptBuffers {
    fn close(&self) {
        let list = mem::take(&mut *lock(&self.0));
        drop(list);
    }
}

impl KeptBuffers {
    /// From now on buffers are kept.
    pub(crate) fn open(&self) {
        lock(&self.0).is_open = true;
    }

    /// `None`: another thread has locked the list. In a forked child that thread may not exist.
    fn try_lock(&self) -> Option<MutexGuard<'_, List>> {
        match self.0.try_lock() {
            Ok(list) => Some(list),
            Err(TryLockError::Poisoned(error)) => Some(PoisonError::into_inner(error)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Frees the kept buffers. Those that are released later get the planes of the next one that is registered.
    pub(crate) fn begin_layout(&self) {
        let mut list = lock(&self.0);
        list.planes = None;
        let before = mem::take(&mut list.buffers);
        drop(list);
        drop(before);
    }

    /// A kept buffer, whose memory has no slot.
    pub(crate) fn take(&self) -> Option<gst::Buffer> {
        self.try_lock()?.buffers.pop()
    }

    /// Prepares a new buffer, so that it can be kept.
    pub(crate) fn register(&self, buffer: &mut gst::BufferRef) {
        if let Some(planes) = planes_of(buffer) {
            // As in pools of GStreamer, so that elements do not remove the meta.
            planes.meta.flags |= gst::ffi::GST_META_FLAG_POOLED | gst::ffi::GST_META_FLAG_LOCKED;
            if let Some(mut list) = self.try_lock() {
                list.planes = Some(Planes(*planes));
            }
        }
    }

    /// Keeps a buffer that its last owner released, or frees it. Its slot is released in both cases, unless something else
    /// refers to the memory.
    pub(crate) fn keep(&self, mut buffer: gst::Buffer) {
        let is_reusable = buffer
            .get_mut()
            .is_some_and(|own| memory::release(own) && reset(own));
        // A buffer that is not kept is freed after the lock is released.
        if is_reusable
            && let Some(mut list) = self.try_lock()
            && list.is_open
            && list.restore_planes(&mut buffer)
        {
            list.buffers.push(buffer);
        }
    }
}

impl List {
    /// Writes the initial fields of the GstVideoMeta again. `false`: another meta was added or removed for good.
    fn restore_planes(&self, buffer: &mut gst::Buffer) -> bool {
        let Some(buffer) = buffer.get_mut() else {
            return false;
        };
        let mut others = buffer.iter_meta::<gst::Meta>();
        let has_one = others.next().is_some() && others.next().is_none();
        drop(others);
        match (planes_of(buffer), &self.planes) {
            (Some(planes), Some(Planes(initial))) if has_one => {
                *planes = GstVideoMeta {
                    meta: planes.meta,
                    buffer: planes.buffer,
                    ..*initial
                };
                true
            }
            (None, None) => !has_one,
            _ => false,
        }
    }
}

/// The GstVideoMeta of a buffer.
fn planes_of(buffer: &mut gst::BufferRef) -> Option<&mut GstVideoMeta> {
    // SAFETY: the buffer is live and writable, and keeps its meta until that is removed.
    unsafe {
        let api = gst_video_meta_api_get_type();
        let meta = gst::ffi::gst_buffer_get_meta(buffer.as_mut_ptr(), api);
        meta.cast::<GstVideoMeta>().as_mut()
    }
}

/// Removes metas, times and flags. `false`: another memory was in the buffer.
fn reset(buffer: &mut gst::BufferRef) -> bool {
    if buffer.flags().contains(gst::BufferFlags::TAG_MEMORY) {
        return false;
    }
    buffer.foreach_meta_mut(|meta| {
        let flags = gst::MetaFlags::POOLED | gst::MetaFlags::LOCKED;
        let stays = meta.flags().intersects(flags);
        ControlFlow::Continue(if stays { Action::Keep } else { Action::Remove })
    });
    buffer.unset_flags(gst::BufferFlags::from_bits_retain(u32::MAX));
    buffer.set_pts(None);
    buffer.set_dts(None);
    buffer.set_duration(None);
    buffer.set_offset(OFFSET_NONE);
    buffer.set_offset_end(OFFSET_NONE);
    true
}
