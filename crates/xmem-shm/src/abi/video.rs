// SPDX-License-Identifier: MPL-2.0

//! Raw video formats: their planes, and where GStreamer puts them by default (its `video-info.c` and `video-format.c`; the
//! plugin's tests compare each with GStreamer's result).

use thiserror::Error;

use crate::abi::limits::MAX_PLANES;
use crate::abi::meta::{DType, Text, VideoLayout};

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

/// A raw video format, of those whose planes are known here.
///
/// ```
/// use xmem_core::{DType, VideoFormat};
///
/// let format = VideoFormat::find("P010_10LE").ok_or("no such format")?;
/// assert_eq!(format.dtype, DType::U16);
/// let planes = format.planes(640, 480);
/// assert_eq!((planes[1].rows, planes[1].columns, planes[1].channels), (240, 320, 2));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VideoFormat {
    /// Its name, as GStreamer spells it.
    pub name: &'static str,
    /// The type of one element of a plane.
    pub dtype: DType,
    kind: Kind,
}

/// One plane of a frame, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaneSize {
    /// Rows.
    pub rows: u32,
    /// Pixels, or pairs of colours, in a row.
    pub columns: u32,
    /// Elements of each of these.
    pub channels: u32,
    /// The type of one element.
    pub dtype: DType,
}

impl PlaneSize {
    /// Bytes of a row that count; the bytes between them and the next row are padding.
    pub fn row_bytes(&self) -> u64 {
        // Three numbers of 32 bits at most, two of which are small.
        u64::from(self.columns) * u64::from(self.channels) * self.dtype.size() as u64
    }
}

const fn format(name: &'static str, kind: Kind, dtype: DType) -> VideoFormat {
    VideoFormat { name, dtype, kind }
}

const U8: DType = DType::U8;
const U16: DType = DType::U16;

/// Sixteen bits are in the machine's own order, which is little-endian on all that the core supports.
const FORMATS: &[VideoFormat] = &[
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

fn half(size: u32) -> u32 {
    size.div_ceil(2)
}

fn round_up(size: u64, to: u64) -> u64 {
    size.next_multiple_of(to)
}

impl VideoFormat {
    /// All formats that are known.
    pub fn all() -> &'static [Self] {
        FORMATS
    }

    /// The format of this name, as GStreamer spells it.
    pub fn find(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }

    /// The planes of a frame of this size.
    pub fn planes(&self, width: u32, height: u32) -> Vec<PlaneSize> {
        let plane = |rows, columns, channels| PlaneSize {
            rows,
            columns,
            channels,
            dtype: self.dtype,
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
    pub fn is_packed(&self) -> bool {
        matches!(self.kind, Kind::Packed(_) | Kind::Packed422)
    }

    /// Bytes from one row to the next, and rows with those that only pad, of each plane as GStreamer has them by default.
    fn default_planes(&self, width: u32, height: u32) -> Vec<(u64, u64)> {
        let element = self.dtype.size() as u64;
        let (w, h) = (u64::from(width), u64::from(height));
        let even_h = round_up(h, 2);
        let row = round_up(w * element, 4);
        match self.kind {
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
        }
    }

    /// Where GStreamer puts the planes of a frame of this size, and how many bytes it has. `None`: no frame is that large.
    pub fn default_layout(&self, width: u32, height: u32) -> Option<(VideoLayout, usize)> {
        let planes = self.default_planes(width, height);
        let mut layout = VideoLayout {
            format: Text::new(self.name),
            width,
            height,
            n_planes: planes.len().min(MAX_PLANES) as u32,
            ..VideoLayout::default()
        };
        let mut size = 0u64;
        let places = layout.offsets.iter_mut().zip(&mut layout.strides);
        for ((offset, row), (stride, rows)) in places.zip(planes) {
            *offset = size;
            *row = i32::try_from(stride).ok()?;
            size = size.checked_add(stride.checked_mul(rows)?)?;
        }
        Some((layout, usize::try_from(size).ok()?))
    }
}

impl VideoLayout {
    /// The layout that GStreamer gives a frame of this format and size by default: strides are rounded up, and so are the
    /// rows of some formats. Frames that lie so need no copy in any element.
    ///
    /// ```
    /// use xmem_core::VideoLayout;
    ///
    /// let layout = VideoLayout::new("I420", 639, 479)?;
    /// assert_eq!((layout.n_planes, layout.strides[..3].to_vec()), (3, vec![640, 320, 320]));
    /// let mut frame = vec![0; layout.size()?]; // or a slot
    /// for (plane, size) in layout.planes()?.into_iter().enumerate() {
    ///     let (start, stride) = (layout.offsets[plane] as usize, layout.strides[plane] as usize);
    ///     let rows = frame[start..].chunks_mut(stride).take(size.rows as usize);
    ///     for row in rows {
    ///         row[..size.row_bytes() as usize].fill(128);
    ///     }
    /// }
    /// # Ok::<(), xmem_core::LayoutError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`LayoutError`].
    pub fn new(format: &str, width: u32, height: u32) -> Result<Self, LayoutError> {
        if width == 0 || height == 0 {
            return Err(LayoutError::Size { width, height });
        }
        let layout = find(format)?.default_layout(width, height);
        layout
            .map(|(layout, _)| layout)
            .ok_or(LayoutError::Size { width, height })
    }

    /// Rows, and the contents of a row, of each plane.
    ///
    /// # Errors
    ///
    /// [`LayoutError::UnknownFormat`].
    pub fn planes(&self) -> Result<Vec<PlaneSize>, LayoutError> {
        Ok(find(self.format.as_str())?.planes(self.width, self.height))
    }

    /// How many bytes a frame has that lies so: up to the end of its last plane, with the rows that only pad, as GStreamer
    /// counts them.
    ///
    /// # Errors
    ///
    /// [`LayoutError`], also for offsets and strides that cannot be: another process may have written them.
    pub fn size(&self) -> Result<usize, LayoutError> {
        let planes = find(self.format.as_str())?.default_planes(self.width, self.height);
        if planes.len() != self.n_planes as usize {
            return Err(LayoutError::Impossible);
        }
        let places = self.offsets.iter().zip(&self.strides);
        let end = |((_, rows), (offset, stride)): (&(u64, u64), (&u64, &i32))| {
            let stride = u64::try_from(*stride).ok()?;
            offset.checked_add(stride.checked_mul(*rows)?)
        };
        let ends: Option<Vec<u64>> = planes.iter().zip(places).map(end).collect();
        ends.and_then(|ends| usize::try_from(ends.into_iter().max()?).ok())
            .ok_or(LayoutError::Impossible)
    }
}

fn find(name: &str) -> Result<&'static VideoFormat, LayoutError> {
    VideoFormat::find(name).ok_or_else(|| LayoutError::UnknownFormat(name.to_owned()))
}

/// There is no layout of that format and size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The format's planes are not known.
    #[error(
        "the planes of video format {0:?} are not known: spell it as GStreamer does, such as \"NV12\", or fill in the layout \
         yourself"
    )]
    UnknownFormat(String),
    /// No frame has that size.
    #[error("no frame has {width}x{height} pixels: neither 0, nor more than fits into memory")]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The planes cannot lie at the offsets of the layout.
    #[error("the layout's planes cannot lie where it says")]
    Impossible,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_that_cannot_be_has_no_size() {
        let layout = VideoLayout::new("NV12", 64, 48).unwrap();
        assert_eq!(layout.size(), Ok(64 * 48 * 3 / 2));
        let bend = |bend: fn(&mut VideoLayout)| {
            let mut bent = layout;
            bend(&mut bent);
            bent.size()
        };
        for impossible in [
            bend(|layout| layout.strides[0] = -64),
            bend(|layout| layout.strides[1] = i32::MIN),
            bend(|layout| layout.offsets[1] = u64::MAX),
            bend(|layout| layout.n_planes = 7),
        ] {
            assert_eq!(impossible, Err(LayoutError::Impossible));
        }
        // With other strides it is as large as they make it.
        assert_eq!(
            bend(|layout| layout.strides[1] = 128),
            Ok(64 * 48 + 128 * 24)
        );
        assert!(matches!(
            VideoLayout::new("NV13", 64, 48),
            Err(LayoutError::UnknownFormat(_))
        ));
        for (width, height) in [(0, 1), (1, 0), (u32::MAX, u32::MAX)] {
            assert!(matches!(
                VideoLayout::new("RGBA", width, height),
                Err(LayoutError::Size { .. })
            ));
        }
    }
}
