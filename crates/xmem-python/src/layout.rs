// SPDX-License-Identifier: MPL-2.0

//! The arrays of a frame, from its metadata. Another process wrote them, so each number is checked: `Array::new` creates no
//! array outside of the frame's memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use xmem_core::cuda::{CudaError, PrivateMemory};
use xmem_core::{Canceller, DType, FrameMeta, MAX_DIMS, ReadLease, Text, VideoFormat, VideoLayout};

use crate::array::Array;
use crate::device::{self, DeviceCopy, DeviceFrame};
use crate::dtype;
use crate::keeper::{Held, Keeper, PrivateBytes};
use crate::signals::SLICE;

/// A frame's arrays.
#[derive(Debug, Clone)]
pub(crate) struct Arrays {
    /// Whether the frame is one array, which is its only plane.
    pub(crate) is_whole: bool,
    /// At least one.
    pub(crate) planes: Vec<Array>,
    /// The name of the format, for error messages.
    pub(crate) format: Text<16>,
}

impl Arrays {
    pub(crate) fn one(array: Array) -> Self {
        Self {
            is_whole: true,
            planes: vec![array],
            format: Text::default(),
        }
    }

    /// Converts each array.
    pub(crate) fn map(&self, make: impl Fn(&Array) -> PyResult<Array>) -> PyResult<Self> {
        let planes = self.planes.iter().map(make).collect::<PyResult<_>>()?;
        Ok(Self { planes, ..*self })
    }

    /// The frame as one array.
    pub(crate) fn whole(&self) -> PyResult<&Array> {
        self.one_array()
            .ok_or_else(|| PyTypeError::new_err(self.not_one_array()))
    }

    /// Like `whole`, for an attribute: `hasattr` returns false for a frame with several arrays.
    pub(crate) fn whole_for_attribute(&self) -> PyResult<&Array> {
        self.one_array()
            .ok_or_else(|| PyAttributeError::new_err(self.not_one_array()))
    }

    fn one_array(&self) -> Option<&Array> {
        self.planes.first().filter(|_| self.is_whole)
    }

    fn not_one_array(&self) -> String {
        format!(
            "a frame of format {} isn't a single array: use its {} plane(s) in frame.planes",
            self.format.as_str(),
            self.planes.len(),
        )
    }

    /// An error if this process inherited them through fork.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        self.planes
            .iter()
            .try_for_each(|plane| plane.keeper.check_process())
    }

    /// A short description.
    pub(crate) fn describe(&self, meta: &FrameMeta) -> String {
        match meta.layout.video {
            Some(video) => format!("{} {}x{}", video.format.as_str(), video.width, video.height),
            None => format!(
                "{:?} {}",
                self.planes[0].shape,
                dtype::name(self.planes[0].dtype)
            ),
        }
    }

    /// The size of all elements in bytes.
    pub(crate) fn nbytes(&self) -> isize {
        self.planes.iter().map(Array::nbytes).sum()
    }
}

/// The memory of a part of a payload.
pub(crate) struct Part {
    pub(crate) keeper: Keeper,
    /// The offset of the part in the payload.
    pub(crate) start: usize,
    pub(crate) bytes: (*const u8, usize),
}

/// Consecutive pieces of a payload as parts.
fn consecutive(keeper: &Keeper, pieces: impl IntoIterator<Item = (*const u8, usize)>) -> Vec<Part> {
    let mut end = 0;
    let part = |bytes: (*const u8, usize)| {
        let start = end;
        end += bytes.1;
        Part {
            keeper: keeper.clone(),
            start,
            bytes,
        }
    };
    pieces.into_iter().map(part).collect()
}

/// The memory of a received frame. `None`: a part cannot be mapped.
pub(crate) fn parts(lease: &Arc<ReadLease>) -> Option<Vec<Part>> {
    let pieces: Vec<&[u8]> = match lease.parts() {
        [] => vec![lease.bytes().ok()?],
        parts => parts
            .iter()
            .map(|part| part.map().ok())
            .collect::<Option<_>>()?,
    };
    let pieces = pieces.iter().map(|bytes| (bytes.as_ptr(), bytes.len()));
    let keeper = Keeper::Lease(Held::new(lease.clone()));
    Some(consecutive(&keeper, pieces))
}

/// The memory of a received frame on a device.
pub(crate) fn device_parts(frame: &Arc<DeviceFrame>) -> Vec<Part> {
    let at = |(ptr, len)| (std::ptr::without_provenance(ptr as usize), len);
    consecutive(&Keeper::Device(frame.clone()), frame.parts().map(at))
}

/// A copy of a received frame on its device, in one part. `None`: it was not written in time, or the wait was cancelled.
pub(crate) fn copy_on_device(
    lease: &ReadLease,
    time: Duration,
    canceller: Option<&Canceller>,
) -> Result<Option<Part>, CudaError> {
    let frame = lease.cuda()?;
    let until = Instant::now() + time;
    while !frame.synchronize_for(SLICE.min(time))? {
        if Instant::now() >= until || canceller.is_some_and(Canceller::is_cancelled) {
            return Ok(None);
        }
    }
    Ok(Some(private_on_device(device::copy_all(&frame)?)))
}

/// Private memory on a device, as a part.
pub(crate) fn private_on_device(memory: PrivateMemory) -> Part {
    let start = std::ptr::without_provenance(memory.ptr() as usize);
    Part {
        start: 0,
        bytes: (start, memory.len()),
        keeper: Keeper::PrivateDevice(Arc::new(DeviceCopy::new(memory))),
    }
}

/// Private memory, as a part.
pub(crate) fn private(bytes: Vec<u8>) -> Part {
    let len = bytes.len();
    let bytes = Arc::new(PrivateBytes::new(bytes));
    Part {
        start: 0,
        bytes: (bytes.ptr(), len),
        keeper: Keeper::Private(bytes),
    }
}

/// The arrays of a frame. `is_field`: the frame has only every second row of a picture. `None`: an array is not in a single
/// part of the frame.
pub(crate) fn arrays(meta: &FrameMeta, is_field: bool, parts: &[Part]) -> Option<Arrays> {
    // The stated height is that of the whole picture.
    let rows = |height: u64| {
        if is_field { height.div_ceil(2) } else { height }
    };
    if meta.layout.ndim > 0 {
        return described(meta, rows, parts).map(Arrays::one);
    }
    if let Some(video) = &meta.layout.video
        && let Some(format) = VideoFormat::of(video)
    {
        let height = u32::try_from(rows(video.height.into())).ok()?;
        return Some(Arrays {
            is_whole: format.is_packed(),
            planes: planes(format, video, height, parts)?,
            format: video.format,
        });
    }
    let [part] = parts else { return None };
    bytes(part).map(Arrays::one)
}

/// The array of a buffer: the one that its metadata describe, in C order, otherwise its bytes. `None`: it is not aligned.
pub(crate) fn of_buffer(meta: &FrameMeta, part: Part) -> Option<Array> {
    let parts = [part];
    let described = || described(meta, |rows| rows, &parts).filter(is_plain);
    let array = (meta.layout.ndim > 0).then(described).flatten();
    array.or_else(|| bytes(&parts[0]))
}

/// Whether the buffer protocol supports its type, and it has elements in C order.
fn is_plain(array: &Array) -> bool {
    dtype::of(array.dtype).format.is_some() && array.nbytes() > 0 && array.is_c_contiguous()
}

/// All bytes of a part.
pub(crate) fn bytes(part: &Part) -> Option<Array> {
    at(part, 0, &[part.bytes.1.cast_signed()], &[1], DType::U8)
}

/// The message for a frame whose description does not match its bytes.
pub(crate) fn why_invalid(lease: &ReadLease) -> String {
    let meta = lease.meta();
    let what = match &meta.layout.video {
        Some(video) if meta.layout.ndim == 0 => format!(
            "{} of {}x{} pixels in {} plane(s) at {:?} with strides {:?}",
            video.format.as_str(),
            video.width,
            video.height,
            video.n_planes,
            video.offsets,
            video.strides,
        ),
        _ => {
            let ndim = usize::from(meta.layout.ndim).min(MAX_DIMS);
            format!(
                "an array of {} of shape {:?} and strides {:?}",
                dtype::name(meta.layout.dtype),
                &meta.layout.shape[..ndim],
                &meta.layout.strides[..ndim]
            )
        }
    };
    format!(
        "frame {} is described as {what}, which does not match its {} bytes: correct the description in its producer ({:?})",
        lease.info().sequence,
        meta.size,
        meta.layout.producer.as_str()
    )
}

/// The array that the metadata describe: a tensor, the pixels of packed video, or the samples of audio.
fn described(meta: &FrameMeta, rows: impl Fn(u64) -> u64, parts: &[Part]) -> Option<Array> {
    let ndim = usize::from(meta.layout.ndim).min(MAX_DIMS);
    let mut shape = meta.layout.shape;
    if meta.layout.video.is_some() {
        shape[0] = rows(shape[0]);
    }
    let shape = shape[..ndim].iter().map(|size| isize::try_from(*size));
    let shape = shape.collect::<Result<Vec<_>, _>>().ok()?;
    let strides: Vec<isize> = meta.layout.strides[..ndim]
        .iter()
        .map(|it| *it as isize)
        .collect();
    let start = meta
        .layout
        .video
        .map_or(0, |video| video.offsets[0])
        .try_into()
        .ok()?;
    find(parts, start, &shape, &strides, meta.layout.dtype)
}

fn planes(
    format: &VideoFormat,
    video: &VideoLayout,
    height: u32,
    parts: &[Part],
) -> Option<Vec<Array>> {
    let sizes = format.planes(video.width, height);
    if sizes.len() != video.n_planes as usize {
        return None;
    }
    let element = format.dtype.size().cast_signed();
    let places = video.offsets.iter().zip(&video.strides);
    sizes
        .zip(places)
        .map(|(size, (offset, stride))| {
            let pixel = element * isize::try_from(size.channels).ok()?;
            let mut shape = vec![
                isize::try_from(size.rows).ok()?,
                isize::try_from(size.columns).ok()?,
            ];
            let mut strides = vec![isize::try_from(*stride).ok()?, pixel];
            if size.channels > 1 {
                shape.push(size.channels as isize);
                strides.push(element);
            }
            let start = usize::try_from(*offset).ok()?;
            find(parts, start, &shape, &strides, format.dtype)
        })
        .collect()
}

/// An array that begins at this offset of the payload.
fn find(
    parts: &[Part],
    start: usize,
    shape: &[isize],
    strides: &[isize],
    dtype: DType,
) -> Option<Array> {
    let part = parts.iter().rev().find(|part| part.start <= start)?;
    at(part, start - part.start, shape, strides, dtype)
}

fn at(
    part: &Part,
    offset: usize,
    shape: &[isize],
    strides: &[isize],
    dtype: DType,
) -> Option<Array> {
    Array::new(
        part.keeper.clone(),
        part.bytes,
        offset,
        shape,
        strides,
        dtype,
    )
}
