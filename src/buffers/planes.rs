// SPDX-License-Identifier: MPL-2.0

//! The planes of a video frame: converts GstVideoMeta to the pool's layout and back.

use xmem_core::{MAX_PLANES, Text, VideoLayout};

/// The layout of a buffer's planes: that of its GstVideoMeta, otherwise that of `info`.
pub(crate) fn of_buffer(
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
) -> Option<VideoLayout> {
    let meta = buffer.meta::<gst_video::VideoMeta>();
    match (&meta, info) {
        (Some(meta), _) => {
            let size = (meta.width(), meta.height());
            of_planes(meta.format(), size, meta.offset(), meta.stride())
        }
        (None, Some(info)) if buffer.size() >= info.size() => Some(of_info(info)),
        _ => None,
    }
}

/// GStreamer's default layout. No format has more planes than a layout can hold.
pub(crate) fn of_info(info: &gst_video::VideoInfo) -> VideoLayout {
    let size = (info.width(), info.height());
    of_planes(info.format(), size, info.offset(), info.stride()).unwrap_or_default()
}

/// `None`: there are more planes than a layout can hold.
fn of_planes(
    format: gst_video::VideoFormat,
    (width, height): (u32, u32),
    offsets: &[usize],
    strides: &[i32],
) -> Option<VideoLayout> {
    if offsets.len() > MAX_PLANES {
        return None;
    }
    let mut layout = VideoLayout {
        format: Text::new(format.to_str()),
        width,
        height,
        n_planes: offsets.len() as u32,
        ..VideoLayout::default()
    };
    for (to, from) in layout.offsets.iter_mut().zip(offsets) {
        *to = *from as u64;
    }
    for (to, from) in layout.strides.iter_mut().zip(strides) {
        *to = *from;
    }
    Some(layout)
}

/// A layout that was checked against the caps and the payload, so that readers stay inside of the payload.
#[derive(Debug, Clone)]
pub(crate) struct Planes {
    format: gst_video::VideoFormat,
    width: u32,
    height: u32,
    count: usize,
    offsets: [usize; MAX_PLANES],
    strides: [i32; MAX_PLANES],
    is_default: bool,
}

/// The error for a frame that does not fill its caps.
pub(crate) const TOO_SMALL: &str = "the frame is smaller than its caps require";

impl Planes {
    /// Checks a layout that another process wrote, for a payload of `size` bytes.
    pub(crate) fn check(
        layout: &VideoLayout,
        size: usize,
        info: &gst_video::VideoInfo,
    ) -> Result<Self, &'static str> {
        let format = info.format();
        if layout.format.as_str() != format.to_str() || layout.n_planes != info.n_planes() {
            return Err("the frame's format is not that of its caps");
        }
        let mut planes = Self::read(layout, format, info.width(), info.height())?;
        planes.is_default = layout.width == info.width()
            && layout.height == info.height()
            && planes.offsets() == info.offset()
            && planes.strides() == info.stride()
            && size >= info.size();
        if !planes.is_default && !planes.fit(size, info) {
            return Err("the planes do not fit into the frame");
        }
        Ok(planes)
    }

    /// Checks a layout of planes that only devices can read. Strides are not checked.
    pub(crate) fn check_opaque(
        layout: &VideoLayout,
        size: usize,
        format: gst_video::VideoFormat,
        width: u32,
        height: u32,
    ) -> Result<Self, &'static str> {
        let planes = Self::read(layout, format, width, height)?;
        if planes.offsets().iter().any(|offset| *offset >= size) {
            return Err("a plane starts outside the frame");
        }
        Ok(planes)
    }

    /// Parses a layout, for frames of at least this size.
    fn read(
        layout: &VideoLayout,
        format: gst_video::VideoFormat,
        width: u32,
        height: u32,
    ) -> Result<Self, &'static str> {
        if layout.width < width || layout.height < height {
            return Err(TOO_SMALL);
        }
        let count = usize::try_from(layout.n_planes).unwrap_or(usize::MAX);
        if count > MAX_PLANES {
            return Err("the frame has too many planes");
        }
        let mut offsets = [0; MAX_PLANES];
        for (to, from) in offsets.iter_mut().zip(&layout.offsets).take(count) {
            *to = usize::try_from(*from).map_err(|_| "a plane starts outside the frame")?;
        }
        Ok(Self {
            format,
            width: layout.width,
            height: layout.height,
            count,
            offsets,
            strides: layout.strides,
            is_default: false,
        })
    }

    fn fit(&self, size: usize, info: &gst_video::VideoInfo) -> bool {
        let format = info.format_info();
        if format.is_tiled() {
            return self.tiles_fit(size, info);
        }
        let height = field_height(info, self.height);
        // Several pixels may share bytes, so the length of a row follows from the stride that GStreamer has for this width.
        let own = gst_video::VideoInfo::builder(self.format, self.width, self.height).build();
        let Ok(own) = own else { return false };
        let planes = self.offsets().iter().zip(self.strides()).zip(own.stride());
        planes
            .enumerate()
            .all(|(plane, ((offset, stride), default_stride))| {
                let (row, rows) = extent(&format, plane, self.width, height, *default_stride);
                // The first and the last row are the outermost, in either direction.
                let first = i64::try_from(*offset).unwrap_or(i64::MAX);
                let last = i64::from(*stride)
                    .checked_mul(i64::from(rows.saturating_sub(1)))
                    .and_then(|distance| distance.checked_add(first));
                let end = last.and_then(|last| last.max(first).checked_add(i64::from(row)));
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                last.is_some_and(|last| last >= 0) && end.is_some_and(|end| end <= size)
            })
    }

    /// `fit` for tiled formats, whose strides are numbers of tiles.
    fn tiles_fit(&self, size: usize, info: &gst_video::VideoInfo) -> bool {
        let own = gst_video::VideoInfo::builder(self.format, self.width, self.height)
            .interlace_mode(info.interlace_mode())
            .build();
        let Ok(own) = own else { return false };
        let ends = own.offset().iter().skip(1).copied().chain([own.size()]);
        let needed = own.offset().iter().zip(ends).zip(own.stride());
        let planes = self.offsets().iter().zip(self.strides());
        needed
            .zip(planes)
            .all(|(((start, end), needed), (offset, stride))| {
                let (needed, there) = (tiles(*needed), tiles(*stride));
                let tile =
                    (end.saturating_sub(*start) as u64).div_ceil((needed.0 * needed.1).max(1));
                let bytes = (there.0 * there.1).checked_mul(tile);
                let end = bytes.and_then(|bytes| bytes.checked_add(*offset as u64));
                there.0 >= needed.0
                    && there.1 >= needed.1
                    && end.is_some_and(|end| end <= size as u64)
            })
    }

    /// Whether the planes have the layout that the caps imply.
    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    /// The first byte of each plane.
    pub(crate) fn offsets(&self) -> &[usize] {
        self.offsets.get(..self.count).unwrap_or_default()
    }

    /// The distance between rows of each plane, in bytes.
    pub(crate) fn strides(&self) -> &[i32] {
        self.strides.get(..self.count).unwrap_or_default()
    }

    /// Adds a GstVideoMeta with these planes to a buffer.
    pub(crate) fn describe(&self, buffer: &mut gst::BufferRef) -> Result<(), gst::glib::BoolError> {
        gst_video::VideoMeta::add_full(
            buffer,
            gst_video::VideoFrameFlags::empty(),
            self.format,
            self.width,
            self.height,
            self.offsets(),
            self.strides(),
        )
        .map(drop)
    }
}

/// The number of tiles in each direction, from the stride of a tiled format.
fn tiles(stride: i32) -> (u64, u64) {
    let stride = u64::from(stride.cast_unsigned());
    (stride & 0xffff, stride >> 16)
}

/// The number of rows in a buffer. With one field in each buffer, `height` is that of both fields.
pub(crate) fn field_height(info: &gst_video::VideoInfo, height: u32) -> u32 {
    match info.interlace_mode() {
        gst_video::VideoInterlaceMode::Alternate => height.div_ceil(2),
        _ => height,
    }
}

/// The bytes in a row of a plane, and the number of rows.
pub(crate) fn extent(
    format: &gst_video::VideoFormatInfo,
    plane: usize,
    width: u32,
    height: u32,
    default_stride: i32,
) -> (u32, u32) {
    const PALETTE: (u32, u32) = (256 * 4, 1);
    // GStreamer describes a palette as a component with the size of the picture.
    if format.has_palette() && plane == gst_video::ffi::GST_VIDEO_COMP_PALETTE as usize {
        return PALETTE;
    }
    let components = format
        .plane()
        .iter()
        .zip(format.pixel_stride())
        .take(format.n_components() as usize);
    components
        .enumerate()
        .filter(|(_, (at, _))| **at as usize == plane)
        .map(|(component, (_, pixel_stride))| {
            let component = u8::try_from(component).unwrap_or(u8::MAX);
            let rows = format.scale_height(component, height);
            match u32::try_from(*pixel_stride) {
                Ok(bytes) if bytes > 0 => (
                    format.scale_width(component, width).saturating_mul(bytes),
                    rows,
                ),
                // Several pixels share a byte.
                _ => (default_stride.unsigned_abs(), rows),
            }
        })
        .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
        .unwrap_or_default()
}

/// A copy of the frame in the default layout of its caps. `buffer` has a GstVideoMeta.
pub(crate) fn to_default_layout(
    buffer: gst::Buffer,
    info: &gst_video::VideoInfo,
) -> Result<gst::Buffer, gst::glib::BoolError> {
    let unmappable = |_| gst::glib::bool_error!("Cannot map the frame");
    let mut copy = gst::Buffer::with_size(info.size())?;
    buffer.copy_into(
        copy.make_mut(),
        // Metas that describe the memory are not copied, such as the GstVideoMeta.
        gst::BufferCopyFlags::FLAGS | gst::BufferCopyFlags::TIMESTAMPS | gst::BufferCopyFlags::META,
        ..,
    )?;
    let from = gst_video::VideoFrame::from_buffer_readable(buffer, info).map_err(unmappable)?;
    let mut to = gst_video::VideoFrame::from_buffer_writable(copy, info).map_err(unmappable)?;
    from.copy(&mut to)?;
    let mut copy = to.into_buffer();
    remove_crop_outside(copy.make_mut(), info);
    Ok(copy)
}

/// Removes a crop region that is outside of the copy, which has only the bytes of the caps' size.
fn remove_crop_outside(copy: &mut gst::BufferRef, info: &gst_video::VideoInfo) {
    let Some(crop) = copy.meta_mut::<gst_video::VideoCropMeta>() else {
        return;
    };
    let (x, y, width, height) = crop.rect();
    let inside =
        |start: u32, len: u32, all: u32| start.checked_add(len).is_some_and(|end| end <= all);
    if !inside(x, width, info.width()) || !inside(y, height, info.height()) {
        let _ = crop.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(format: gst_video::VideoFormat, width: u32, height: u32) -> gst_video::VideoInfo {
        gst::init().unwrap();
        gst_video::VideoInfo::builder(format, width, height)
            .build()
            .unwrap()
    }

    fn layout(info: &gst_video::VideoInfo) -> VideoLayout {
        let buffer = gst::Buffer::with_size(info.size()).unwrap();
        of_buffer(&buffer, Some(info)).unwrap()
    }

    #[test]
    fn default_layouts_pass() {
        use gst_video::VideoFormat::*;
        for format in [
            I420, Nv12, Yuy2, Rgb, Rgba, P01010le, Gray8, Y42b, V210, Rgb8p, Nv1264z32,
        ] {
            for (width, height) in [(320, 240), (853, 480), (1, 1)] {
                let info = info(format, width, height);
                let planes = Planes::check(&layout(&info), info.size(), &info).unwrap();
                assert!(planes.is_default(), "{format:?} {width}x{height}");
            }
        }
    }

    /// As in padded frames of decoders.
    #[test]
    fn more_tiles_than_needed_are_valid() {
        let needed = info(gst_video::VideoFormat::Nv1264z32, 128, 64);
        let padded = info(gst_video::VideoFormat::Nv1264z32, 256, 96);
        let mut wide = layout(&padded);
        (wide.width, wide.height) = (128, 64);
        let check = |layout: &VideoLayout, size| Planes::check(layout, size, &needed);
        assert!(check(&wide, padded.size()).is_ok_and(|planes| !planes.is_default()));
        assert!(check(&wide, padded.size() - 1).is_err());
        for stride in [0, -1, i32::MAX, 1 << 16 | 1, padded.stride()[0] + (1 << 16)] {
            let mut wrong = wide;
            wrong.strides[0] = stride;
            wrong.offsets[0] = padded.offset()[1] as u64;
            assert!(check(&wrong, padded.size()).is_err(), "{stride:#x}");
        }
    }

    /// As of avdec_bmp, which aligns the rows.
    #[test]
    fn a_palette_has_one_row() {
        let info = info(gst_video::VideoFormat::Rgb8p, 322, 242);
        let mut padded = layout(&info);
        (padded.strides[0], padded.offsets[1]) = (384, 384 * 243);
        let size = 384 * 243 + 1024;
        let check = |size| Planes::check(&padded, size, &info);
        assert!(check(size).is_ok_and(|planes| !planes.is_default()));
        assert!(check(size - 1).is_err());
    }

    #[test]
    fn planes_outside_the_frame_are_refused() {
        let info = info(gst_video::VideoFormat::I420, 64, 64);
        let good = layout(&info);
        let check = |change: &dyn Fn(&mut VideoLayout)| {
            let mut layout = good;
            change(&mut layout);
            Planes::check(&layout, info.size(), &info)
        };
        assert!(check(&|_| ()).is_ok());
        assert!(check(&|l| l.offsets[2] += 1).is_err());
        assert!(check(&|l| l.offsets[1] = u64::MAX).is_err());
        assert!(check(&|l| l.strides[0] = i32::MAX).is_err());
        assert!(check(&|l| l.strides[0] = -64).is_err());
        assert!(check(&|l| l.strides[1] = 16).is_ok_and(|planes| !planes.is_default()));
        assert!(check(&|l| l.n_planes = 2).is_err());
        assert!(check(&|l| l.n_planes = u32::MAX).is_err());
        assert!(check(&|l| l.height = 1 << 20).is_err());
        assert!(check(&|l| l.height = 32).is_err());
        assert!(check(&|l| l.format = Text::new("NV12")).is_err());
        // Bottom-up rows are valid if they stay inside.
        assert!(
            check(&|l| {
                l.strides[0] = -64;
                l.offsets[0] = 63 * 64;
            })
            .is_ok()
        );
    }

    #[test]
    fn wider_rows_are_checked_if_several_pixels_share_bytes() {
        let info = info(gst_video::VideoFormat::V210, 64, 64);
        let good = layout(&info);
        let with_width = |width, stride: i32| {
            let mut layout = good;
            (layout.width, layout.strides[0]) = (width, stride);
            Planes::check(&layout, info.size(), &info)
        };
        let stride = info.stride()[0];
        assert!(with_width(64, stride).is_ok());
        assert!(with_width(1 << 20, stride).is_err());
        assert!(with_width(i32::MAX as u32, 0).is_err());
        assert!(with_width(u32::MAX, 0).is_err());
        // The rows overlap, but each stays inside.
        assert!(with_width(128, 0).is_ok());
    }
}
