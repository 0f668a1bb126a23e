// SPDX-License-Identifier: MPL-2.0

//! Values that live exactly as long as a GstMemory of another allocator.

// Qdata of mini objects are C pointers with a destructor.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use gst::glib::{self, translate::IntoGlib};

use crate::lock;

/// Something that can be tied to memories, at most one of its kind to each.
pub(crate) trait Tie: Any + Clone + Send + Sync {
    /// Names the kind, in the whole process.
    const NAME: &'static glib::GStr;
}

/// Until the returned guard is dropped, no other thread reads or changes values tied to any memory. Behind a tee, several
/// elements have one memory: none may take away a value that another reads.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    lock(&LOCK)
}

fn quark<T: Tie>() -> glib::Quark {
    glib::Quark::from_static_str(T::NAME)
}

unsafe extern "C" fn free<T: Tie>(value: glib::ffi::gpointer) {
    // SAFETY: made by Box in `tie`, for this type; GStreamer calls this once.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

/// Ties a value to a memory, in place of the value tied to it before.
pub(crate) fn tie<T: Tie>(memory: &gst::MemoryRef, value: T) {
    exchange(memory, Some(value));
}

/// Takes away the value tied to a memory itself.
pub(crate) fn untie<T: Tie>(memory: &gst::MemoryRef) -> Option<T> {
    exchange(memory, None)
}

/// Returns the old value, so that it ends when nothing is locked.
fn exchange<T: Tie>(memory: &gst::MemoryRef, value: Option<T>) -> Option<T> {
    let object = memory.as_ptr().cast_mut().cast();
    let quark = quark::<T>().into_glib();
    let _alone = alone();
    // SAFETY: a live memory. The value is of this type, as no other kind has its name, and was made by Box; the thread that
    // steals it frees it.
    let old = unsafe {
        let old = gst::ffi::gst_mini_object_steal_qdata(object, quark).cast::<T>();
        (!old.is_null()).then(|| *Box::from_raw(old))
    };
    let value = value.map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)));
    if !value.is_null() {
        // SAFETY: a live memory; GStreamer frees the value with it.
        unsafe {
            gst::ffi::gst_mini_object_set_qdata(object, quark, value.cast(), Some(free::<T>))
        };
    }
    old
}

/// Changes the value tied to a memory itself, from the default if there is none. While this runs no other thread reads or
/// changes values tied to any memory, so the caller has to drop values that `change` takes out.
pub(crate) fn update<T: Tie + Default, R>(
    memory: &gst::MemoryRef,
    change: impl FnOnce(&mut T) -> R,
) -> R {
    let object = memory.as_ptr().cast_mut().cast();
    let quark = quark::<T>().into_glib();
    let _alone = alone();
    // SAFETY: a live memory. The value is of this type, as no other kind has its name; it was made by Box, and no other
    // thread has it meanwhile.
    unsafe {
        let mut value = gst::ffi::gst_mini_object_get_qdata(object, quark).cast::<T>();
        if value.is_null() {
            value = Box::into_raw(Box::<T>::default());
            gst::ffi::gst_mini_object_set_qdata(object, quark, value.cast(), Some(free::<T>));
        }
        change(&mut *value)
    }
}

/// The value that is tied to a memory, or to the one that it is a part of.
pub(crate) fn tied<T: Tie>(memory: &gst::MemoryRef) -> Option<T> {
    let own = {
        let _alone = alone();
        // SAFETY: a live memory. The value is of this type, as no other kind has its name, and no other thread takes it
        // meanwhile.
        unsafe {
            let value = gst::ffi::gst_mini_object_get_qdata(
                memory.as_ptr().cast_mut().cast(),
                quark::<T>().into_glib(),
            );
            value.cast::<T>().as_ref().cloned()
        }
    };
    own.or_else(|| tied(memory.parent()?))
}
