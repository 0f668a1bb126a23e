// SPDX-License-Identifier: MPL-2.0

//! A pool as a GstDevice.

use std::sync::OnceLock;

use gst::{glib, prelude::*, subclass::prelude::*};

use super::pools::Pool;
use crate::XmemSrc;

const PROP_POOL: &str = "pool";

#[derive(Debug, Default)]
pub struct XmemDevice {
    /// Set before anybody else sees the device.
    pool: OnceLock<String>,
}

impl super::XmemDevice {
    pub(super) fn new(pool: &Pool) -> Self {
        let properties = gst::Structure::builder("xmem-proplist")
            .field("device.api", "xmem")
            .field("device.path", &pool.path)
            .field("xmem.pool", &pool.name)
            .field("xmem.pid", pool.pid)
            .field("xmem.delivery", &pool.delivery)
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
                super::imp::CAT,
                "{} is no xmemsrc that is stopped",
                element.name()
            ));
        }
        element.set_property(PROP_POOL, self.pool.get());
        Ok(())
    }
}
