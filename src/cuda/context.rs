// SPDX-License-Identifier: MPL-2.0

//! GstCudaContext, shared among the elements of a pipeline.
//!
//! xmem works in each device's primary context. Elements take CUDA memory from each other without a detour only if they have
//! the same GstCudaContext. So there is one for each device here, around the primary context, and every neighbour's query gets
//! it. If another element has made one around the same context, that one is used.
#![allow(unsafe_code)] // a library that is loaded

use std::collections::VecDeque;
use std::sync::Mutex;

use gst::{glib, glib::translate::*, prelude::*};
use xmem_core::cuda::Device;

use super::ffi::{CONTEXT_TYPE, CuContext, CuDevice, GstCudaContext};
use super::library::{CAT, Library};
use crate::lock;

glib::wrapper! {
    /// A GstCudaContext.
    pub(crate) struct CudaContext(Object<GstCudaContext>) @extends gst::Object;

    match fn {
        // Nothing of this type exists without the library.
        type_ => || Library::get().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.cuda_context_get_type)()),
    }
}

// SAFETY: a GstObject, around a CUcontext, both of which may be used from any thread.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// The one around a device's primary context.
    pub(crate) fn of_device(device: &Device) -> Option<Self> {
        static MADE: Mutex<Vec<CudaContext>> = Mutex::new(Vec::new());
        let library = Library::get()?;
        let mut made = lock(&MADE);
        if let Some(context) = made.iter().find(|context| context.is_of(device)) {
            return Some(context.clone());
        }
        let handle = device.primary_context() as usize as CuContext;
        // A device's CUdevice is its ordinal.
        let number = CuDevice::try_from(device.ordinal()).ok()?;
        // SAFETY: the context is retained for as long as the process runs. Null is looked for.
        let context: Self = unsafe {
            let context = (library.cuda_context_new_wrapped)(handle, number);
            if context.is_null() {
                gst::warning!(
                    CAT,
                    "Cannot make a GstCudaContext of device {}",
                    device.ordinal()
                );
                return None;
            }
            from_glib_full(context)
        };
        context.set_object_flags(gst::ObjectFlags::MAY_BE_LEAKED);
        made.push(context.clone());
        Some(context)
    }

    /// The CUDA context in a GstContext.
    fn of_context(context: &gst::Context) -> Option<Self> {
        Library::get()?;
        if context.context_type() != CONTEXT_TYPE {
            return None;
        }
        context.structure().get::<Self>(CONTEXT_TYPE).ok()
    }

    /// The same as a GstContext.
    pub(crate) fn to_context(&self) -> Option<gst::Context> {
        let library = Library::get()?;
        // SAFETY: it returns a new context for a live object.
        Some(unsafe { from_glib_full((library.context_new_cuda_context)(self.as_ptr())) })
    }

    /// Its CUcontext.
    pub(crate) fn handle(&self) -> u64 {
        // SAFETY: a live context.
        let handle = Library::get()
            .map(|library| unsafe { (library.cuda_context_get_handle)(self.as_ptr()) });
        handle.map_or(0, |handle| handle.addr() as u64)
    }

    /// Whether it is around the primary context of a device.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.handle() == device.primary_context()
    }

    /// Whether it is around that of its own device.
    fn is_primary(&self) -> bool {
        self.device().is_some_and(|device| self.is_of(&device))
    }

    /// The device.
    pub(crate) fn device(&self) -> Option<Device> {
        let ordinal = self.property::<u32>("cuda-device-id");
        match Device::new(ordinal) {
            Ok(device) => Some(device),
            Err(error) => {
                gst::warning!(CAT, obj = self, "Device {ordinal}: {error}");
                None
            }
        }
    }
}

/// The context that an element works in: of the device, or of whichever its pipeline uses, or of the first one. The element
/// holds no lock.
pub(crate) fn shared(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    Library::get()?;
    in_place_of(found(element, ordinal), element, ordinal)
}

/// The same, but `None` if the pipeline works in a context other than a primary one.
pub(crate) fn shared_by_all(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    Library::get()?;
    let found = found(element, ordinal);
    if found.as_ref().is_some_and(|found| !found.is_primary()) {
        return None;
    }
    in_place_of(found, element, ordinal)
}

/// The found one, if it is around a primary context; else one that is.
fn in_place_of(
    found: Option<CudaContext>,
    element: &gst::Element,
    ordinal: Option<u32>,
) -> Option<CudaContext> {
    if found.as_ref().is_some_and(CudaContext::is_primary) {
        return found;
    }
    let device = match found.and_then(|context| context.device()) {
        // The device that the pipeline uses, although in a context of its own.
        Some(device) => device,
        None => device_for(element, ordinal)?,
    };
    let context = CudaContext::of_device(&device)?;
    if element.context(CONTEXT_TYPE).is_none() {
        let context = context.to_context()?;
        element.set_context(&context);
        let message = gst::message::HaveContext::builder(context)
            .src(element)
            .build();
        let _ = element.post_message(message);
    }
    Some(context)
}

/// The context that exists for the device, if one is asked for.
fn found(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    asked_for(element).filter(|found| {
        let device = found.device();
        ordinal.is_none_or(|ordinal| {
            device
                .as_ref()
                .is_some_and(|device| device.ordinal() == ordinal)
        })
    })
}

/// The answer to a neighbour's query for a context of this kind. No other element is asked: the neighbour does so.
pub(crate) fn to_share(
    kind: &str,
    element: &gst::Element,
    ordinal: Option<u32>,
) -> Option<gst::Context> {
    if let Some(context) = element.context(kind) {
        return Some(context);
    }
    if kind != CONTEXT_TYPE {
        return None;
    }
    Library::get()?;
    let device = device_for(element, ordinal)?;
    CudaContext::of_device(&device)?.to_context()
}

/// The device with this number; without one that of the neighbours, or else the first.
fn device_for(element: &gst::Element, ordinal: Option<u32>) -> Option<Device> {
    let ordinal = ordinal.or_else(|| ordinal_of_neighbours(element));
    Device::new(ordinal.unwrap_or(0))
        .inspect_err(|error| gst::warning!(CAT, obj = element, "{error}"))
        .ok()
}

/// The device of the nearest element that has its `cuda-device-id` set. A query for a context names no device; an element
/// that gets the context of another device makes a context of its own, which is not the primary one.
fn ordinal_of_neighbours(element: &gst::Element) -> Option<u32> {
    /// More than there are between a decoder and a sink.
    const MOST_LINKS: usize = 64;
    let mut pads = VecDeque::from(element.pads());
    for _ in 0..MOST_LINKS {
        let Some(peer) = pads.pop_front()?.peer() else {
            continue;
        };
        if let Some(ordinal) = peer.parent_element().as_ref().and_then(ordinal_of) {
            return Some(ordinal);
        }
        pads.extend(peer.iterate_internal_links().into_iter().flatten());
    }
    None
}

/// The property that all of GStreamer's CUDA elements have.
fn ordinal_of(element: &gst::Element) -> Option<u32> {
    const PROPERTY: &str = "cuda-device-id";
    let property = element.find_property(PROPERTY)?;
    if !property.flags().contains(glib::ParamFlags::READABLE) {
        return None;
    }
    // A guint in some, a gint with -1 for any device in others.
    let ordinal = element.property_value(PROPERTY).transform::<i64>().ok()?;
    u32::try_from(ordinal.get::<i64>().ok()?).ok()
}

/// The context that was set on the element, of its neighbours, or of the application.
fn asked_for(element: &gst::Element) -> Option<CudaContext> {
    let given = |element: &gst::Element| CudaContext::of_context(&element.context(CONTEXT_TYPE)?);
    given(element)
        .or_else(|| {
            element.pads().into_iter().find_map(|pad| {
                let mut query = gst::query::Context::new(CONTEXT_TYPE);
                let answered = pad.peer_query(&mut query);
                CudaContext::of_context(&query.context_owned().filter(|_| answered)?)
            })
        })
        .or_else(|| {
            // An application that has one sets it before this returns.
            let message = gst::message::NeedContext::builder(CONTEXT_TYPE)
                .src(element)
                .build();
            let _ = element.post_message(message);
            given(element)
        })
}
