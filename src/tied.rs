// SPDX-License-Identifier: MPL-2.0

//! What lives exactly as long as a GstMemory that somebody else's allocator made.

// Qdata of mini objects are C pointers with a destructor.
#![allow(unsafe_code)]

use std::any::Any;

use gst::glib::{self, translate::IntoGlib};

/// Something that can be tied to memories, at most one of its kind to each.
pub(crate) trait Tie: Any + Clone + Send + Sync {
    /// Names the kind, in the whole process.
    const NAME: &'static glib::GStr;
}

fn quark<T: Tie>() -> glib::Quark {
    glib::Quark::from_static_str(T::NAME)
}

unsafe extern "C" fn free<T: Tie>(value: glib::ffi::gpointer) {
    // SAFETY: made by Box in `tie`, for this type; GStreamer calls this once.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

/// Ties something to a memory, in place of what was tied to it.
pub(crate) fn tie<T: Tie>(memory: &gst::MemoryRef, value: T) {
    let value = Box::into_raw(Box::new(value));
    // SAFETY: a live memory; GStreamer guards the list with a lock of its own, and frees the value with the memory.
    unsafe {
        gst::ffi::gst_mini_object_set_qdata(
            memory.as_ptr().cast_mut().cast(),
            quark::<T>().into_glib(),
            value.cast(),
            Some(free::<T>),
        );
    }
}

/// What is tied to a memory, or to the one that it is a part of.
pub(crate) fn tied<T: Tie>(memory: &gst::MemoryRef) -> Option<T> {
    // SAFETY: live memories. The value is of this type (its name is), and it is there as long as the memory is, unless
    // `tie` replaces it meanwhile: that is done by the one streaming thread that also reads it.
    let own = unsafe {
        let value = gst::ffi::gst_mini_object_get_qdata(
            memory.as_ptr().cast_mut().cast(),
            quark::<T>().into_glib(),
        );
        value.cast::<T>().as_ref().cloned()
    };
    own.or_else(|| tied(memory.parent()?))
}
