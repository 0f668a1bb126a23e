// SPDX-License-Identifier: MPL-2.0

//! Metas that only their own library can serialize. GStreamer has functions for it since 1.24. They are looked up at run time,
//! because the plugin also supports older versions.

// Calls functions that the bindings for 1.22 do not have.
#![allow(unsafe_code)]

use std::{ffi::c_uint, sync::LazyLock};

use gst::{
    MetaRef,
    glib::{self, IntoGStr},
};
use libloading::Library;
use minicbor::{Decode, Decoder, Encode};

use super::kind::{Why, append, read};
use crate::library::functions;

/// Key of metas in GStreamer's format.
pub(super) const KEY: &str = "meta:gstreamer/1";

functions! { Api {
    meta_serialize_simple: fn(*const gst::ffi::GstMeta, *mut glib::ffi::GByteArray) -> glib::ffi::gboolean;
    meta_deserialize: fn(*mut gst::ffi::GstBuffer, *const u8, usize, *mut c_uint) -> *mut gst::ffi::GstMeta;
} optional {}}

/// `None`: GStreamer is older than 1.24.
static API: LazyLock<Option<Api>> = LazyLock::new(|| {
    // SAFETY: this plugin is linked to the library, so it is already loaded and initialised. The types are those of its header.
    unsafe { Api::of(Library::new("libgstreamer-1.0.so.0").ok()?).ok() }
});

#[derive(Debug, Encode, Decode)]
struct ForeignRecord<'a> {
    #[b(0)]
    name: &'a str,
    /// The output of gst_meta_serialize().
    #[cbor(b(1), with = "minicbor::bytes")]
    data: &'a [u8],
}

/// Appends a meta in its own serialization. `false`: it cannot be serialized.
pub(super) fn encode(meta: &MetaRef<'_, gst::Meta>, out: &mut Vec<u8>) -> Result<bool, Why> {
    let Some(api) = &*API else {
        return Ok(false);
    };
    // SAFETY: a live meta, and an array that is freed after its bytes are copied. If the meta has no serializer, the array is
    // empty and its data may be null.
    unsafe {
        let array = glib::ffi::g_byte_array_new();
        let done = (api.meta_serialize_simple)(meta.as_ptr(), array) != glib::ffi::GFALSE;
        let result = if done && !(*array).data.is_null() {
            let record = ForeignRecord {
                name: meta.type_().name(),
                data: std::slice::from_raw_parts((*array).data, (*array).len as usize),
            };
            append(&record, out).map(|()| true)
        } else {
            Ok(false)
        };
        glib::ffi::g_byte_array_unref(array);
        result
    }
}

/// Reads a meta in GStreamer's format. `Err`: its name and the reason.
pub(super) fn decode(
    decoder: &mut Decoder<'_>,
    buffer: &mut gst::BufferRef,
    is_ours: impl Fn(&str) -> bool,
) -> Result<(), (String, Why)> {
    let record: ForeignRecord<'_> = read(decoder).map_err(|why| ("gstreamer".to_owned(), why))?;
    let fail = |why: &'static str| Err((record.name.to_owned(), why.into()));
    let Some(api) = &*API else {
        return fail("GStreamer reads it from version 1.24 on, and this process has an older one");
    };
    // GStreamer's format may not replace a format of this module: only those are checked against the frame.
    if !has_header(record.data, record.name) || is_ours(record.name) || is_custom(record.name) {
        return fail("it is invalid");
    }
    let mut consumed = 0;
    // SAFETY: the buffer is borrowed for writing. The bytes have that length, and their header names a meta and is within them.
    // The meta's own code is responsible for the rest.
    let meta = unsafe {
        (api.meta_deserialize)(
            buffer.as_mut_ptr(),
            record.data.as_ptr(),
            record.data.len(),
            &mut consumed,
        )
    };
    if meta.is_null() {
        return fail("no plugin or library in this process knows it, or it is invalid");
    }
    Ok(())
}

/// Whether this process has registered a custom meta with this name. The name contains no NUL.
fn is_custom(name: &str) -> bool {
    name.run_with_gstr(|name| {
        // SAFETY: a NUL-terminated string. The returned info lives until the process ends.
        unsafe {
            let info = gst::ffi::gst_meta_get_info(name.as_ptr());
            !info.is_null() && gst::ffi::gst_meta_info_is_custom(info) != glib::ffi::GFALSE
        }
    })
}

/// Whether data begin with GStreamer's header for a meta of this name: total size and length of the name in 32 bits each, the
/// name, a NUL, a version. GStreamer does not check the length of the name sufficiently.
fn has_header(data: &[u8], name: &str) -> bool {
    let word = |at: usize| {
        let bytes = data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let header = 4 + 4 + name.len() + 1 + 1;
    word(0) == Some(data.len())
        && word(4) == Some(name.len())
        && !name.contains('\0')
        && data.get(8..8 + name.len()) == Some(name.as_bytes())
        && data.get(8 + name.len()) == Some(&0)
        && data.len() >= header
}

#[cfg(test)]
mod tests {
    use super::has_header;

    #[test]
    fn headers() {
        let good = b"\x0d\0\0\0\x03\0\0\0abc\0\0";
        assert!(has_header(good, "abc"));
        assert!(!has_header(good, "abd"));
        assert!(!has_header(good, "ab"));
        assert!(!has_header(b"\x0d\0\0\0\xff\xff\xff\xffabc\0\0", "abc"));
        assert!(!has_header(b"\x0e\0\0\0\x03\0\0\0abc\0\0", "abc"));
        for end in 0..good.len() {
            assert!(!has_header(&good[..end], "abc"));
        }
    }
}
