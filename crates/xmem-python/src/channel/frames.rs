// SPDX-License-Identifier: MPL-2.0

//! Frames of pools in messages: converts a frame to its parts at the sender, and back at the receiver.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use xmem_core::{FrameFlags, FrameInfo, FrameLayout, FrameMeta, VideoLayout};

use super::arrays::DeviceBlock;
use super::incoming::Block;
use crate::about::About;
use crate::array::Array;
use crate::dtype;
use crate::frame::Frame;
use crate::keeper::{Export, Keeper};
use crate::layout::{self, Arrays};
use crate::plane::Plane;

/// A frame's metadata.
#[derive(Debug, IntoPyObject, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Known {
    /// Whether it is one array.
    is_whole: bool,
    format: Option<String>,
    width: Option<u32>,
    height: Option<u32>,
    pts: Option<u64>,
    dts: Option<u64>,
    duration: Option<u64>,
    timestamp: Option<i64>,
    published_at: i64,
    sequence: u64,
    slot: u32,
    generation: u32,
    flags: u32,
    content_type: String,
    producer: String,
    pool: String,
    caps: Option<String>,
    attachments: BTreeMap<String, Vec<u8>>,
}

/// The place of an array: the address of its lowest byte, the number of bytes, the offset of the first element, shape, strides
/// and type.
type Place<'py> = (
    usize,
    usize,
    usize,
    Bound<'py, PyTuple>,
    Bound<'py, PyTuple>,
    &'static str,
);

/// The place of a plane, for its sender. `None`: it is in a slot that this process writes, which only views keep.
#[pyfunction(name = "_place_of")]
pub(crate) fn place_of<'py>(plane: &Bound<'py, Plane>) -> PyResult<Option<Place<'py>>> {
    let array = plane.get().array();
    if matches!(array.keeper, Keeper::Slot(_)) {
        return Ok(None);
    }
    let (start, len) = array.span();
    Ok(Some((
        start.addr(),
        len,
        array.ptr().addr() - start.addr(),
        PyTuple::new(plane.py(), &array.shape)?,
        PyTuple::new(plane.py(), &array.strides)?,
        dtype::name(array.dtype),
    )))
}

/// All bytes of a plane, including the gaps between elements.
#[pyfunction(name = "_bytes_of")]
pub(crate) fn bytes_of<'py>(plane: &Bound<'py, Plane>) -> PyResult<Bound<'py, PyBytes>> {
    let array = plane.get().array();
    if let Some(reason) = array.on_device() {
        return Err(PyValueError::new_err(reason));
    }
    let _keeps_the_slot = Export::new(&array.keeper)?;
    Ok(PyBytes::new(plane.py(), array.bytes()))
}

/// The metadata of a frame, for its sender.
#[pyfunction(name = "_known_of")]
pub(crate) fn known_of<'py>(frame: &Bound<'py, Frame>) -> PyResult<Bound<'py, PyAny>> {
    let (about, arrays) = (frame.get().about(), frame.get().arrays());
    let (info, meta) = (&about.info, &about.meta);
    let attachments = meta.attachments.iter();
    let known = Known {
        is_whole: arrays.is_whole,
        format: meta.layout.video.map(|it| it.format.as_str().to_owned()),
        width: meta.layout.video.map(|it| it.width),
        height: meta.layout.video.map(|it| it.height),
        pts: meta.pts,
        dts: meta.dts,
        duration: meta.duration,
        timestamp: meta.timestamp,
        published_at: info.published_at,
        sequence: info.sequence,
        slot: info.slot,
        generation: info.generation,
        flags: meta.flags.bits(),
        content_type: meta.layout.content_type.as_str().to_owned(),
        producer: meta.layout.producer.as_str().to_owned(),
        pool: about.pool.clone(),
        caps: about.caps().map(str::to_owned),
        attachments: attachments
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect(),
    };
    Ok(known.into_pyobject(frame.py())?.into_any())
}

/// A plane in a message: its block, or its bytes, and its place there.
#[derive(Debug, FromPyObject)]
pub(crate) struct Part<'py>(
    Bound<'py, PyAny>,
    usize,
    Vec<isize>,
    Vec<isize>,
    Bound<'py, PyAny>,
);

impl Part<'_> {
    fn array(&self) -> PyResult<Array> {
        let Self(bytes, offset, shape, strides, dtype) = self;
        let dtype = dtype::parse(dtype)?;
        let array = if let Ok(block) = bytes.cast::<Block>() {
            block.get().array(*offset, shape, strides, dtype)
        } else if let Ok(block) = bytes.cast::<DeviceBlock>() {
            block.get().array(*offset, shape, strides, dtype)?
        } else {
            let part = layout::private(bytes.cast::<PyBytes>()?.as_bytes().to_vec());
            Array::new(part.keeper, part.bytes, *offset, shape, strides, dtype)
        };
        array.ok_or_else(|| {
            PyValueError::new_err("this message is invalid: a plane is outside its block")
        })
    }
}

/// A received plane.
#[pyfunction(name = "_plane_of")]
pub(crate) fn plane_of(part: Part<'_>) -> PyResult<Plane> {
    part.array().map(Plane::new)
}

/// A received frame.
#[pyfunction(name = "_frame_of")]
pub(crate) fn frame_of(parts: Vec<Part<'_>>, known: Known) -> PyResult<Frame> {
    let planes = parts.iter().map(Part::array);
    let planes = planes.collect::<PyResult<Vec<_>>>()?;
    if planes.is_empty() {
        return Err(PyValueError::new_err(
            "this message is invalid: it has a frame without planes",
        ));
    }
    let video = known.format.map(|format| VideoLayout {
        format: format.as_str().into(),
        width: known.width.unwrap_or_default(),
        height: known.height.unwrap_or_default(),
        n_planes: planes.len() as u32,
        ..VideoLayout::default()
    });
    let info = FrameInfo {
        published_at: known.published_at,
        sequence: known.sequence,
        slot: known.slot,
        generation: known.generation,
        ..FrameInfo::default()
    };
    let layout = FrameLayout {
        video,
        content_type: known.content_type.as_str().into(),
        producer: known.producer.as_str().into(),
        ..FrameLayout::default()
    };
    let mut meta = FrameMeta::with_layout(0, layout).flags(FrameFlags::from_bits(known.flags));
    (meta.pts, meta.dts, meta.duration) = (known.pts, known.dts, known.duration);
    meta.timestamp = known.timestamp;
    for (name, value) in known.attachments {
        meta.attachments.set(&name, value);
    }
    let about = About::new(info, meta, known.caps, known.pool);
    let arrays = Arrays {
        is_whole: known.is_whole,
        planes,
        format: about.meta.layout.video.unwrap_or_default().format,
    };
    Ok(Frame::new(arrays, about))
}
