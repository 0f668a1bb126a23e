// SPDX-License-Identifier: MPL-2.0

//! Where the planes of a frame lie in a slot on a device.

use gst::glib;

use super::context::CudaContext;

/// The layout that GStreamer's CUDA elements expect: all planes have the same pitch, one behind the other, and rows and
/// planes begin where textures can.
#[derive(Debug, Clone)]
pub(crate) struct Layout(gst_video::VideoInfo);

impl Layout {
    /// For frames of these caps.
    pub(crate) fn new(
        info: &gst_video::VideoInfo,
        context: &CudaContext,
    ) -> Result<Self, glib::BoolError> {
        Self::aligned(info, context.texture_alignment())
    }

    fn aligned(info: &gst_video::VideoInfo, alignment: usize) -> Result<Self, glib::BoolError> {
        let too_large = || glib::bool_error!("Frames too large");
        let widest = info
            .stride()
            .iter()
            .map(|stride| stride.unsigned_abs() as usize)
            .max();
        let pitch = widest
            .and_then(|widest| widest.max(1).checked_next_multiple_of(alignment))
            .ok_or_else(too_large)?;
        let stride = i32::try_from(pitch).map_err(|_| too_large())?;
        let mut offsets = Vec::new();
        let mut size = 0_usize;
        for (plane, own) in info.stride().iter().enumerate() {
            offsets.push(size);
            // Rows of the default layout: up to the next plane, or to the end.
            let start = info.offset()[plane];
            let end = info.offset().get(plane + 1).copied().unwrap_or(info.size());
            let rows = end
                .saturating_sub(start)
                .div_ceil(own.unsigned_abs().max(1) as usize);
            size = rows
                .checked_mul(pitch)
                .and_then(|bytes| size.checked_add(bytes))
                .ok_or_else(too_large)?;
        }
        let strides = vec![stride; offsets.len()];
        gst_video::VideoInfo::builder_from_info(info)
            .offset(&offsets)
            .stride(&strides)
            .size(size)
            .build()
            .map(Self)
    }

    /// One that is there already.
    pub(crate) fn of(info: gst_video::VideoInfo) -> Self {
        Self(info)
    }

    /// Its planes and its size.
    pub(crate) fn info(&self) -> &gst_video::VideoInfo {
        &self.0
    }

    /// Says on a buffer where the planes are.
    pub(crate) fn describe(&self, buffer: &mut gst::BufferRef) -> Result<(), glib::BoolError> {
        gst_video::VideoMeta::add_full(
            buffer,
            gst_video::VideoFrameFlags::empty(),
            self.0.format(),
            self.0.width(),
            self.0.height(),
            self.0.offset(),
            self.0.stride(),
        )
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use gst_video::VideoFormat::{self, *};

    use super::*;

    fn layout(format: VideoFormat, width: u32, height: u32) -> gst_video::VideoInfo {
        gst::init().unwrap();
        let info = gst_video::VideoInfo::builder(format, width, height)
            .build()
            .unwrap();
        Layout::aligned(&info, 512).unwrap().0
    }

    #[test]
    fn planes_have_one_pitch_and_follow_each_other() {
        let nv12 = layout(Nv12, 322, 242);
        assert_eq!(nv12.stride(), [512, 512]);
        assert_eq!(nv12.offset(), [0, 512 * 242]);
        assert_eq!(nv12.size(), 512 * (242 + 121));
        let i420 = layout(I420, 1920, 1080);
        assert_eq!(i420.stride(), [2048; 3]);
        assert_eq!(i420.offset(), [0, 2048 * 1080, 2048 * (1080 + 540)]);
        assert_eq!(i420.size(), 2048 * (1080 + 540 + 540));
        let rgba = layout(Rgba, 853, 480);
        assert_eq!(
            (rgba.stride(), rgba.size()),
            ([3584].as_slice(), 3584 * 480)
        );
    }

    #[test]
    fn odd_sizes_keep_every_row() {
        for format in [Nv12, I420, P01010le, Y444, Bgra, Gray8] {
            for (width, height) in [(1, 1), (853, 481), (511, 3), (513, 3)] {
                gst::init().unwrap();
                let default = gst_video::VideoInfo::builder(format, width, height)
                    .build()
                    .unwrap();
                let ours = layout(format, width, height);
                assert_eq!(
                    (ours.width(), ours.height(), ours.format()),
                    (width, height, format)
                );
                for plane in 0..ours.n_planes() as usize {
                    assert!(
                        ours.stride()[plane] >= default.stride()[plane],
                        "{format:?} {width}x{height}"
                    );
                    assert!(ours.offset()[plane].is_multiple_of(512));
                    let room = ours.offset().get(plane + 1).copied().unwrap_or(ours.size())
                        - ours.offset()[plane];
                    let rows = format_rows(&default, plane);
                    assert!(
                        room >= rows * ours.stride()[plane] as usize,
                        "{format:?} {width}x{height} plane {plane}"
                    );
                }
            }
        }
    }

    fn format_rows(info: &gst_video::VideoInfo, plane: usize) -> usize {
        let component = info
            .format_info()
            .plane()
            .iter()
            .position(|at| *at as usize == plane)
            .unwrap();
        info.comp_height(u8::try_from(component).unwrap()) as usize
    }
}
