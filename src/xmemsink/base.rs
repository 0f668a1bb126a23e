// SPDX-License-Identifier: MPL-2.0

//! GstBaseSink without the bindings: the virtual functions that it calls for each buffer, and the waits in `render` other than
//! the wait for the buffer's time.

// Fills a class structure with C function pointers, and reads fields of the instance.
#![allow(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::LazyLock,
    time::Duration,
};

use gst::{glib, glib::translate::*, prelude::*, subclass::prelude::*};
use gst_base::subclass::prelude::*;

use crate::{debug_category, unwind};

pub(super) static CAT: LazyLock<gst::DebugCategory> =
    LazyLock::new(|| debug_category("xmemsink", "Puts buffers into a shared pool"));

/// A sink that renders one buffer after another.
pub(super) trait Render: BaseSinkImpl
where
    Self::Type: IsA<gst_base::BaseSink>,
{
    /// Whether a buffer is rendered at once instead of at its time. GstBaseSink calls this once or several times before it
    /// renders a buffer, and before it drops one that is late or outside of the segment.
    fn is_rendered_at_once(&self, buffer: &gst::BufferRef) -> bool;
}

/// Puts the functions into the class.
pub(super) fn init<T: Render>(class: &mut T::Class)
where
    T::Type: IsA<gst_base::BaseSink>,
{
    // SAFETY: the class structure of a subclass starts with GstBaseSinkClass. Nothing else uses it while the class is
    // initialised.
    unsafe {
        let class: *mut gst_base::ffi::GstBaseSinkClass = std::ptr::from_mut(class).cast();
        (*class).get_times = Some(get_times::<T>);
        (*class).render = Some(render::<T>);
        // The bindings' functions only call the parent's, and GstBaseSink has none. If a class has one of them, GstBaseSink
        // computes the times of each buffer once more.
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
        let buffer = first_buffer(buffer);
        let check =
            || buffer.is_null() || imp.is_rendered_at_once(gst::BufferRef::from_ptr(buffer));
        // A panic must not reach C. After one, the frame is rendered at its time.
        if catch_unwind(AssertUnwindSafe(check)).unwrap_or(false) {
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

/// The buffer itself, or the first buffer of a list; null for an empty list. GstBaseSink passes a list to `get_times` as if it
/// were a buffer.
///
/// # Safety
///
/// `object` is a live buffer or a live list of buffers.
unsafe fn first_buffer(object: *mut gst::ffi::GstBuffer) -> *mut gst::ffi::GstBuffer {
    let list: *mut gst::ffi::GstBufferList = object.cast();
    // SAFETY: by the caller. Both types begin with a GstMiniObject, which holds the type.
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

/// Replaces `clock` if the sink has another clock. Returns the base time.
pub(super) fn follow_clock(
    sink: &gst_base::BaseSink,
    clock: &mut Option<gst::Clock>,
) -> Option<gst::ClockTime> {
    let element: *mut gst::ffi::GstElement = sink.as_ptr().cast();
    let before = clock
        .as_ref()
        .map_or(std::ptr::null_mut(), |clock| clock.as_ptr());
    // SAFETY: a live instance, whose fields are read under the object lock. The previous reference is dropped after the lock is
    // released, since it may be the last.
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

/// The segment of the stream. Only for the streaming thread.
pub(super) fn segment(sink: &gst_base::BaseSink) -> &gst::Segment {
    // SAFETY: a field of a live instance. Only the streaming thread writes it, and not while it renders.
    unsafe { gst::Segment::from_glib_ptr_borrow(&raw const (*sink.as_ptr()).segment) }
}

/// The result of [`preroll`] for a deferrable event while the pipeline is paused. It equals GST_FLOW_STEP, for which GstBaseSink
/// calls `render` again, so `render` must never return it.
pub(super) const PAUSED: gst::FlowError = gst::FlowError::CustomError;

/// If the pipeline is paused, prerolls and waits until it plays. The caller is the streaming thread, which holds the preroll
/// lock.
pub(super) fn preroll(sink: &gst_base::BaseSink, data: Data<'_>) -> Result<(), gst::FlowError> {
    let object: *mut gst::ffi::GstMiniObject = match data {
        Data::Buffer(buffer) => buffer.as_mut_ptr().cast(),
        Data::Event(event) | Data::DeferrableEvent(event) => event.as_mut_ptr().cast(),
    };
    let sink = sink.as_ptr();
    // SAFETY: a live instance, and a live buffer or event. The fields change only under the preroll lock, which the caller
    // holds.
    let flow = unsafe {
        if (*sink).flushing != glib::ffi::GFALSE {
            return Err(gst::FlowError::Flushing);
        }
        if (*sink).need_preroll == glib::ffi::GFALSE {
            return Ok(());
        }
        if matches!(data, Data::DeferrableEvent(_)) {
            return Err(PAUSED);
        }
        gst_base::ffi::gst_base_sink_do_preroll(sink, object)
    };
    // SAFETY: GStreamer returned this value.
    unsafe { gst::FlowSuccess::try_from_glib(flow) }.map(drop)
}

/// Releases the preroll lock for a millisecond, so that the state can change. The caller is the streaming thread, which holds
/// the lock.
pub(super) fn yield_preroll_lock(sink: &gst_base::BaseSink) {
    let sink = sink.as_ptr();
    // SAFETY: a live instance. This thread holds the lock, and locks it again before it returns.
    unsafe {
        let lock = &raw mut (*sink).preroll_lock;
        glib::ffi::g_mutex_unlock(lock);
        std::thread::sleep(Duration::from_millis(1));
        glib::ffi::g_mutex_lock(lock);
    }
}

/// The buffer or event that the streaming thread handles.
#[derive(Debug, Clone, Copy)]
pub(super) enum Data<'a> {
    Buffer(&'a gst::BufferRef),
    Event(&'a gst::EventRef),
    /// An event that must not wait in a pause. A live GstBaseSrc sends an application's events under the lock that it needs for
    /// the pause.
    DeferrableEvent(&'a gst::EventRef),
}
