// SPDX-License-Identifier: MPL-2.0

//! Where the planes of a frame lie in a slot on a device.

use gst::glib;

use super::context::CudaContext;

/// What rows and planes of textures are aligned to on all devices so far, in bytes.
pub(super) const USUAL_ALIGNMENT: usize = 512;

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

    /// What the library has to believe of wrapped memory to copy all of it between device and CPU. It copies rows of the
    /// first component's length at the first plane's pitch: of NV12 with an odd width, the last byte of each row of chroma
    /// would not come along. The memory's own info is [`Layout::info`] all the same.
    pub(super) fn to_wrap(&self) -> Result<gst_video::VideoInfo, glib::BoolError> {
        let info = &self.0;
        let components = 0..u8::try_from(info.n_components()).unwrap_or(u8::MAX);
        let widest = components
            .map(|component| {
                let pixel = usize::try_from(info.comp_pstride(component)).unwrap_or(0);
                info.comp_width(component) as usize * pixel
            })
            .max();
        let pitch = usize::try_from(info.stride()[0]).unwrap_or(0);
        let pixel = usize::try_from(info.comp_pstride(0)).unwrap_or(0).max(1);
        let width = widest.map_or(0, |widest| widest.div_ceil(pixel));
        // The pitch that the library gives its own memory, and copies, whatever they are copies of.
        let is_usual = info
            .stride()
            .iter()
            .all(|stride| *stride == info.stride()[0])
            && pitch == (width * pixel).max(1).next_multiple_of(USUAL_ALIGNMENT)
            && info.size().is_multiple_of(pitch);
        if is_usual {
            let width = u32::try_from(width).map_err(|_| glib::bool_error!("Frames too large"))?;
            return gst_video::VideoInfo::builder(info.format(), width, info.height())
                .offset(info.offset())
                .stride(info.stride())
                .size(info.size())
                .build();
        }
        // Somebody else's layout: one row.
        let size = info.size();
        let (width, stride) = (u32::try_from(size), i32::try_from(size));
        let (Ok(width), Ok(stride)) = (width, stride) else {
            return Err(glib::bool_error!("Frames too large"));
        };
        gst_video::VideoInfo::builder(gst_video::VideoFormat::Gray8, width, 1)
            .stride(&[stride])
            .size(size)
            .build()
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

    #[test]
    fn wrapped_memory_is_copied_as_a_whole() {
        gst::init().unwrap();
        for format in [Nv12, I420, P01010le, Y444, Bgra, Rgb, Gray8, Yuy2] {
            for (width, height) in [(1, 1), (320, 240), (321, 241), (853, 481), (511, 3)] {
                let default = gst_video::VideoInfo::builder(format, width, height)
                    .build()
                    .unwrap();
                for info in [layout(format, width, height), default] {
                    let wrapped = Layout::of(info.clone()).to_wrap().unwrap();
                    // As gst_cuda_allocator_alloc_wrapped reckons.
                    let pitch = wrapped.stride()[0] as usize;
                    let row = wrapped.comp_width(0) as usize * wrapped.comp_pstride(0) as usize;
                    let rows = wrapped.size() / pitch;
                    let is_copied = |byte: usize| byte / pitch < rows && byte % pitch < row;
                    assert!(row <= pitch && rows * pitch <= info.size());
                    for plane in 0..info.n_planes() as usize {
                        let component = component_of(&info, plane);
                        let bytes =
                            info.comp_width(component) * info.comp_pstride(component) as u32;
                        for y in [0, info.comp_height(component) - 1] {
                            let start =
                                info.offset()[plane] + y as usize * info.stride()[plane] as usize;
                            let ends = [start, start + bytes as usize - 1];
                            assert!(
                                ends.into_iter().all(is_copied),
                                "{format:?} {width}x{height} plane {plane} row {y}: {wrapped:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    fn component_of(info: &gst_video::VideoInfo, plane: usize) -> u8 {
        let planes = info.format_info().plane();
        // Of those in one plane the one with the longest rows.
        let own =
            (0..info.n_components() as u8).filter(|at| planes[*at as usize] as usize == plane);
        own.max_by_key(|at| info.comp_width(*at) * info.comp_pstride(*at) as u32)
            .unwrap()
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
