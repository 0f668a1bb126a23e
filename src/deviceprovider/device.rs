// SPDX-License-Identifier: MPL-2.0

//! A pool as a GstDevice.

// Fills a class structure with C function pointers.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char},
    sync::OnceLock,
};

use gst::{ffi, glib, prelude::*, subclass::prelude::*};

use super::{CAT, pools::Pool};
use crate::{XmemSrc, bytes};

const PROP_POOL: &str = "pool";

#[derive(Debug, Default)]
pub struct XmemDevice {
    /// Set before other threads see the device.
    pool: OnceLock<String>,
}

impl super::XmemDevice {
    pub(super) fn new(pool: &Pool) -> Self {
        let properties = gst::Structure::builder("xmem-proplist")
            .field("device.api", "xmem")
            .field("device.path", &pool.path)
            .field("xmem.pool", &pool.name)
            .field("xmem.pid", pool.pid)
            .field("xmem.delivery", pool.delivery.to_string())
            .build();
        let caps = pool.caps.clone().unwrap_or_else(gst::Caps::new_any);
        let device: Self = glib::Object::builder()
            .property("display-name", &pool.name)
            .property("device-class", pool.class())
            .property("caps", caps)
            .property("properties", properties)
            .build();
        let _ = device.imp().pool.set(pool.name.clone());
        device
    }
}

#[glib::object_subclass]
impl ObjectSubclass for XmemDevice {
    const NAME: &'static str = "GstXmemDevice";
    type Type = super::XmemDevice;
    type ParentType = gst::Device;

    fn class_init(class: &mut Self::Class) {
        let class: &mut glib::Class<gst::Device> = class;
        if let Some(of_bindings) = class.as_mut().create_element.replace(create_element) {
            let _ = CREATE_ELEMENT.set(of_bindings);
        }
    }
}

type CreateElement =
    unsafe extern "C" fn(*mut ffi::GstDevice, *const c_char) -> *mut ffi::GstElement;

/// The function of the bindings, which requires a name in UTF-8.
static CREATE_ELEMENT: OnceLock<CreateElement> = OnceLock::new();

unsafe extern "C" fn create_element(
    device: *mut ffi::GstDevice,
    name: *const c_char,
) -> *mut ffi::GstElement {
    let Some(of_bindings) = CREATE_ELEMENT.get() else {
        return std::ptr::null_mut();
    };
    // SAFETY: GStreamer calls this with an instance of this class, and with null or a string. The bindings' function gets the
    // same.
    unsafe {
        let name = bytes::lossy(name).and_then(|name| CString::new(name.as_bytes()).ok());
        of_bindings(
            device,
            name.as_deref().map_or(std::ptr::null(), CStr::as_ptr),
        )
    }
}

impl ObjectImpl for XmemDevice {}

impl GstObjectImpl for XmemDevice {}

impl DeviceImpl for XmemDevice {
    fn create_element(&self, name: Option<&str>) -> Result<gst::Element, gst::LoggableError> {
        let mut element = gst::ElementFactory::make("xmemsrc").property(PROP_POOL, self.pool.get());
        if let Some(name) = name {
            element = element.name(name);
        }
        element.build().map_err(Into::into)
    }

    fn reconfigure_element(&self, element: &gst::Element) -> Result<(), gst::LoggableError> {
        let is_stopped = element.current_state() <= gst::State::Ready;
        if !element.is::<XmemSrc>() || !is_stopped {
            return Err(gst::loggable_error!(
                CAT,
                "{} is not a stopped xmemsrc",
                bytes::name_of(element)
            ));
        }
        element.set_property(PROP_POOL, self.pool.get());
        Ok(())
    }
}
