// SPDX-License-Identifier: MPL-2.0

//! The name of this program.
#![allow(unsafe_code)] // the bindings require a name in UTF-8

use std::borrow::Cow;

use gst::glib;

use crate::bytes;

/// GLib's name of the program. For a script, the name of the script. Bytes that are not UTF-8 are replaced.
pub(crate) fn name() -> Option<String> {
    // SAFETY: null, or a string that GLib keeps until the program's name is changed.
    unsafe { bytes::lossy(glib::ffi::g_get_prgname()) }.map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_that_is_not_utf_8_is_kept() {
        // SAFETY: a NUL-terminated string. No other test of this process reads the name.
        unsafe { glib::ffi::g_set_prgname(c"b\xe4r".as_ptr()) };
        assert_eq!(name().as_deref(), Some("b\u{fffd}r"));
    }
}
