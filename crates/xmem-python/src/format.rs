// SPDX-License-Identifier: MPL-2.0

//! Raw video formats: what their planes are, and where GStreamer puts them by default (its `video-info.c` and
//! `video-format.c`; a test compares each with what GStreamer does).

use xmem_core::{DType, MAX_PLANES, Text, VideoLayout};

/// How the planes of a format follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One plane of this many elements per pixel.
    Packed(u32),
    /// Two bytes per pixel, where two pixels share their colour.
    Packed422,
    /// Y, U and V (or V and U), colour halved in both directions.
    Planar420,
    /// The same with an alpha plane behind it.
    Planar420Alpha,
    /// Colour halved in width.
    Planar422,
    /// The same with more than eight bits.
    Planar422Deep,
    /// Colour in a quarter of the width.
    Planar411,
    /// This many planes of full size.
    Planar444(u32),
    /// Y, and both colours in one plane, halved in both directions.
    Semi420,
    /// Halved in width.
    Semi422,
    /// Not halved.
    Semi444,
}

/// A format that is known here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    pub(crate) name: &'static str,
    kind: Kind,
    pub(crate) dtype: DType,
}

/// One plane of a frame, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneSize {
    pub(crate) rows: u32,
    pub(crate) columns: u32,
    /// Elements per pixel; 1 has no dimension of its own.
    pub(crate) channels: u32,
}

const fn format(name: &'static str, kind: Kind, dtype: DType) -> Format {
    Format { name, kind, dtype }
}

const U8: DType = DType::U8;
const U16: DType = DType::U16;

/// Sixteen bits are in the machine's own order, which is little-endian on all that the core supports.
const FORMATS: &[Format] = &[
    format("GRAY8", Kind::Packed(1), U8),
    format("GRAY16_LE", Kind::Packed(1), U16),
    format("RGB", Kind::Packed(3), U8),
    format("BGR", Kind::Packed(3), U8),
    format("v308", Kind::Packed(3), U8),
    format("IYU2", Kind::Packed(3), U8),
    format("RGBx", Kind::Packed(4), U8),
    format("BGRx", Kind::Packed(4), U8),
    format("xRGB", Kind::Packed(4), U8),
    format("xBGR", Kind::Packed(4), U8),
    format("RGBA", Kind::Packed(4), U8),
    format("BGRA", Kind::Packed(4), U8),
    format("ARGB", Kind::Packed(4), U8),
    format("ABGR", Kind::Packed(4), U8),
    format("AYUV", Kind::Packed(4), U8),
    format("VUYA", Kind::Packed(4), U8),
    format("ARGB64", Kind::Packed(4), U16),
    format("AYUV64", Kind::Packed(4), U16),
    format("ARGB64_LE", Kind::Packed(4), U16),
    format("RGBA64_LE", Kind::Packed(4), U16),
    format("BGRA64_LE", Kind::Packed(4), U16),
    format("ABGR64_LE", Kind::Packed(4), U16),
    format("RGB16", Kind::Packed(1), U16),
    format("BGR16", Kind::Packed(1), U16),
    format("RGB15", Kind::Packed(1), U16),
    format("BGR15", Kind::Packed(1), U16),
    format("YUY2", Kind::Packed422, U8),
    format("YVYU", Kind::Packed422, U8),
    format("UYVY", Kind::Packed422, U8),
    format("VYUY", Kind::Packed422, U8),
    format("I420", Kind::Planar420, U8),
    format("YV12", Kind::Planar420, U8),
    format("I420_10LE", Kind::Planar420, U16),
    format("I420_12LE", Kind::Planar420, U16),
    format("A420", Kind::Planar420Alpha, U8),
    format("Y42B", Kind::Planar422, U8),
    format("I422_10LE", Kind::Planar422Deep, U16),
    format("I422_12LE", Kind::Planar422Deep, U16),
    format("Y41B", Kind::Planar411, U8),
    format("Y444", Kind::Planar444(3), U8),
    format("Y444_10LE", Kind::Planar444(3), U16),
    format("Y444_12LE", Kind::Planar444(3), U16),
    format("Y444_16LE", Kind::Planar444(3), U16),
    format("GBR", Kind::Planar444(3), U8),
    format("GBR_10LE", Kind::Planar444(3), U16),
    format("GBR_12LE", Kind::Planar444(3), U16),
    format("GBRA", Kind::Planar444(4), U8),
    format("NV12", Kind::Semi420, U8),
    format("NV21", Kind::Semi420, U8),
    format("P010_10LE", Kind::Semi420, U16),
    format("P012_LE", Kind::Semi420, U16),
    format("P016_LE", Kind::Semi420, U16),
    format("NV16", Kind::Semi422, U8),
    format("NV61", Kind::Semi422, U8),
    format("NV24", Kind::Semi444, U8),
];

/// The format of this name, as GStreamer spells it.
pub(crate) fn find(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The names of all of them.
pub(crate) fn names() -> Vec<&'static str> {
    FORMATS.iter().map(|format| format.name).collect()
}

fn half(size: u32) -> u32 {
    size.div_ceil(2)
}

fn round_up(size: u64, to: u64) -> u64 {
    size.next_multiple_of(to)
}

impl Format {
    /// What a frame of this size consists of.
    pub(crate) fn planes(&self, width: u32, height: u32) -> Vec<PlaneSize> {
        let plane = |rows, columns, channels| PlaneSize {
            rows,
            columns,
            channels,
        };
        let full = plane(height, width, 1);
        match self.kind {
            Kind::Packed(channels) => vec![plane(height, width, channels)],
            Kind::Packed422 => vec![plane(height, width, 2)],
            Kind::Planar420 | Kind::Planar420Alpha => {
                let colour = plane(half(height), half(width), 1);
                let mut planes = vec![full, colour, colour];
                if self.kind == Kind::Planar420Alpha {
                    planes.push(full);
                }
                planes
            }
            Kind::Planar422 | Kind::Planar422Deep => {
                let colour = plane(height, half(width), 1);
                vec![full, colour, colour]
            }
            Kind::Planar411 => {
                let colour = plane(height, width.div_ceil(4), 1);
                vec![full, colour, colour]
            }
            Kind::Planar444(count) => vec![full; count as usize],
            Kind::Semi420 => vec![full, plane(half(height), half(width), 2)],
            Kind::Semi422 => vec![full, plane(height, half(width), 2)],
            Kind::Semi444 => vec![full, plane(height, width, 2)],
        }
    }

    /// Whether a frame is one array.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.kind, Kind::Packed(_) | Kind::Packed422)
    }

    /// Where GStreamer puts the planes of a frame of this size, and how many bytes it has. `None`: no frame is that large.
    pub(crate) fn default_layout(&self, width: u32, height: u32) -> Option<(VideoLayout, usize)> {
        let element = self.dtype.size() as u64;
        let (w, h) = (u64::from(width), u64::from(height));
        let even_h = round_up(h, 2);
        let row = round_up(w * element, 4);
        // Stride and rows, with those that only pad, of each plane.
        let planes: Vec<(u64, u64)> = match self.kind {
            Kind::Packed(channels) => {
                vec![(round_up(w * u64::from(channels) * element, 4), h)]
            }
            Kind::Packed422 => vec![(round_up(w * 2, 4), h)],
            Kind::Planar420 | Kind::Planar420Alpha => {
                let colour = round_up(round_up(w, 2) / 2 * element, 4);
                let mut planes = vec![(row, even_h), (colour, even_h / 2), (colour, even_h / 2)];
                if self.kind == Kind::Planar420Alpha {
                    planes.push((row, even_h));
                }
                planes
            }
            Kind::Planar422 => {
                let colour = round_up(w, 8) / 2;
                vec![(row, h), (colour, h), (colour, h)]
            }
            Kind::Planar422Deep => {
                let colour = round_up(w, 4);
                vec![(row, even_h), (colour, even_h), (colour, even_h)]
            }
            Kind::Planar411 => {
                let colour = round_up(w, 16) / 4;
                vec![(row, h), (colour, h), (colour, h)]
            }
            Kind::Planar444(count) => vec![(row, h); count as usize],
            Kind::Semi420 => vec![(row, even_h), (row, even_h / 2)],
            Kind::Semi422 => vec![(row, h), (row, h)],
            Kind::Semi444 => vec![(row, h), (round_up(w * 2, 4), h)],
        };
        let mut layout = VideoLayout {
            format: Text::new(self.name),
            width,
            height,
            n_planes: planes.len().min(MAX_PLANES) as u32,
            ..VideoLayout::default()
        };
        let mut size = 0u64;
        for (plane, (stride, rows)) in planes.into_iter().enumerate().take(MAX_PLANES) {
            layout.offsets[plane] = size;
            layout.strides[plane] = i32::try_from(stride).ok()?;
            size = size.checked_add(stride.checked_mul(rows)?)?;
        }
        Some((layout, usize::try_from(size).ok()?))
    }
}
