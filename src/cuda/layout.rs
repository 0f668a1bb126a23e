// SPDX-License-Identifier: MPL-2.0

//! The layout of a frame's planes on a device.

use std::sync::Mutex;

use gst::glib;

use super::context::CudaContext;
use super::memory::{self, CudaMemory};
use crate::buffers::planes::{extent, field_height};
use crate::later::drop_later;
use crate::lock;

/// The layout of libgstcuda's own memory: all planes have the same pitch, and textures can be created from them. Elements read
/// the planes from a memory's layout, and GStreamer copies memory as if libgstcuda had allocated it. So memory with another
/// layout is never passed on as GstCudaMemory.
#[derive(Debug, Clone)]
pub(crate) struct Layout(gst_video::VideoInfo);

impl Layout {
    /// For frames with these caps. An error: the library does not know the format, or there is no memory.
    pub(crate) fn new(
        info: &gst_video::VideoInfo,
        context: &CudaContext,
    ) -> Result<Self, glib::BoolError> {
        /// The last layouts. Upstream queries the same one repeatedly.
        static KNOWN: Mutex<Vec<(CudaContext, gst_video::VideoInfo, Layout)>> =
            Mutex::new(Vec::new());
        const KEPT: usize = 16;
        let known = || lock(&KNOWN);
        let is_it = |(of, from, _): &&(CudaContext, gst_video::VideoInfo, Self)| {
            of == context && from == info
        };
        if let Some((.., layout)) = known().iter().find(is_it) {
            return Ok(layout.clone());
        }
        let layout = Self::of_sample(info, context)?;
        let mut known = known();
        if known.len() >= KEPT {
            known.remove(0);
        }
        known.push((context.clone(), info.clone(), layout.clone()));
        Ok(layout)
    }

    /// The library's layout depends on the format, the device and the library's version, so a sample is allocated.
    fn of_sample(
        info: &gst_video::VideoInfo,
        context: &CudaContext,
    ) -> Result<Self, glib::BoolError> {
        let sample = memory::allocate(context, None, info)
            .ok_or_else(|| glib::bool_error!("libgstcuda has no memory for {}", info.name()))?;
        let found = CudaMemory::of(&sample).map(CudaMemory::info);
        // Freeing it waits for the device, where a stream may be blocked.
        drop_later(sample);
        let found =
            found.ok_or_else(|| glib::bool_error!("libgstcuda has made memory of another kind"))?;
        Self::complete(found)
    }

    /// Adds room for all rows. For NV21 with an odd height, the library omits half a row.
    fn complete(info: gst_video::VideoInfo) -> Result<Self, glib::BoolError> {
        let end = planes(&info).map(|plane| plane.offset + plane.pitch * plane.height);
        let size = info.size().max(end.max().unwrap_or(0));
        gst_video::VideoInfo::builder_from_info(&info)
            .offset(info.offset())
            .stride(info.stride())
            .size(size)
            .build()
            .map(Self)
    }

    /// The planes and the size.
    pub(crate) fn info(&self) -> &gst_video::VideoInfo {
        &self.0
    }

    /// Whether a frame of `size` bytes with these planes has this layout.
    pub(crate) fn is_of(&self, offsets: &[usize], strides: &[i32], size: usize) -> bool {
        offsets == self.0.offset() && strides == self.0.stride() && size >= self.0.size()
    }

    /// The planes, in the order of the format.
    pub(crate) fn planes(&self) -> impl Iterator<Item = Plane> + '_ {
        planes(&self.0)
    }

    /// The info with which memory is wrapped, so that the library copies all of it between device and CPU. The library copies
    /// rows with the length of the first component. For NV12 with an odd width, that would omit the last byte of each chroma
    /// row. Afterwards the memory gets [`Layout::info`].
    pub(super) fn to_wrap(&self) -> Result<gst_video::VideoInfo, glib::BoolError> {
        let info = &self.0;
        let widest = planes(info).map(|plane| plane.width).max().unwrap_or(0);
        let pixel = usize::try_from(info.comp_pstride(0)).unwrap_or(0).max(1);
        let width = u32::try_from(widest.div_ceil(pixel))
            .map_err(|_| glib::bool_error!("Frames too large"))?;
        gst_video::VideoInfo::builder(info.format(), width, info.height())
            .offset(info.offset())
            .stride(info.stride())
            .size(info.size())
            .build()
    }
}

/// Adds a GstVideoMeta with these planes to a buffer.
pub(super) fn describe(
    info: &gst_video::VideoInfo,
    buffer: &mut gst::BufferRef,
) -> Result<(), glib::BoolError> {
    gst_video::VideoMeta::add_full(
        buffer,
        gst_video::VideoFrameFlags::empty(),
        info.format(),
        info.width(),
        info.height(),
        info.offset(),
        info.stride(),
    )
    .map(drop)
}

/// A plane as rows of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    pub(crate) offset: usize,
    pub(crate) pitch: usize,
    /// The bytes of a row that belong to the frame.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl Plane {
    /// How many rows of the plane are inside of memory with `size` bytes.
    pub(crate) fn rows_in(&self, size: usize) -> usize {
        let last = size.checked_sub(self.offset + self.width);
        last.map_or(0, |last| (last / self.pitch.max(1) + 1).min(self.height))
    }
}

/// The planes of a frame, in the order of the format.
pub(crate) fn planes(info: &gst_video::VideoInfo) -> impl Iterator<Item = Plane> + '_ {
    let height = field_height(info, info.height());
    let places = info.offset().iter().zip(info.stride()).enumerate();
    places.map(move |(number, (offset, stride))| {
        let (width, rows) = extent(&info.format_info(), number, info.width(), height, *stride);
        Plane {
            offset: *offset,
            pitch: usize::try_from(*stride).unwrap_or(0),
            width: width as usize,
            height: rows as usize,
        }
    })
}

#[cfg(test)]
mod tests {
    use gst_video::VideoFormat::{self, *};

    use super::*;

    /// The layout that the library computes. `size` depends on the device.
    fn layout(format: VideoFormat, width: u32, height: u32) -> Layout {
        gst::init().unwrap();
        let info = gst_video::VideoInfo::builder(format, width, height)
            .build()
            .unwrap();
        let widest = planes(&info).map(|plane| plane.width).max().unwrap();
        let pitch = widest.next_multiple_of(512);
        let mut offsets = Vec::new();
        let mut rows = 0;
        for plane in planes(&info) {
            offsets.push(rows * pitch);
            rows += plane.height;
        }
        let strides = vec![i32::try_from(pitch).unwrap(); offsets.len()];
        let found = gst_video::VideoInfo::builder_from_info(&info)
            .offset(&offsets)
            .stride(&strides)
            .size(pitch)
            .build();
        Layout::complete(found.unwrap()).unwrap()
    }

    #[test]
    fn there_is_room_for_all_rows() {
        let nv21 = layout(Nv21, 321, 481);
        assert_eq!(nv21.info().size(), 512 * (481 + 241));
        let i420 = layout(I420, 1920, 1080);
        assert_eq!(i420.info().size(), 2048 * (1080 + 540 + 540));
        assert!(i420.is_of(&[0, 2048 * 1080, 2048 * 1620], &[2048; 3], 2048 * 2160));
        assert!(!i420.is_of(&[0, 2048 * 1080, 2048 * 1620], &[2048; 3], 2048 * 2160 - 1));
        assert!(!i420.is_of(&[0, 2048 * 1080, 2048 * 1621], &[2048; 3], 2048 * 2161));
        assert!(!i420.is_of(
            &[0, 2048 * 1080, 2048 * 1620],
            &[2048, 0, 2048],
            2048 * 2160
        ));
    }

    #[test]
    fn wrapped_memory_is_copied_as_a_whole() {
        for format in [Nv12, I420, P01010le, Y444, Bgra, Rgb, Yuy2] {
            for (width, height) in [(1, 1), (320, 240), (321, 241), (853, 481), (511, 3)] {
                let layout = layout(format, width, height);
                let wrapped = layout.to_wrap().unwrap();
                // As gst_cuda_allocator_alloc_wrapped computes it.
                let pitch = wrapped.stride()[0] as usize;
                let row = wrapped.comp_width(0) as usize * wrapped.comp_pstride(0) as usize;
                let rows = wrapped.size() / pitch;
                assert!(row <= pitch, "{format:?} {width}x{height}: {wrapped:?}");
                for plane in layout.planes() {
                    assert!(
                        plane.width <= row,
                        "{format:?} {width}x{height}: {wrapped:?}"
                    );
                    assert!(
                        plane.offset / pitch + plane.height <= rows,
                        "{format:?} {width}x{height}: {wrapped:?}"
                    );
                }
            }
        }
    }
}
