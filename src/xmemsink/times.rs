// SPDX-License-Identifier: MPL-2.0

//! `GstBaseSinkClass::get_times`, which the bindings do not offer: whether the sink waits for a frame's time.

// A class structure is filled with C function pointers.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use gst::{glib, subclass::prelude::*};

use super::imp;

/// Puts our function in the place of the parent's.
pub(super) fn override_in(class: &mut <imp::XmemSink as ObjectSubclass>::Class) {
    let class: &mut glib::Class<gst_base::BaseSink> = class;
    // SAFETY: the class structure of a subclass starts with GstBaseSinkClass, and it is ours while it is set up.
    unsafe {
        let class: *mut gst_base::ffi::GstBaseSinkClass = std::ptr::from_mut(class).cast();
        (*class).get_times = Some(get_times);
    }
}

unsafe extern "C" fn get_times(
    sink: *mut gst_base::ffi::GstBaseSink,
    buffer: *mut gst::ffi::GstBuffer,
    start: *mut gst::ffi::GstClockTime,
    end: *mut gst::ffi::GstClockTime,
) {
    // SAFETY: GstBaseSink calls this with an instance of our class and four live pointers.
    unsafe {
        let instance = &*sink.cast::<<imp::XmemSink as ObjectSubclass>::Instance>();
        let imp = instance.imp();
        // No panic may reach C; a frame that is paced by mistake is the smaller harm.
        if catch_unwind(AssertUnwindSafe(|| imp.hands_over_at_once())).unwrap_or(false) {
            *start = gst::ffi::GST_CLOCK_TIME_NONE;
            *end = gst::ffi::GST_CLOCK_TIME_NONE;
            return;
        }
        let parent = imp::XmemSink::type_data()
            .as_ref()
            .parent_class()
            .cast::<gst_base::ffi::GstBaseSinkClass>();
        if let Some(get_times) = (*parent).get_times {
            get_times(sink, buffer, start, end);
        }
    }
}
