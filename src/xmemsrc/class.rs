// SPDX-License-Identifier: MPL-2.0

//! Virtual functions that GstBaseSrc calls for each frame, without the bindings' wrappers.
#![allow(unsafe_code)] // fills a class structure with C function pointers

use std::ptr;

use gst::glib::{self, prelude::*, subclass::prelude::*, translate::*};
use gst_base::{
    ffi::{GstBaseSrc, GstBaseSrcClass},
    subclass::prelude::*,
};

use crate::unwind;

/// A source that creates one buffer after another.
pub(super) trait Create: BaseSrcImpl
where
    Self::Type: IsA<gst_base::BaseSrc>,
{
    /// Creates the next buffer.
    fn next_buffer(&self) -> Result<gst::Buffer, gst::FlowError>;
}

/// Puts the functions into the class.
pub(super) fn init<T: Create>(class: &mut T::Class)
where
    T::Type: IsA<gst_base::BaseSrc>,
{
    let class: *mut GstBaseSrcClass = ptr::from_mut(class).cast();
    // SAFETY: the class is being initialised, so no other thread uses it. It begins with its parent's structure,
    // GstBaseSrcClass.
    unsafe {
        let parent = glib::gobject_ffi::g_type_class_peek_parent(class.cast());
        (*class).get_times = (*parent.cast::<GstBaseSrcClass>()).get_times;
        (*class).create = Some(create::<T>);
    }
}

/// `GstBaseSrcClass::create`.
unsafe extern "C" fn create<T: Create>(
    element: *mut GstBaseSrc,
    _offset: u64,
    _length: u32,
    buffer: *mut gst::ffi::GstBuffer,
) -> gst::ffi::GstFlowReturn
where
    T::Type: IsA<gst_base::BaseSrc>,
{
    // SAFETY: GstBaseSrc calls this with an instance of this class.
    let imp = unsafe { &*element.cast::<T::Instance>() }.imp();
    // The bindings declare the pointer to a buffer pointer as a pointer to a buffer.
    let place: *mut *mut gst::ffi::GstBuffer = buffer.cast();
    match unwind::catch(imp, || imp.next_buffer()) {
        Ok(buffer) => {
            // SAFETY: GstBaseSrc passes a valid pointer to an empty buffer pointer. Only pads in pull mode fill it in advance,
            // and this element has none.
            unsafe { *place = buffer.into_glib_ptr() };
            gst::ffi::GST_FLOW_OK
        }
        Err(flow) => gst::FlowReturn::from_error(flow).into_glib(),
    }
}
