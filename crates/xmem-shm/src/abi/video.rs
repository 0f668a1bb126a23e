// SPDX-License-Identifier: MPL-2.0

//! Raw video formats: their planes, and GStreamer's default layout (of its `video-info.c` and `video-format.c`). The plugin's
//! tests compare each with GStreamer's result.

use std::sync::LazyLock;

use thiserror::Error;

use crate::abi::dtype::DType;
use crate::abi::limits::MAX_PLANES;
use crate::abi::text::Text;

/// The planes of a video frame. [`VideoLayout::new`] creates the default layout of a format.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct VideoLayout {
    /// The format's name as GStreamer spells it, such as `NV12` or `P010_10LE`.
    pub format: Text<16>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The number of planes, at most [`MAX_PLANES`].
    pub n_planes: u32,
    /// First byte of each plane, counted from the payload's first byte.
    pub offsets: [u64; MAX_PLANES],
    /// Bytes from one row to the next, per plane.
    pub strides: [i32; MAX_PLANES],
}

/// How many pixels of a row and of a column share one position of a plane, and the number of elements at each position.
type Share = (u32, u32, u32);

/// A plane in full resolution, and planes of colour.
const FULL: Share = (1, 1, 1);
const HALF_WIDTH: Share = (2, 1, 1);
const HALF: Share = (2, 2, 1);
const QUARTER_WIDTH: Share = (4, 1, 1);

/// A raw video format whose planes are known here.
///
/// ```
/// # mod xmem_core { pub use xmem_shm::abi::{dtype::DType, video::VideoFormat}; }
/// use xmem_core::{DType, VideoFormat};
///
/// let format = VideoFormat::find("P010_10LE").ok_or("no such format")?;
/// assert_eq!(format.dtype, DType::U16);
/// let colours = format.planes(640, 480).nth(1).ok_or("one plane")?;
/// assert_eq!((colours.rows, colours.columns, colours.channels), (240, 320, 2));
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct VideoFormat {
    /// Its name, as GStreamer spells it.
    pub name: &'static str,
    /// The type of one element of a plane.
    pub dtype: DType,
    planes: &'static [Share],
    /// The name, as a number that is compared at once.
    key: u128,
    /// GStreamer's default layout adds a row to an odd height.
    even_rows: bool,
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
    /// The bytes of a row without padding.
    pub fn row_bytes(&self) -> u64 {
        // No overflow: the factors have at most 32 bits, and two of them are small.
        u64::from(self.columns) * u64::from(self.channels) * self.dtype.size() as u64
    }
}

/// The formats by their planes and type, and whether GStreamer makes their rows even. 16-bit elements are in native order,
/// which is little-endian on all platforms of the core.
#[rustfmt::skip]
const FORMATS: &[(&[Share], bool, DType, &str)] = &[
    // One plane. In the formats of the third line, two pixels share their colour.
    (&[FULL], false, DType::U8, "GRAY8"),
    (&[FULL], false, DType::U16, "GRAY16_LE RGB16 BGR16 RGB15 BGR15"),
    (&[(1, 1, 2)], false, DType::U8, "YUY2 YVYU UYVY VYUY"),
    (&[(1, 1, 3)], false, DType::U8, "RGB BGR v308 IYU2"),
    (&[(1, 1, 4)], false, DType::U8, "RGBx BGRx xRGB xBGR RGBA BGRA ARGB ABGR AYUV VUYA"),
    (&[(1, 1, 4)], false, DType::U16, "ARGB64 AYUV64 ARGB64_LE RGBA64_LE BGRA64_LE ABGR64_LE"),
    // A plane for each component: Y, U and V (or V and U), and alpha.
    (&[FULL, HALF, HALF], true, DType::U8, "I420 YV12"),
    (&[FULL, HALF, HALF], true, DType::U16, "I420_10LE I420_12LE"),
    (&[FULL, HALF, HALF, FULL], true, DType::U8, "A420"),
    (&[FULL, HALF_WIDTH, HALF_WIDTH], false, DType::U8, "Y42B"),
    (&[FULL, HALF_WIDTH, HALF_WIDTH], true, DType::U16, "I422_10LE I422_12LE"),
    (&[FULL, QUARTER_WIDTH, QUARTER_WIDTH], false, DType::U8, "Y41B"),
    (&[FULL; 3], false, DType::U8, "Y444 GBR"),
    (&[FULL; 3], false, DType::U16, "Y444_10LE Y444_12LE Y444_16LE GBR_10LE GBR_12LE"),
    (&[FULL; 4], false, DType::U8, "GBRA"),
    // Y, and both colours in one plane.
    (&[FULL, (2, 2, 2)], true, DType::U8, "NV12 NV21"),
    (&[FULL, (2, 2, 2)], true, DType::U16, "P010_10LE P012_LE P016_LE"),
    (&[FULL, (2, 1, 2)], false, DType::U8, "NV16 NV61"),
    (&[FULL, (1, 1, 2)], false, DType::U8, "NV24"),
];

/// The codes that DRM gives to the same formats, if their rows are linear (`drm_fourcc.h`).
const DRM: [(&[u8; 4], &str); 27] = [
    (b"YUYV", "YUY2"),
    (b"UYVY", "UYVY"),
    (b"YVYU", "YVYU"),
    (b"VYUY", "VYUY"),
    (b"NV12", "NV12"),
    (b"NV21", "NV21"),
    (b"NV16", "NV16"),
    (b"NV61", "NV61"),
    (b"NV24", "NV24"),
    (b"P010", "P010_10LE"),
    (b"YU12", "I420"),
    (b"YV12", "YV12"),
    (b"YU11", "Y41B"),
    (b"YU16", "Y42B"),
    (b"YU24", "Y444"),
    (b"AYUV", "VUYA"),
    (b"R8  ", "GRAY8"),
    (b"RG16", "RGB16"),
    (b"BG16", "BGR16"),
    (b"RG24", "BGR"),
    (b"BG24", "RGB"),
    (b"XR24", "BGRx"),
    (b"AR24", "BGRA"),
    (b"XB24", "RGBx"),
    (b"AB24", "RGBA"),
    (b"RX24", "xBGR"),
    (b"BX24", "xRGB"),
];

/// Sorted by name, because readers look up the format of each frame.
static ALL: LazyLock<Vec<VideoFormat>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for &(planes, even_rows, dtype, names) in FORMATS {
        all.extend(names.split(' ').map(|name| VideoFormat {
            name,
            dtype,
            planes,
            key: key(&Text::new(name)),
            even_rows,
        }));
    }
    all.sort_unstable_by_key(|format| format.key);
    all
});

/// Numbers in the order of the names.
fn key(name: &Text<16>) -> u128 {
    u128::from_be_bytes(*name.as_bytes())
}

impl VideoFormat {
    /// All known formats, by name.
    pub fn all() -> &'static [Self] {
        &ALL
    }

    /// The format with this name, in GStreamer's spelling.
    pub fn find(name: &str) -> Option<&'static Self> {
        // A longer name is cut.
        Self::with_key(key(&Text::new(name))).filter(|format| format.name == name)
    }

    /// The format of this layout.
    pub fn of(layout: &VideoLayout) -> Option<&'static Self> {
        Self::with_key(key(&layout.format))
    }

    fn with_key(key: u128) -> Option<&'static Self> {
        let found = ALL.binary_search_by_key(&key, |format| format.key);
        ALL.get(found.ok()?)
    }

    /// The planes of a frame with this size.
    pub fn planes(
        &self,
        width: u32,
        height: u32,
    ) -> impl ExactSizeIterator<Item = PlaneSize> + use<> {
        let dtype = self.dtype;
        let plane = move |(wide, high, channels): &Share| PlaneSize {
            rows: height.div_ceil(*high),
            columns: width.div_ceil(*wide),
            channels: *channels,
            dtype,
        };
        self.planes.iter().map(plane)
    }

    /// The code of the same format in DRM (`drm_fourcc.h`), by which devices import DMA buffers. `None`: it is not known here.
    pub fn drm_fourcc(&self) -> Option<u32> {
        let (code, _) = DRM.iter().find(|(_, name)| *name == self.name)?;
        Some(u32::from_le_bytes(**code))
    }

    /// Whether a frame is a single array.
    pub fn is_packed(&self) -> bool {
        self.planes.len() == 1
    }

    /// For each plane in GStreamer's default layout: bytes from one row to the next, and the number of rows with padding rows.
    fn default_planes(&self, width: u32, height: u32) -> impl ExactSizeIterator<Item = (u64, u64)> {
        let planes = self.planes(width, height);
        let height = u64::from(height);
        let all_rows = if self.even_rows {
            height.next_multiple_of(2)
        } else {
            height
        };
        planes.zip(self.planes).map(move |(plane, (_, high, _))| {
            let rows = all_rows.div_ceil(u64::from(*high));
            (plane.row_bytes().next_multiple_of(4), rows)
        })
    }

    /// GStreamer's default layout of a frame with this size, and its size in bytes. `None`: the size overflows.
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
    /// GStreamer's default layout for a frame of this format and size. Strides are rounded up, and for some formats the number
    /// of rows is too. Frames with this layout need no copy in any element.
    ///
    /// ```
    /// # use xmem_shm::abi::video as xmem_core;
    /// use xmem_core::VideoLayout;
    ///
    /// let layout = VideoLayout::new("I420", 639, 479)?;
    /// assert_eq!((layout.n_planes, layout.strides[..3].to_vec()), (3, vec![640, 320, 320]));
    /// let mut frame = vec![0; layout.size()?]; // or a slot
    /// for (plane, size) in layout.planes()?.enumerate() {
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
        let known = VideoFormat::find(format);
        let known = known.ok_or_else(|| LayoutError::UnknownFormat(format.to_owned()))?;
        let (layout, _) = known
            .default_layout(width, height)
            .ok_or(LayoutError::Size { width, height })?;
        Ok(layout)
    }

    /// The rows of each plane, and the content of a row.
    ///
    /// # Errors
    ///
    /// [`LayoutError::UnknownFormat`].
    pub fn planes(&self) -> Result<impl ExactSizeIterator<Item = PlaneSize> + use<>, LayoutError> {
        Ok(self.known()?.planes(self.width, self.height))
    }

    fn known(&self) -> Result<&'static VideoFormat, LayoutError> {
        VideoFormat::of(self)
            .ok_or_else(|| LayoutError::UnknownFormat(self.format.as_str().to_owned()))
    }

    /// The size of a frame with this layout in bytes: up to the end of its last plane, including padding rows, as in GStreamer.
    ///
    /// # Errors
    ///
    /// [`LayoutError`], also for invalid offsets and strides, because another process may have written them.
    pub fn size(&self) -> Result<usize, LayoutError> {
        let planes = self.known()?.default_planes(self.width, self.height);
        if planes.len() != self.n_planes as usize {
            return Err(LayoutError::Impossible);
        }
        let places = self.offsets.iter().zip(&self.strides);
        let mut ends = planes.zip(places).map(|((_, rows), (offset, stride))| {
            let stride = u64::try_from(*stride).ok()?;
            offset.checked_add(stride.checked_mul(rows)?)
        });
        ends.try_fold(0, |most, end| Some(end?.max(most)))
            .and_then(|end: u64| usize::try_from(end).ok())
            .ok_or(LayoutError::Impossible)
    }
}

/// There is no layout for this format and size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The format's planes are not known.
    #[error(
        "the planes of video format {0:?} are not known: spell it as GStreamer does, for example \"NV12\", or fill in the \
         layout yourself"
    )]
    UnknownFormat(String),
    /// No frame can have this size.
    #[error(
        "a frame cannot have {width}x{height} pixels: both must be at least 1, and the frame must fit into memory"
    )]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The offsets of the layout are impossible for its planes.
    #[error("the planes of the layout cannot be at its offsets: check the offsets and strides")]
    Impossible,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_layout_has_no_size() {
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
        // Other strides change the size.
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
