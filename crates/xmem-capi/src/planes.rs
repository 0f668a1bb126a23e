// SPDX-License-Identifier: MPL-2.0

//! Where the bytes of a frame are, and its planes in them.

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
        Self::at(bytes.as_ptr(), bytes.len())
    }

    pub(crate) fn on_device(start: u64, len: usize) -> Self {
        Self::at(ptr::without_provenance(start as usize), len)
    }

    pub(crate) fn at(start: *const u8, len: usize) -> Self {
        Self { start, len }
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
    /// An address. A number, because threads share an [`Outline`].
    data: usize,
    stride: usize,
    rows: u32,
    row_bytes: u32,
}

impl Plane {
    const NONE: Self = Self {
        data: 0,
        stride: 0,
        rows: 0,
        row_bytes: 0,
    };
}

pub(crate) type Planes = [Plane; MAX_PLANES];

/// Addresses. 0: there is no such plane.
pub(crate) type Places = [usize; MAX_PLANES];

/// The first byte of a plane in the payload, and the number of its bytes.
pub(crate) type Span = (u64, u64);

/// No payload has these bytes.
const NOWHERE: Span = (u64::MAX, u64::MAX);

/// The planes of all frames with one layout.
pub(crate) struct Outline {
    count: u32,
    /// Without addresses.
    planes: Planes,
    spans: [Span; MAX_PLANES],
}

impl Outline {
    pub(crate) fn new(video: Option<&VideoLayout>) -> Self {
        let mut outline = Self {
            count: 0,
            planes: [Plane::NONE; MAX_PLANES],
            spans: [NOWHERE; MAX_PLANES],
        };
        // A tiled or an unknown format has no rows: its bytes are in `data`.
        if let Some(video) = video
            && let Ok(sizes) = video.planes()
        {
            outline.count = sizes.len() as u32;
            let sizes = sizes.zip(video.offsets).zip(video.strides);
            let places = outline.planes.iter_mut().zip(&mut outline.spans);
            for ((to, span), ((size, offset), stride)) in places.zip(sizes) {
                if let Some(plane) = plane(size, offset, stride) {
                    (*to, *span) = plane;
                }
            }
        }
        outline
    }

    /// Where the planes of a frame begin.
    pub(crate) fn places(&self, pieces: &[Piece]) -> Result<Places, Failure> {
        let mut places = [0; MAX_PLANES];
        for (to, (start, len)) in places.iter_mut().zip(self.spans()) {
            let place = place(pieces, *start, *len).ok_or_else(outside)?;
            *to = place.expose_provenance();
        }
        Ok(places)
    }

    /// Fills in the planes of a frame. Returns their number.
    pub(crate) fn fill(&self, planes: &mut Planes, places: &Places) -> u32 {
        *planes = self.planes;
        for (plane, place) in planes.iter_mut().zip(places) {
            plane.data = *place;
        }
        self.count
    }

    fn spans(&self) -> &[Span] {
        self.spans.get(..self.count as usize).unwrap_or_default()
    }
}

/// A plane without its address, and its bytes. `None`: its rows overlap.
pub(crate) fn plane(size: PlaneSize, offset: u64, stride: i32) -> Option<(Plane, Span)> {
    let (stride, row) = (u64::try_from(stride).ok()?, size.row_bytes());
    let before = stride.checked_mul(u64::from(size.rows).checked_sub(1)?)?;
    if row > stride {
        return None;
    }
    let plane = Plane {
        data: 0,
        stride: stride as usize,
        rows: size.rows,
        row_bytes: u32::try_from(row).ok()?,
    };
    Some((plane, (offset, before.checked_add(row)?)))
}

pub(crate) fn outside() -> Failure {
    let text = "the planes of the frame are outside of its bytes";
    Failure::new(Code::Invalid, text)
}
