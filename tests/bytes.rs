// SPDX-License-Identifier: MPL-2.0

//! Strings that are not UTF-8, as C programs can set them. A separate test program: the bindings abort the process if the plugin
//! treats such a string as text.

// Such strings can only be set by C functions.
#![allow(unsafe_code)]

mod support;

use std::{
    ffi::{CStr, CString, OsStr},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
    ptr,
};

use gst::{glib, glib::translate::*, prelude::*};
use support::*;

const NOT_UTF8: &CStr = c"a\xffb";

fn element(factory: &str) -> gst::Element {
    init();
    // The strings also appear in log messages.
    gst::log::set_threshold_from_string("xmem*:5", false);
    gst::ElementFactory::make(factory).build().unwrap()
}

/// Sets a property as g_object_set does.
fn set(element: &gst::Element, property: &str, text: &CStr) {
    let mut value = glib::Value::from_type(glib::Type::STRING);
    // SAFETY: a value for a string, and a string, which is copied.
    unsafe { glib::gobject_ffi::g_value_set_string(value.to_glib_none_mut().0, text.as_ptr()) };
    element.set_property_from_value(property, &value);
}

fn path_of(element: &gst::Element) -> Vec<u8> {
    let pool = element.property::<PathBuf>("pool");
    pool.into_os_string().into_vec()
}

fn set_uri(element: &gst::Element, uri: &CStr) -> Result<(), glib::Error> {
    let handler: *mut gst::ffi::GstElement = element.to_glib_none().0;
    let mut error = ptr::null_mut();
    // SAFETY: the element is an address handler, and the error is this function's.
    let is_set =
        unsafe { gst::ffi::gst_uri_handler_set_uri(handler.cast(), uri.as_ptr(), &mut error) };
    if is_set == glib::ffi::GTRUE {
        return Ok(());
    }
    // SAFETY: it is set where the function fails.
    Err(unsafe { from_glib_full(error) })
}

/// A pipeline that ends with an xmem element.
fn pipeline(element: &gst::Element, other: &str) -> Pipeline {
    let pipeline = Pipeline(gst::Pipeline::new());
    let other = gst::ElementFactory::make(other).build().unwrap();
    pipeline.0.add_many([element, &other]).unwrap();
    // Links the pads, because linking elements reads their names.
    let pad = |name| {
        let pad = element.static_pad(name);
        pad.or_else(|| other.static_pad(name)).unwrap()
    };
    pad("src").link(&pad("sink")).unwrap();
    pipeline
}

#[test]
fn every_string_property_takes_them() {
    for factory in ["xmemsink", "xmemsrc"] {
        let element = element(factory);
        let mut strings = 0;
        for pspec in element.list_properties().iter() {
            if pspec.value_type() == glib::Type::STRING {
                set(&element, pspec.name(), NOT_UTF8);
                // Only `pool` and `name` return the bytes. Other properties are converted to UTF-8.
                let value = element.property::<PathBuf>(pspec.name());
                let is_path = ["pool", "name"].contains(&pspec.name());
                assert_eq!(value.as_os_str().as_bytes() == NOT_UTF8.to_bytes(), is_path);
                strings += 1;
            }
        }
        assert!(strings > 2, "{strings}");
        // GStreamer itself warns about each message of an element whose name is not UTF-8.
        set(&element, "name", c"element");
        // None of the strings is a valid pool name.
        let other = if factory == "xmemsink" {
            "fakesrc"
        } else {
            "fakesink"
        };
        let pipeline = pipeline(&element, other);
        assert!(pipeline.0.set_state(gst::State::Paused).is_err());
        let (error, text) = pipeline.wait_error();
        assert!(error.matches(gst::ResourceError::Settings), "{text}");
    }
}

#[test]
fn invalid_bytes_are_refused_with_the_reason() {
    for (factory, other) in [("xmemsink", "fakesrc"), ("xmemsrc", "fakesink")] {
        let element = element(factory);
        set(&element, "pool", NOT_UTF8);
        let pipeline = pipeline(&element, other);
        assert!(pipeline.0.set_state(gst::State::Paused).is_err());
        let text = pipeline.fails_with(gst::ResourceError::Settings, "UTF-8");
        assert_contains(&text, "path");
    }
}

#[test]
fn frames_go_through_a_path_with_them() {
    let pools = Pools::new();
    let path = pools.path().join(OsStr::from_bytes(b"\xff.sock"));
    let c_path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let sink = element("xmemsink");
    set(&sink, "pool", &c_path);
    set(&sink, "name", NOT_UTF8);
    sink.set_property_from_str("delivery", "lossless");
    sink.set_property("wait-for-connection", true);
    let producer = pipeline(&sink, "videotestsrc");
    producer
        .0
        .iterate_sources()
        .foreach(|source| source.set_property("num-buffers", 3))
        .unwrap();
    // A consumer that waits, with an address that has the same bytes.
    let src = element("xmemsrc");
    let uri = glib::Uri::escape_bytes(path.as_os_str().as_bytes(), Some("/"));
    set_uri(&src, &CString::new(format!("xmem://{uri}")).unwrap()).unwrap();
    set(&src, "name", NOT_UTF8);
    let consumer = pipeline(&src, "fakesink");
    consumer.play();
    producer.play();
    consumer.wait_eos();
    producer.wait_eos();
    assert_eq!(stat(&src, "received"), 3);
    producer.stop();
    assert!(!path.exists());
}

#[test]
fn addresses_take_them() {
    for factory in ["xmemsink", "xmemsrc"] {
        let element = element(factory);
        let raw = c"xmem:///a/\xff%20";
        for uri in [raw, c"xmem:///a/%ff%20"] {
            set_uri(&element, uri).unwrap();
            assert_eq!(path_of(&element), b"/a/\xff ");
            let handler = element.dynamic_cast_ref::<gst::URIHandler>().unwrap();
            assert_eq!(handler.uri().unwrap(), "xmem:///a/%FF%20");
        }
        for uri in [
            c"xmem://\xff",
            c"xmem://%ff",
            c"xmem:///a?pool%ff=b",
            c"xmem:///a\xff?b",
        ] {
            let error = set_uri(&element, uri).unwrap_err();
            assert!(
                error
                    .message()
                    .contains(&*uri.to_string_lossy().replace('\u{fffd}', "%FF"))
            );
            assert_eq!(path_of(&element), b"/a/\xff ");
        }
        // An error message with the name of the element.
        set(&element, "name", NOT_UTF8);
    }
}

#[test]
fn devices_make_elements_with_such_names() {
    init();
    let device: gstxmem::XmemDevice = glib::Object::new();
    let device: *mut gst::ffi::GstDevice = device.upcast_ref::<gst::Device>().to_glib_none().0;
    for name in [NOT_UTF8.as_ptr(), c"a".as_ptr(), ptr::null()] {
        // SAFETY: a device, and null or a string. The element is floating.
        let element: gst::Element =
            unsafe { from_glib_none(gst::ffi::gst_device_create_element(device, name)) };
        assert!(element.is::<gstxmem::XmemSrc>());
    }
}
