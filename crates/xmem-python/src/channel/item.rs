// SPDX-License-Identifier: MPL-2.0

//! The blocks of a message to send, at the sender.

use std::sync::Arc;

use pyo3::prelude::*;
use xmem_core::cuda::Stream;

use crate::device::{DeviceFrame, Use, stream_of};
use crate::keeper::Keeper;
use crate::plane::Plane;

/// A block of a message to send.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) in_order: bool,
    pub(super) shift: usize,
    /// An array with gaps, from which the block is gathered.
    pub(super) gather: Option<Py<PyAny>>,
    /// Set if the block is on a device.
    pub(super) device: Option<OnDevice>,
}

/// A block on a device.
#[derive(Debug)]
pub(super) struct OnDevice {
    pub(super) ordinal: u32,
    /// The stream that writes the block. `None`: it is written, or its frame has an event.
    pub(super) ready_on: Option<Stream>,
    /// Whether its memory stays unchanged until that stream has finished, even if its array is dropped.
    pub(super) keeps: bool,
    /// The frame that contains it, if it is an array of this module.
    pub(super) frame: Option<Arc<DeviceFrame>>,
}

/// `OnDevice`, from Python.
#[derive(Debug, FromPyObject)]
pub(super) struct SentOnDevice<'py>(
    u32,
    Option<Bound<'py, PyAny>>,
    bool,
    Option<Bound<'py, Plane>>,
);

impl SentOnDevice<'_> {
    fn parse(&self) -> PyResult<OnDevice> {
        let Self(ordinal, ready_on, keeps, plane) = self;
        let ready_on = ready_on.as_ref().map(stream_of).transpose()?;
        let keeper = plane
            .as_ref()
            .map(|plane| plane.get().array().keeper.clone());
        Ok(OnDevice {
            ordinal: *ordinal,
            // `asend` sends a message on another thread than the one that created its arrays.
            ready_on: ready_on.map(|stream| Use::On(stream).ends_on()),
            keeps: *keeps,
            frame: match keeper {
                Some(Keeper::Device(frame)) => Some(frame),
                _ => None,
            },
        })
    }
}

/// A block, from Python.
#[derive(Debug, FromPyObject)]
pub(super) struct Sent<'py>(
    usize,
    usize,
    bool,
    usize,
    Option<Py<PyAny>>,
    Option<SentOnDevice<'py>>,
);

impl Sent<'_> {
    pub(super) fn into_item(self) -> PyResult<Item> {
        let Self(start, len, in_order, shift, gather, device) = self;
        let device = device.map(|it| it.parse()).transpose()?;
        Ok(Item {
            start,
            len,
            in_order,
            shift,
            gather,
            device,
        })
    }
}
