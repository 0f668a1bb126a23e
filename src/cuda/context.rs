// SPDX-License-Identifier: MPL-2.0

//! GstCudaContext, shared by the elements of a pipeline.
//!
//! xmem uses each device's primary context. Elements can exchange CUDA memory without a copy only if they have the same
//! GstCudaContext. So there is one for each device here, around the primary context, and every query of a neighbour returns it.
//! If another element has one around the same context, that one is used.
#![allow(unsafe_code)] // calls a library that is loaded at run time

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
        // Without the library, no object of this type exists.
        type_ => || Library::get().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.cuda_context_get_type)()),
    }
}

// SAFETY: a GstObject around a CUcontext. Any thread may use both.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// The GstCudaContext around a device's primary context.
    pub(crate) fn of_device(device: &Device) -> Option<Self> {
        static MADE: Mutex<Vec<CudaContext>> = Mutex::new(Vec::new());
        let library = Library::get()?;
        let mut made = lock(&MADE);
        if let Some(context) = made.iter().find(|context| context.is_of(device)) {
            return Some(context.clone());
        }
        let handle = device.primary_context() as usize as CuContext;
        // A CUdevice is the ordinal of the device.
        let number = CuDevice::try_from(device.ordinal()).ok()?;
        // SAFETY: the context is retained until the process ends. The result is checked for null.
        let context: Self = unsafe {
            let context = (library.cuda_context_new_wrapped)(handle, number);
            if context.is_null() {
                gst::warning!(
                    CAT,
                    "Cannot create a GstCudaContext of device {}",
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

    /// Converts it to a GstContext.
    pub(crate) fn to_context(&self) -> Option<gst::Context> {
        let library = Library::get()?;
        // SAFETY: the function takes a live object and returns a new context.
        Some(unsafe { from_glib_full((library.context_new_cuda_context)(self.as_ptr())) })
    }

    /// The CUcontext.
    pub(crate) fn handle(&self) -> u64 {
        // SAFETY: a live context.
        let handle = Library::get()
            .map(|library| unsafe { (library.cuda_context_get_handle)(self.as_ptr()) });
        handle.map_or(0, |handle| handle.addr() as u64)
    }

    /// Whether this is around the primary context of `device`.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.handle() == device.primary_context()
    }

    /// Whether this is around the primary context of its device.
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

/// The context for an element: of the device `ordinal`, otherwise the context of its pipeline, otherwise of the first device.
/// The caller holds no lock.
pub(crate) fn shared(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    Library::get()?;
    primary_context(existing_context(element, ordinal), element, ordinal)
}

/// Like `shared`, but `None` if the pipeline uses a context that is not a primary one.
pub(crate) fn shared_by_all(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    Library::get()?;
    let existing = existing_context(element, ordinal);
    if existing
        .as_ref()
        .is_some_and(|existing| !existing.is_primary())
    {
        return None;
    }
    primary_context(existing, element, ordinal)
}

/// `existing`, if it is around a primary context. Otherwise another one that is.
fn primary_context(
    existing: Option<CudaContext>,
    element: &gst::Element,
    ordinal: Option<u32>,
) -> Option<CudaContext> {
    if existing.as_ref().is_some_and(CudaContext::is_primary) {
        return existing;
    }
    let device = match existing.and_then(|context| context.device()) {
        // The pipeline uses this device, in another context.
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

/// An existing context, if it is of the requested device.
fn existing_context(element: &gst::Element, ordinal: Option<u32>) -> Option<CudaContext> {
    find_context(element).filter(|existing| {
        let device = existing.device();
        ordinal.is_none_or(|ordinal| {
            device
                .as_ref()
                .is_some_and(|device| device.ordinal() == ordinal)
        })
    })
}

/// Answers a neighbour's query for a context of this kind. Does not forward it, because the neighbour queries others itself.
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

/// The device with this number. Without a number, the device of the neighbours, otherwise the first.
fn device_for(element: &gst::Element, ordinal: Option<u32>) -> Option<Device> {
    let ordinal = ordinal.or_else(|| ordinal_of_neighbours(element));
    Device::new(ordinal.unwrap_or(0))
        .inspect_err(|error| gst::warning!(CAT, obj = element, "{error}"))
        .ok()
}

/// The device of the nearest element with `cuda-device-id`. A context query does not name a device, and an element that gets
/// the context of another device creates its own context, which is not the primary one.
fn ordinal_of_neighbours(element: &gst::Element) -> Option<u32> {
    /// An upper bound for the links between a decoder and a sink.
    const MAX_LINKS: usize = 64;
    let mut pads = VecDeque::from(element.pads());
    for _ in 0..MAX_LINKS {
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

/// The value of the property that all of GStreamer's CUDA elements have.
fn ordinal_of(element: &gst::Element) -> Option<u32> {
    const PROPERTY: &str = "cuda-device-id";
    let property = element.find_property(PROPERTY)?;
    if !property.flags().contains(glib::ParamFlags::READABLE) {
        return None;
    }
    // Some elements have a guint, others a gint with -1 for any device.
    let ordinal = element.property_value(PROPERTY).transform::<i64>().ok()?;
    u32::try_from(ordinal.get::<i64>().ok()?).ok()
}

/// The context that was set on the element, or of its neighbours, or of the application.
fn find_context(element: &gst::Element) -> Option<CudaContext> {
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
            // An application with a context sets it before this call returns.
            let message = gst::message::NeedContext::builder(CONTEXT_TYPE)
                .src(element)
                .build();
            let _ = element.post_message(message);
            given(element)
        })
}
