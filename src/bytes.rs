// SPDX-License-Identifier: MPL-2.0

//! Strings from C that may not be UTF-8. The bindings assume UTF-8, and abort the process otherwise.
#![allow(unsafe_code)] // reads C strings, and fills an interface with C function pointers

use std::{
    borrow::Cow,
    ffi::{CStr, OsString, c_char},
    path::PathBuf,
};

use gst::{
    glib::{self, subclass::prelude::*, translate::*},
    prelude::*,
    subclass::prelude::*,
};

/// A string property that is a path.
pub(crate) fn path(value: &glib::Value) -> Option<OsString> {
    let path = value.get::<Option<PathBuf>>();
    path.ok().flatten().map(PathBuf::into_os_string)
}

/// A string property that is text. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(value: &glib::Value) -> Option<String> {
    path(value).map(|text| text.to_string_lossy().into_owned())
}

/// The name of an element. Bytes that are not UTF-8 are replaced.
pub(crate) fn name_of(element: &impl IsA<gst::Element>) -> String {
    text(&element.property_value("name")).unwrap_or_default()
}

/// GLib's name of this program. For a script, the name of the script. Bytes that are not UTF-8 are replaced.
pub(crate) fn program_name() -> Option<String> {
    // SAFETY: null, or a string that GLib keeps until the program's name is changed.
    unsafe { lossy(glib::ffi::g_get_prgname()) }.map(Cow::into_owned)
}

/// Converts a C string. Bytes that are not UTF-8 are replaced.
///
/// # Safety
///
/// `text` is null, or a NUL-terminated string that outlives the result.
pub(crate) unsafe fn lossy<'a>(text: *const c_char) -> Option<Cow<'a, str>> {
    // SAFETY: by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

glib::wrapper! {
    /// GstURIHandler whose addresses may contain any bytes.
    pub struct UriHandler(Interface<gst::ffi::GstURIHandler, gst::ffi::GstURIHandlerInterface>);

    match fn {
        type_ => || gst::ffi::gst_uri_handler_get_type(),
    }
}

// SAFETY: the interface of the bindings, which initialise it. One function is replaced by another of the same type.
unsafe impl<T: URIHandlerImpl> IsImplementable<T> for UriHandler {
    fn interface_init(iface: &mut glib::Interface<Self>) {
        let same: *mut glib::Interface<gst::URIHandler> = std::ptr::from_mut(iface).cast();
        // SAFETY: both are GstURIHandlerInterface.
        <gst::URIHandler as IsImplementable<T>>::interface_init(unsafe { &mut *same });
        iface.as_mut().set_uri = Some(set_uri::<T>);
    }
}

unsafe extern "C" fn set_uri<T: URIHandlerImpl>(
    handler: *mut gst::ffi::GstURIHandler,
    uri: *const c_char,
    error: *mut *mut glib::ffi::GError,
) -> glib::ffi::gboolean {
    // SAFETY: GStreamer calls this with an instance of T, a string, and null or a pointer for an error.
    let (imp, uri) = unsafe {
        let instance = &*handler.cast::<T::Instance>();
        (instance.imp(), CStr::from_ptr(uri))
    };
    match imp.set_uri(&encoded(uri)) {
        Ok(()) => glib::ffi::GTRUE,
        Err(why) => {
            if !error.is_null() {
                // SAFETY: as above. The caller frees the error.
                unsafe { *error = why.into_glib_ptr() };
            }
            glib::ffi::GFALSE
        }
    }
}

/// Percent-encodes the bytes of an address that are not UTF-8. A valid address has none.
fn encoded(uri: &CStr) -> Cow<'_, str> {
    uri.to_str().map_or_else(
        |_| {
            let bytes = uri.to_bytes().iter();
            let encoded = bytes.map(|byte| match byte {
                0x80.. => format!("%{byte:02X}"),
                _ => char::from(*byte).to_string(),
            });
            encoded.collect()
        },
        Cow::Borrowed,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_that_is_not_utf_8_is_kept() {
        // SAFETY: a NUL-terminated string. No other test of this process reads the name.
        unsafe { glib::ffi::g_set_prgname(c"b\xe4r".as_ptr()) };
        assert_eq!(program_name().as_deref(), Some("b\u{fffd}r"));
    }

    #[test]
    fn addresses_become_text() {
        assert_eq!(encoded(c"xmem://Höfe%20"), "xmem://Höfe%20");
        assert_eq!(encoded(c"xmem:///a/\xff%20b"), "xmem:///a/%FF%20b");
    }
}
