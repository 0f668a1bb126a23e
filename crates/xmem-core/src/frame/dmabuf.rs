// SPDX-License-Identifier: MPL-2.0

//! The planes of a frame in DMA buffers, for devices that import them.

use xmem_shm::bounds::is_range_inside;

use crate::error::DmabufError;
use crate::frame::lease::ReadLease;
use crate::region::Dmabuf;

/// A plane of a frame, with linear rows, in a DMA buffer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DmabufPlane {
    /// The buffer, from the first byte of the plane on.
    pub dmabuf: Dmabuf,
    /// Bytes from one row to the next. 0 if the frame is no video: the plane is the whole payload.
    pub stride: u32,
}

impl ReadLease {
    /// Each plane of the frame in its DMA buffer, as devices import them: a slot, if the consumer set
    /// [`dmabuf`](crate::ConsumerBuilder::dmabuf), or the memory of a camera's driver. [`VideoFormat::drm_fourcc`] is their format.
    ///
    /// [`VideoFormat::drm_fourcc`]: crate::VideoFormat::drm_fourcc
    ///
    /// # Errors
    ///
    /// [`DmabufError`], if a plane is in no DMA buffer.
    pub fn dmabuf_planes(&self) -> Result<Vec<DmabufPlane>, DmabufError> {
        let Some(video) = &self.meta().layout.video else {
            let dmabuf = self.dmabuf_with(0, self.size())?;
            return Ok(vec![DmabufPlane { dmabuf, stride: 0 }]);
        };
        let places = video.offsets.iter().zip(video.strides);
        let planes = video.planes()?.zip(places).map(|(size, (start, stride))| {
            let stride = u32::try_from(stride).map_err(|_| DmabufError::Outside)?;
            let before = u64::from(stride) * u64::from(size.rows.saturating_sub(1));
            // No overflow: the factors have at most 32 bits, and a row is small.
            let len = before.saturating_add(size.row_bytes());
            let dmabuf = self.dmabuf_with(*start, len)?;
            Ok(DmabufPlane { dmabuf, stride })
        });
        planes.collect()
    }

    /// The DMA buffer that has these bytes of the payload. Another process wrote the numbers.
    fn dmabuf_with(&self, start: u64, len: u64) -> Result<Dmabuf, DmabufError> {
        if self.parts().is_empty() {
            return within(self.dmabuf(), self.size(), start, len);
        }
        let mut start = start;
        for part in self.parts() {
            let size = part.len() as u64;
            match start.checked_sub(size) {
                Some(rest) => start = rest,
                None => return within(part.any_dmabuf(), size, start, len),
            }
        }
        Err(DmabufError::Outside)
    }
}

/// The bytes of a buffer that has `size` bytes of the payload.
fn within(buffer: Option<Dmabuf>, size: u64, start: u64, len: u64) -> Result<Dmabuf, DmabufError> {
    let buffer = buffer.ok_or(DmabufError::NoDmabuf)?;
    if !is_range_inside(start, len, size) {
        return Err(DmabufError::Outside);
    }
    Ok(buffer.from(start as usize))
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::time::Duration;

    use xmem_shm::os::memfd::{self, Seal};

    use super::*;
    use crate::frame::hold::Memory;
    use crate::region::Imported;
    use crate::{Consumer, FrameMeta, LayoutError, Producer, StartFrom, VideoFormat, VideoLayout};

    /// A frame, and the first byte of its slot. With `has_buffer` in a memfd, which the consumer takes for its DMA buffer.
    fn received(video: Option<VideoLayout>, has_buffer: bool) -> (ReadLease, u64) {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("pool.sock");
        let producer = Producer::builder(&pool).build().unwrap();
        let mut meta = FrameMeta::new(8192);
        meta.layout_mut().video = video;
        drop(producer.acquire(8192).unwrap().publish(meta));
        let consumer = Consumer::builder(&pool).start_from(StartFrom::Oldest);
        let mut consumer = consumer.connect().unwrap();
        let lease = consumer.receive(Some(Duration::from_secs(60))).unwrap();
        let Memory::Received(view) = lease.hold().memory() else {
            panic!("it is the producer's");
        };
        let start = lease.hold().offset();
        if has_buffer {
            let fd = memfd::create("xmem-test", 65536).unwrap();
            memfd::seal(&fd, Seal::SizeAndFutureWrites).unwrap();
            let memory = Imported::new(fd, 65536).unwrap();
            assert!(view.keep_dmabuf(start, memory, &(start..start + 8192)));
        }
        let payload = lease.meta().offset;
        (lease, payload)
    }

    /// Of 64 to 40 pixels, with padding.
    fn nv12() -> VideoLayout {
        let mut layout = VideoLayout::new("NV12", 64, 40).unwrap();
        layout.strides[..2].copy_from_slice(&[96, 80]);
        layout.offsets[1] = 4096;
        layout
    }

    #[test]
    fn planes_are_where_the_layout_says() {
        let (lease, start) = received(Some(nv12()), true);
        let planes = lease.dmabuf_planes().unwrap();
        let places = planes
            .iter()
            .map(|it| (it.dmabuf.offset() as u64, it.stride));
        let expected = [(start, 96), (start + 4096, 80)];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        let fds = planes.iter().map(|it| it.dmabuf.as_fd().as_raw_fd());
        let fds: Vec<_> = fds.collect();
        assert_eq!(fds[0], fds[1]);
        let code = VideoFormat::find("NV12").unwrap().drm_fourcc();
        assert_eq!(code, Some(0x3231_564e));
        assert_eq!(VideoFormat::find("A420").unwrap().drm_fourcc(), None);

        let (lease, start) = received(None, true);
        let planes = lease.dmabuf_planes().unwrap();
        assert_eq!((planes.len(), planes[0].stride), (1, 0));
        assert_eq!(planes[0].dmabuf.offset() as u64, start);
    }

    #[test]
    fn planes_without_a_buffer_are_errors() {
        let (lease, _) = received(Some(nv12()), false);
        assert_eq!(lease.dmabuf_planes().unwrap_err(), DmabufError::NoDmabuf);
        let is_error = |change: &dyn Fn(&mut VideoLayout), expected: DmabufError| {
            let mut layout = nv12();
            change(&mut layout);
            let (lease, _) = received(Some(layout), true);
            assert_eq!(lease.dmabuf_planes().unwrap_err(), expected);
        };
        // One byte too far, far outside, and upside down.
        is_error(
            &|it| it.offsets[1] = 8192 - 19 * 80 - 63,
            DmabufError::Outside,
        );
        is_error(&|it| it.offsets[1] = u64::MAX, DmabufError::Outside);
        is_error(&|it| it.strides[0] = -96, DmabufError::Outside);
        let unknown = |it: &mut VideoLayout| it.format = "DMA_DRM".into();
        is_error(
            &unknown,
            DmabufError::Layout(LayoutError::UnknownFormat("DMA_DRM".to_owned())),
        );
    }
}
