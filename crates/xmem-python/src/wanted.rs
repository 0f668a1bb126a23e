// SPDX-License-Identifier: MPL-2.0

//! The description of an acquired frame: metadata, size and caps.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use xmem_core::{DType, FrameLayout, FrameMeta, MAX_DIMS, Text, VideoFormat};

use crate::caps::{self, Framerate};
use crate::dtype;
use crate::lock;
use crate::number::count;

/// The arguments of `acquire`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An array of this shape.
    Tensor(Vec<u64>, DType),
    /// A picture in this format, with its width and height in pixels.
    Video(String, u32, u32),
}

/// The frame for these arguments.
#[derive(Debug)]
pub(crate) struct Wanted {
    what: What,
    on_device: bool,
    pub(crate) meta: FrameMeta,
    /// The size in bytes.
    pub(crate) size: usize,
    /// The caps with which it is published.
    pub(crate) caps: String,
}

/// Describes frames. Most streams have one type of frame, so the last description is cached.
#[derive(Debug)]
pub(crate) struct Describer {
    /// The caps of all frames, if the user has set them.
    caps: Option<String>,
    framerate: Framerate,
    last: Mutex<Option<Arc<Wanted>>>,
}

impl Describer {
    pub(crate) fn new(caps: Option<String>, framerate: Framerate) -> Self {
        Self {
            caps,
            framerate,
            last: Mutex::default(),
        }
    }

    pub(crate) fn describe(&self, what: What, on_device: bool) -> PyResult<Arc<Wanted>> {
        if let Some(last) = &*lock(&self.last)
            && last.what == what
            && last.on_device == on_device
        {
            return Ok(last.clone());
        }
        let (meta, size, caps) = match &what {
            What::Tensor(shape, dtype) => self.tensor(shape, *dtype)?,
            What::Video(format, width, height) => self.video(format, *width, *height)?,
        };
        let caps = self.caps.clone().unwrap_or(if on_device {
            caps::on_device(&caps)
        } else {
            caps
        });
        let wanted = Arc::new(Wanted {
            what,
            on_device,
            meta,
            size,
            caps,
        });
        *lock(&self.last) = Some(wanted.clone());
        Ok(wanted)
    }

    fn tensor(&self, shape: &[u64], dtype: DType) -> PyResult<(FrameMeta, usize, String)> {
        if shape.is_empty() {
            return Err(PyValueError::new_err(
                "the shape () has no dimensions, but a frame must have at least one: use (1,)",
            ));
        }
        let mut layout = FrameLayout {
            dtype,
            content_type: Text::new(&format!("tensor/{}", dtype::name(dtype))),
            ..FrameLayout::default()
        };
        let size = set_shape(&mut layout, shape)?;
        let meta = FrameMeta::with_layout(size, layout);
        Ok((meta, size, caps::of_tensor(shape, dtype, self.framerate)))
    }

    fn video(&self, name: &str, width: u32, height: u32) -> PyResult<(FrameMeta, usize, String)> {
        let format = VideoFormat::find(name).ok_or_else(|| {
            let names: Vec<&str> = VideoFormat::all().iter().map(|it| it.name).collect();
            PyValueError::new_err(format!(
                "no such format: {name:?}; use one of {}",
                names.join(", ")
            ))
        })?;
        if width == 0 || height == 0 {
            return Err(PyValueError::new_err(
                "a frame with a format needs width and height, in pixels",
            ));
        }
        let (layout, size) = format.default_layout(width, height).ok_or_else(|| {
            PyValueError::new_err(format!("a frame of {width}x{height} pixels is too large"))
        })?;
        let layout = FrameLayout {
            content_type: Text::new("image/raw"),
            dtype: format.dtype,
            video: Some(layout),
            ..FrameLayout::default()
        };
        let meta = FrameMeta::with_layout(size, layout);
        let caps = caps::of_video(format.name, width, height, self.framerate);
        Ok((meta, size, caps))
    }
}

/// Sets the shape of an array in C order, with the present type. Returns its size in bytes.
pub(crate) fn set_shape(layout: &mut FrameLayout, shape: &[u64]) -> PyResult<usize> {
    if shape.len() > MAX_DIMS {
        return Err(PyValueError::new_err(format!(
            "the shape has {} dimensions, but an array can have at most {MAX_DIMS}",
            shape.len()
        )));
    }
    let too_large = || PyValueError::new_err(format!("a frame of shape {shape:?} is too large"));
    layout.ndim = shape.len() as u8;
    let mut stride = layout.dtype.size() as u64;
    for (dim, size) in shape.iter().enumerate().rev() {
        layout.shape[dim] = *size;
        layout.strides[dim] = i64::try_from(stride).map_err(|_| too_large())?;
        stride = stride.checked_mul(*size).ok_or_else(too_large)?;
    }
    let size = isize::try_from(stride).map_err(|_| too_large())?;
    Ok(size.cast_unsigned())
}

/// A shape from Python: a number, or several.
pub(crate) fn shape(shape: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    // First, because most shapes are tuples, and an exception for each tuple would be slow.
    if let Ok(shape) = shape.cast::<PyTuple>() {
        return shape.iter().map(|size| count(&size)).collect();
    }
    if let Ok(sizes) = shape.try_iter() {
        return sizes.map(|size| count(&size?)).collect();
    }
    Ok(vec![count(shape)?])
}
