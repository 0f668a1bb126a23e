// SPDX-License-Identifier: MPL-2.0

//! Where the bytes of a frame are, and its planes in them.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr;

use xmem_core::{PlaneSize, VideoLayout};

use crate::error::{Code, Failure};

pub(crate) const MAX_PLANES: usize = 4;

/// Bytes of a payload, in host memory or on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) start: *const u8,
    len: usize,
}

impl Piece {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    pub(crate) fn on_device(start: u64, len: usize) -> Self {
        Self {
            start: ptr::without_provenance(start as usize),
            len,
        }
    }
}

/// All bytes of a payload. Nearly always they are in one piece.
pub(crate) enum Pieces {
    One([Piece; 1]),
    Several(Vec<Piece>),
}

impl Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        match self {
            Self::One(piece) => piece,
            Self::Several(pieces) => pieces,
        }
    }
}

/// The address of bytes of the payload. `None`: they are not in one piece, or outside. Another process wrote the numbers.
pub(crate) fn place(pieces: &[Piece], start: u64, len: u64) -> Option<*const u8> {
    let mut start = usize::try_from(start).ok()?;
    let len = usize::try_from(len).ok()?;
    for piece in pieces {
        match start.checked_sub(piece.len) {
            Some(rest) => start = rest,
            None => {
                let is_inside = start.checked_add(len)? <= piece.len;
                return is_inside.then(|| piece.start.wrapping_add(start));
            }
        }
    }
    None
}

/// `xmem_plane` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Plane {
    pub(crate) data: *const c_void,
    stride: usize,
    rows: u32,
    row_bytes: u32,
}

impl Plane {
    const NONE: Self = Self {
        data: ptr::null(),
        stride: 0,
        rows: 0,
        row_bytes: 0,
    };
}

pub(crate) type Planes = [Plane; MAX_PLANES];

/// The planes of a video frame whose bytes `place` finds, and their number.
pub(crate) fn planes(
    video: &VideoLayout,
    place: impl Fn(u64, u64) -> Option<*const u8>,
) -> Result<(u32, Planes), Failure> {
    let mut planes = [Plane::NONE; MAX_PLANES];
    // A tiled or an unknown format has no rows: its bytes are in `data`.
    let Ok(sizes) = video.planes() else {
        return Ok((0, planes));
    };
    let count = sizes.len();
    let sizes = sizes.zip(video.offsets).zip(video.strides);
    for (to, ((size, offset), stride)) in planes.iter_mut().zip(sizes) {
        let found = plane(size, offset, stride, &place);
        *to = found.ok_or_else(outside)?;
    }
    Ok((count as u32, planes))
}

/// `None`: its rows overlap, or are outside of the frame.
pub(crate) fn plane(
    size: PlaneSize,
    offset: u64,
    stride: i32,
    place: impl Fn(u64, u64) -> Option<*const u8>,
) -> Option<Plane> {
    let (stride, row) = (u64::try_from(stride).ok()?, size.row_bytes());
    let before = stride.checked_mul(u64::from(size.rows).checked_sub(1)?)?;
    if row > stride {
        return None;
    }
    Some(Plane {
        data: place(offset, before.checked_add(row)?)?.cast(),
        stride: stride as usize,
        rows: size.rows,
        row_bytes: u32::try_from(row).ok()?,
    })
}

pub(crate) fn outside() -> Failure {
    let text = "the planes of the frame are outside of its bytes";
    Failure::new(Code::Invalid, text)
}
