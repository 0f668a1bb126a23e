// SPDX-License-Identifier: MPL-2.0

//! Values that are attached to a GstMemory of another allocator and freed with it.

// Qdata of mini objects are C pointers with a destructor.
#![allow(unsafe_code)]

use std::any::Any;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use gst::glib::{self, translate::IntoGlib};

use crate::lock;

/// A type of values that can be attached to memories, at most one value of each type to a memory.
pub(crate) trait Tie: Any + Clone + Send + Sync {
    /// The name of the type. Unique in the process.
    const NAME: &'static glib::GStr;
}

/// Locks all attached values. Behind a tee several elements have the same memory, and one must not remove a value while another
/// reads it.
fn lock_values() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    lock(&LOCK)
}

fn quark<T: Tie>() -> glib::Quark {
    glib::Quark::from_static_str(T::NAME)
}

unsafe extern "C" fn free<T: Tie>(value: glib::ffi::gpointer) {
    // SAFETY: `tie` made it with Box, for this type. GStreamer calls this once.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

/// Attaches a value to a memory. Replaces the previous value.
pub(crate) fn tie<T: Tie>(memory: &gst::MemoryRef, value: T) {
    exchange(memory, Some(value));
}

/// Removes the value attached to a memory itself.
pub(crate) fn untie<T: Tie>(memory: &gst::MemoryRef) -> Option<T> {
    exchange(memory, None)
}

/// Returns the old value, so that the caller drops it without the lock.
fn exchange<T: Tie>(memory: &gst::MemoryRef, value: Option<T>) -> Option<T> {
    let object = memory.as_ptr().cast_mut().cast();
    let quark = quark::<T>().into_glib();
    let _lock = lock_values();
    // SAFETY: a live memory. The name is unique to this type, so the value is of this type and was made by Box. The thread that
    // steals it frees it.
    let old = unsafe {
        let old = gst::ffi::gst_mini_object_steal_qdata(object, quark).cast::<T>();
        (!old.is_null()).then(|| *Box::from_raw(old))
    };
    let value = value.map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)));
    if !value.is_null() {
        // SAFETY: a live memory. GStreamer frees the value together with it.
        unsafe {
            gst::ffi::gst_mini_object_set_qdata(object, quark, value.cast(), Some(free::<T>))
        };
    }
    old
}

/// Changes the value attached to a memory itself. Starts with the default if there is none. All attached values are locked
/// meanwhile, so the caller must drop values that `change` removes.
pub(crate) fn update<T: Tie + Default, R>(
    memory: &gst::MemoryRef,
    change: impl FnOnce(&mut T) -> R,
) -> R {
    let object = memory.as_ptr().cast_mut().cast();
    let quark = quark::<T>().into_glib();
    let _lock = lock_values();
    // SAFETY: a live memory. The name is unique to this type, so the value is of this type and was made by Box. The lock keeps
    // other threads away.
    unsafe {
        let mut value = gst::ffi::gst_mini_object_get_qdata(object, quark).cast::<T>();
        if value.is_null() {
            value = Box::into_raw(Box::<T>::default());
            gst::ffi::gst_mini_object_set_qdata(object, quark, value.cast(), Some(free::<T>));
        }
        change(&mut *value)
    }
}

/// The value attached to a memory, or to the memory that it is a part of.
pub(crate) fn tied<T: Tie>(memory: &gst::MemoryRef) -> Option<T> {
    let own = {
        let _lock = lock_values();
        // SAFETY: a live memory. The name is unique to this type, so the value is of this type. The lock keeps other threads
        // from removing it.
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
