// SPDX-License-Identifier: MPL-2.0

//! Functions of GstBaseSink without the bindings: those that it calls for each buffer, and the waits in `render` for something
//! else than the buffer's time.

// A class structure is filled with C function pointers, and fields of the instance are used.
#![allow(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use gst::{glib, glib::translate::*, prelude::*, subclass::prelude::*};
use gst_base::subclass::prelude::*;

use crate::unwind;

/// A sink that renders one buffer after another.
pub(super) trait Render: BaseSinkImpl
where
    Self::Type: IsA<gst_base::BaseSink>,
{
    /// Whether a buffer is rendered at once instead of at its time. GstBaseSink asks, once or several times, before it renders a
    /// buffer and before it drops one that is late or outside of the segment.
    fn is_rendered_at_once(&self, buffer: &gst::BufferRef) -> bool;
}

/// Puts the functions into the class.
pub(super) fn init<T: Render>(class: &mut T::Class)
where
    T::Type: IsA<gst_base::BaseSink>,
{
    // SAFETY: the class structure of a subclass starts with GstBaseSinkClass, and it is ours while it is set up.
    unsafe {
        let class: *mut gst_base::ffi::GstBaseSinkClass = std::ptr::from_mut(class).cast();
        (*class).get_times = Some(get_times::<T>);
        (*class).render = Some(render::<T>);
        // Those of the bindings only call the parent's, which has none. GstBaseSink computes the times of each buffer once more
        // for a class with one of them.
        (*class).prepare = None;
        (*class).prepare_list = None;
    }
}

/// `GstBaseSinkClass::render`.
unsafe extern "C" fn render<T: Render>(
    sink: *mut gst_base::ffi::GstBaseSink,
    buffer: *mut gst::ffi::GstBuffer,
) -> gst::ffi::GstFlowReturn
where
    T::Type: IsA<gst_base::BaseSink>,
{
    // SAFETY: GstBaseSink calls this with an instance of our class and a live buffer.
    let (imp, buffer) = unsafe {
        let instance = &*sink.cast::<T::Instance>();
        (instance.imp(), gst::Buffer::from_glib_borrow(buffer))
    };
    gst::FlowReturn::from(unwind::catch(imp, || imp.render(&buffer))).into_glib()
}

/// `GstBaseSinkClass::get_times`.
unsafe extern "C" fn get_times<T: Render>(
    sink: *mut gst_base::ffi::GstBaseSink,
    buffer: *mut gst::ffi::GstBuffer,
    start: *mut gst::ffi::GstClockTime,
    end: *mut gst::ffi::GstClockTime,
) where
    T::Type: IsA<gst_base::BaseSink>,
{
    // SAFETY: GstBaseSink calls this with an instance of our class and four live pointers.
    unsafe {
        let instance = &*sink.cast::<T::Instance>();
        let imp = instance.imp();
        let buffer = first_of(buffer);
        let look = || buffer.is_null() || imp.is_rendered_at_once(gst::BufferRef::from_ptr(buffer));
        // No panic may reach C; to pace a frame by mistake is the smaller harm.
        if catch_unwind(AssertUnwindSafe(look)).unwrap_or(false) {
            *start = gst::ffi::GST_CLOCK_TIME_NONE;
            *end = gst::ffi::GST_CLOCK_TIME_NONE;
            return;
        }
        let parent = T::type_data()
            .as_ref()
            .parent_class()
            .cast::<gst_base::ffi::GstBaseSinkClass>();
        if let Some(get_times) = (*parent).get_times {
            get_times(sink, buffer, start, end);
        }
    }
}

/// GstBaseSink asks for the times of a list of buffers too, as if it were a buffer: then its first one, if there is one.
///
/// # Safety
///
/// It is a live buffer or a live list of buffers.
unsafe fn first_of(object: *mut gst::ffi::GstBuffer) -> *mut gst::ffi::GstBuffer {
    let list: *mut gst::ffi::GstBufferList = object.cast();
    // SAFETY: by the caller; both begin with a GstMiniObject, which has their type.
    unsafe {
        if (*object.cast::<gst::ffi::GstMiniObject>()).type_ != gst::ffi::gst_buffer_list_get_type()
        {
            object
        } else if gst::ffi::gst_buffer_list_length(list) == 0 {
            std::ptr::null_mut()
        } else {
            gst::ffi::gst_buffer_list_get(list, 0)
        }
    }
}

/// Makes `clock` the sink's clock, and returns the base time.
pub(super) fn follow_clock(
    sink: &gst_base::BaseSink,
    clock: &mut Option<gst::Clock>,
) -> Option<gst::ClockTime> {
    let element: *mut gst::ffi::GstElement = sink.as_ptr().cast();
    let before = clock
        .as_ref()
        .map_or(std::ptr::null_mut(), |clock| clock.as_ptr());
    // SAFETY: a live instance, whose fields are read under the lock that changes them. The reference that is taken there is
    // dropped, if it is the last, after the lock.
    let (base_time, other) = unsafe {
        let _lock = sink.object_lock();
        let now = (*element).clock;
        let other = (now != before).then(|| from_glib_none(now));
        (from_glib((*element).base_time), other)
    };
    if let Some(other) = other {
        *clock = other;
    }
    base_time
}

/// The segment of the stream. For the streaming thread, which alone changes it.
pub(super) fn segment(sink: &gst_base::BaseSink) -> &gst::Segment {
    // SAFETY: a field of a live instance, which no other thread writes, and this thread not while it renders.
    unsafe { gst::Segment::from_glib_ptr_borrow(&raw const (*sink.as_ptr()).segment) }
}

/// If the pipeline is paused, completes that and waits until it plays. For the streaming thread, which has the preroll
/// lock.
pub(super) fn preroll(sink: &gst_base::BaseSink, data: Data<'_>) -> Result<(), gst::FlowError> {
    let object: *mut gst::ffi::GstMiniObject = match data {
        Data::Buffer(buffer) => buffer.as_mut_ptr().cast(),
        Data::Event(event) => event.as_mut_ptr().cast(),
    };
    let sink = sink.as_ptr();
    // SAFETY: a live instance and a live object of the kinds that this function takes; the fields change only under the
    // lock that the caller has.
    let flow = unsafe {
        if (*sink).flushing != glib::ffi::GFALSE {
            return Err(gst::FlowError::Flushing);
        }
        gst_base::ffi::gst_base_sink_do_preroll(sink, object)
    };
    // SAFETY: GStreamer returns a flow.
    unsafe { gst::FlowSuccess::try_from_glib(flow) }.map(drop)
}

/// Releases the preroll lock for a moment, so that the state can be changed. For the streaming thread, which has it.
pub(super) fn yield_preroll_lock(sink: &gst_base::BaseSink) {
    let sink = sink.as_ptr();
    // SAFETY: a live instance, whose lock this thread has by the caller's word and has again afterwards.
    unsafe {
        let lock = &raw mut (*sink).preroll_lock;
        glib::ffi::g_mutex_unlock(lock);
        std::thread::sleep(Duration::from_millis(1));
        glib::ffi::g_mutex_lock(lock);
    }
}

/// The streaming thread's present buffer or event.
#[derive(Debug, Clone, Copy)]
pub(super) enum Data<'a> {
    Buffer(&'a gst::BufferRef),
    Event(&'a gst::EventRef),
}
