// SPDX-License-Identifier: MPL-2.0

//! Catches panics in virtual functions that C calls without the bindings' wrappers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use gst::{glib::subclass::prelude::*, prelude::*, subclass::prelude::*};

/// Calls the implementation of a virtual function. A panic becomes an error message and ends the stream.
pub(crate) fn catch<T: ElementImpl, R>(
    imp: &T,
    run: impl FnOnce() -> Result<R, gst::FlowError>,
) -> Result<R, gst::FlowError>
where
    T::Type: IsA<gst::Element>,
{
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let element = imp.obj();
        imp.panicked().store(true, Ordering::Relaxed);
        let element = element.upcast_ref();
        gst::subclass::post_panic_error_message(element, element.upcast_ref(), Some(panic));
        Err(gst::FlowError::Error)
    })
}
