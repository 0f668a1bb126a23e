// SPDX-License-Identifier: MPL-2.0

//! Copies of rows of bytes, for example of a plane whose pitch differs between source and destination.
#![allow(unsafe_code)] // calls the driver

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

use crate::error::CudaError;
use crate::result;
use crate::stream::Stream;

/// Rows of bytes to copy. All numbers except `height` are in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The offset of the first byte in the source.
    pub from: usize,
    /// The distance between rows in the source.
    pub from_pitch: usize,
    /// The offset of the first byte in the destination.
    pub to: usize,
    /// The distance between rows in the destination.
    pub to_pitch: usize,
    /// The number of bytes to copy of each row.
    pub width: usize,
    /// The number of rows.
    pub height: usize,
}

impl Rows {
    /// Bytes without gaps.
    pub const fn plain(from: usize, to: usize, len: usize) -> Self {
        Self {
            from,
            from_pitch: len,
            to,
            to_pitch: len,
            width: len,
            height: 1,
        }
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// The end of rows that begin at `start`. `None`: rows overlap, or the end overflows.
    fn end(&self, start: usize, pitch: usize) -> Option<usize> {
        if self.is_empty() {
            return Some(start);
        }
        if self.height > 1 && pitch < self.width {
            return None;
        }
        let last = (self.height - 1).checked_mul(pitch)?;
        start.checked_add(last)?.checked_add(self.width)
    }

    /// The end of the bytes that are read.
    pub fn read_end(&self) -> Result<usize, CudaError> {
        self.end(self.from, self.from_pitch)
            .ok_or(CudaError::OutOfBounds)
    }

    /// Checks that the destination has enough bytes.
    pub fn check_to(&self, len: usize) -> Result<(), CudaError> {
        let end = self.end(self.to, self.to_pitch);
        end.filter(|end| *end <= len)
            .map(drop)
            .ok_or(CudaError::OutOfBounds)
    }
}

/// The destination of rows.
#[derive(Debug, Clone, Copy)]
pub enum To {
    /// An address on a device.
    Device(u64),
    /// Host memory.
    Host(*mut u8),
}

/// Queues a copy from device memory on a stream whose context is current. Between device memories the driver determines the
/// devices and contexts from the addresses (CUDA's unified addressing).
///
/// # Safety
///
/// Source and destination have these bytes until the stream has copied them, and the stream is alive.
pub unsafe fn enqueue(stream: Stream, to: To, from: u64, rows: &Rows) -> Result<(), CudaError> {
    if rows.is_empty() {
        return Ok(());
    }
    let (from, stream) = (from.wrapping_add(rows.from as u64), stream.raw());
    let to = match to {
        To::Device(to) => To::Device(to + rows.to as u64),
        To::Host(to) => To::Host(to.wrapping_add(rows.to)),
    };
    if rows.height == 1 {
        return match to {
            // SAFETY: promised by the caller.
            To::Device(to) => unsafe { result::copy_async(to, from, rows.width, stream) },
            // SAFETY: as above.
            To::Host(to) => unsafe {
                result::copy_to_host_async(to.cast(), from, rows.width, stream)
            },
        };
    }
    let (kind, host, device) = match to {
        To::Device(to) => (
            CUmemorytype::CU_MEMORYTYPE_UNIFIED,
            std::ptr::null_mut(),
            to,
        ),
        To::Host(to) => (CUmemorytype::CU_MEMORYTYPE_HOST, to.cast(), 0),
    };
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        srcPitch: rows.from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: kind,
        dstHost: host,
        dstDevice: device,
        dstArray: std::ptr::null_mut(),
        dstPitch: rows.to_pitch,
        WidthInBytes: rows.width,
        Height: rows.height,
    };
    // SAFETY: promised by the caller. The description is read before the call returns.
    unsafe { result::copy_rows_async(&raw const copy, stream) }
}

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let rows = Rows {
            to: 10,
            to_pitch: 100,
            from_pitch: 80,
            width: 80,
            height: 3,
            ..Rows::default()
        };
        assert_eq!(rows.read_end(), Ok(240));
        assert!(rows.check_to(290).is_ok() && rows.check_to(289).is_err());
        for wrong in [
            Rows {
                to_pitch: 79,
                ..rows
            },
            Rows {
                to_pitch: usize::MAX,
                ..rows
            },
            Rows {
                to: usize::MAX,
                ..rows
            },
            Rows {
                height: usize::MAX,
                ..rows
            },
        ] {
            assert!(wrong.check_to(usize::MAX).is_err(), "{wrong:?}");
        }
        // The pitch is irrelevant for one row, and all numbers are irrelevant for none.
        assert!(
            Rows {
                to_pitch: 0,
                height: 1,
                ..rows
            }
            .check_to(90)
            .is_ok()
        );
        assert!(
            Rows {
                to_pitch: 0,
                height: 0,
                ..rows
            }
            .check_to(10)
            .is_ok()
        );
        assert!(Rows::plain(5, 6, 7).check_to(13).is_ok());
        assert_eq!(Rows::plain(5, 6, 7).read_end(), Ok(12));
    }
}
