// SPDX-License-Identifier: MPL-2.0

//! Copies and fills. They wait for the host only where CUDA documents it ("API synchronization behavior"):
//!
//! - From pageable host memory, the source is read before the call returns. The device may not have the bytes yet, even with the
//!   calls without `Async`.
//! - To pageable host memory, the call returns when the copy is done, also with `Async`.
//! - From and to page-locked memory, calls with `Async` return at once, the others when the copy is done.
//! - Between device memory, and for fills of device memory, every call returns at once.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdeviceptr, CUmemorytype, CUresult, CUstream,
};

use crate::context::{self, Context};
use crate::entry::{Outcome, get};
use crate::space::{self, Access, Bytes};
use crate::stream;
use crate::work::{LEGACY, Random};

/// The location of one end of a copy.
#[derive(Debug)]
enum End {
    Device(u64),
    /// Page-locked host memory.
    Pinned(u64),
    /// Ordinary host memory.
    Pageable(u64),
    /// Bytes that the driver has already read.
    Staged(Vec<u8>),
}

impl End {
    /// The end for a pointer that the program passes as host memory.
    fn host(pointer: u64, length: usize, access: Access) -> Self {
        if space::pinned_bytes(pointer, length, access).is_some() {
            Self::Pinned(pointer)
        } else {
            Self::Pageable(pointer)
        }
    }

    /// The end for an address of device memory or host memory.
    fn unified(address: u64, length: usize, access: Access) -> Self {
        if space::with(|space| {
            space::find(space, address).is_some_and(|(_, block)| block.host_pointer().is_none())
        }) {
            Self::Device(address)
        } else {
            Self::host(address, length, access)
        }
    }

    /// The bytes at the time of the copy.
    fn bytes(
        &self,
        length: usize,
        device: u32,
        access: Access,
    ) -> Outcome<(*mut u8, Option<Bytes>)> {
        let kept = |bytes: Bytes| (bytes.start(), Some(bytes));
        match self {
            Self::Device(address) => {
                space::device_bytes(*address, length, device, access).map(kept)
            }
            // The memory was page-locked when the copy was queued, but is not any more.
            Self::Pinned(pointer) => space::pinned_bytes(*pointer, length, access)
                .map(kept)
                .ok_or(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
            Self::Pageable(pointer) => Ok((*pointer as *mut u8, None)),
            Self::Staged(bytes) => Ok((bytes.as_ptr().cast_mut(), None)),
        }
    }
}

/// Rows of bytes. A plain copy has one row.
#[derive(Debug, Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    from_pitch: usize,
    to_pitch: usize,
}

impl Shape {
    fn plain(length: usize) -> Self {
        Self {
            width: length,
            height: 1,
            from_pitch: length,
            to_pitch: length,
        }
    }

    /// The number of bytes from the first to the last one.
    fn extent(&self, pitch: usize) -> Outcome<usize> {
        let last = self
            .height
            .checked_sub(1)
            .and_then(|rows| rows.checked_mul(pitch));
        last.and_then(|last| last.checked_add(self.width))
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Queues a copy.
fn copy(stream: CUstream, from: End, to: End, shape: Shape, is_async: bool) -> Outcome {
    let (context, id) = stream::find(stream)?;
    if shape.width == 0 || shape.height == 0 {
        return Ok(());
    }
    let (from_length, to_length) = (
        shape.extent(shape.from_pitch)?,
        shape.extent(shape.to_pitch)?,
    );
    let (device, own) = (
        context.device,
        |address: &End, length, access| match address {
            End::Device(address) => {
                space::device_bytes(*address, length, context.device, access).map(drop)
            }
            _ => Ok(()),
        },
    );
    // An address that is already invalid is reported immediately.
    let invalid = |_| CUresult::CUDA_ERROR_INVALID_VALUE;
    own(&from, from_length, Access::Read).map_err(invalid)?;
    own(&to, to_length, Access::Write).map_err(invalid)?;
    let host = |end: &End| !matches!(end, End::Device(_));
    let wait = matches!(to, End::Pageable(_))
        || (!is_async && (host(&to) || matches!(from, End::Pinned(_))));
    let from = match from {
        End::Pageable(pointer) if !wait => {
            if !is_async {
                context.work.wait_for_stream(id)?;
            }
            // SAFETY: the caller promises that this number of bytes is readable.
            End::Staged(
                unsafe { std::slice::from_raw_parts(pointer as *const u8, from_length) }.to_vec(),
            )
        }
        from => from,
    };
    let ticket = context.work.submit(id, move |_| {
        let (from, _keep_from) = from.bytes(from_length, device, Access::Read)?;
        let (to, _keep_to) = to.bytes(to_length, device, Access::Write)?;
        // In two halves with a delay in between.
        let mut random = Random::new(to as u64);
        let half = (
            shape.height / 2,
            if shape.height == 1 {
                shape.width / 2
            } else {
                0
            },
        );
        for row in 0..shape.height {
            let middle = if row == half.0 { half.1 } else { 0 };
            let (from, to) = (
                from.wrapping_add(row * shape.from_pitch),
                to.wrapping_add(row * shape.to_pitch),
            );
            // SAFETY: inside the memory that was looked up above, or that the caller promised. `copy`, because the halves may
            // overlap.
            unsafe {
                std::ptr::copy(from, to, middle);
                if row == half.0 {
                    random.delay();
                }
                std::ptr::copy(from.add(middle), to.add(middle), shape.width - middle);
            }
        }
        Ok(())
    })?;
    if wait {
        context.work.wait(&[ticket])
    } else {
        Ok(())
    }
}

/// The legacy default stream, for calls without a stream argument.
const DEFAULT: CUstream = std::ptr::null_mut();

fn plain(stream: CUstream, from: End, to: End, length: usize, is_async: bool) -> Outcome {
    copy(stream, from, to, Shape::plain(length), is_async)
}

fn host_from(pointer: *const c_void, length: usize) -> Outcome<End> {
    if pointer.is_null() && length > 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(End::host(pointer as u64, length, Access::Read))
}

fn host_to(pointer: *mut c_void, length: usize) -> Outcome<End> {
    if pointer.is_null() && length > 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(End::host(pointer as u64, length, Access::Write))
}

fn rectangle(stream: CUstream, copy_of: *const CUDA_MEMCPY2D, is_async: bool) -> Outcome {
    let c = get(copy_of)?;
    let shape = Shape {
        width: c.WidthInBytes,
        height: c.Height,
        from_pitch: if c.srcPitch == 0 {
            c.WidthInBytes
        } else {
            c.srcPitch
        },
        to_pitch: if c.dstPitch == 0 {
            c.WidthInBytes
        } else {
            c.dstPitch
        },
    };
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    if c.Height > 1 && (shape.from_pitch < c.WidthInBytes || shape.to_pitch < c.WidthInBytes) {
        return Err(invalid);
    }
    let end = |kind, host: u64, device: u64, y: usize, x: usize, pitch: usize, access| {
        let offset = y
            .checked_mul(pitch)
            .and_then(|rows| rows.checked_add(x))
            .ok_or(invalid)? as u64;
        let length = shape.extent(pitch)?;
        match kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => Ok(End::host(
                host.checked_add(offset).ok_or(invalid)?,
                length,
                access,
            )),
            CUmemorytype::CU_MEMORYTYPE_DEVICE => {
                Ok(End::Device(device.checked_add(offset).ok_or(invalid)?))
            }
            CUmemorytype::CU_MEMORYTYPE_UNIFIED => Ok(End::unified(
                device.checked_add(offset).ok_or(invalid)?,
                length,
                access,
            )),
            CUmemorytype::CU_MEMORYTYPE_ARRAY => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    };
    if shape.width == 0 || shape.height == 0 {
        return Ok(());
    }
    let (x, y) = (c.srcXInBytes, c.srcY);
    let from = end(
        c.srcMemoryType,
        c.srcHost as u64,
        c.srcDevice,
        y,
        x,
        shape.from_pitch,
        Access::Read,
    )?;
    let (x, y) = (c.dstXInBytes, c.dstY);
    let to = end(
        c.dstMemoryType,
        c.dstHost as u64,
        c.dstDevice,
        y,
        x,
        shape.to_pitch,
        Access::Write,
    )?;
    copy(stream, from, to, shape, is_async)
}

/// Queues a fill with a value of 1, 2 or 4 bytes.
fn fill<const N: usize>(stream: CUstream, address: u64, value: [u8; N], count: usize) -> Outcome {
    let (context, id): (Arc<Context>, u64) = stream::find(stream)?;
    let length = count
        .checked_mul(N)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !address.is_multiple_of(N as u64) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let device = context.device;
    space::device_bytes(address, length, device, Access::Write)
        .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    context.work.submit(id, move |_| {
        let bytes = space::device_bytes(address, length, device, Access::Write)?;
        for index in 0..count {
            if index == count / 2 {
                Random::new(address).delay();
            }
            // SAFETY: inside the memory that was looked up above.
            unsafe { bytes.start().add(index * N).cast::<[u8; N]>().write(value) };
        }
        Ok(())
    })?;
    Ok(())
}

/// Queues a fill for each of several rows at a distance of `pitch` bytes.
fn fill_rows<const N: usize>(
    stream: CUstream,
    address: u64,
    pitch: usize,
    value: [u8; N],
    width: usize,
    rows: usize,
) -> Outcome {
    for row in 0..rows {
        let start = pitch
            .checked_mul(row)
            .and_then(|offset| address.checked_add(offset as u64))
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        fill(stream, start, value, width)?;
    }
    Ok(())
}

/// Checks the contexts of a peer copy: both must exist.
fn peers(to: CUcontext, from: CUcontext) -> Outcome {
    context::find(to as u64)?;
    context::find(from as u64)?;
    Ok(())
}

const _: () = assert!(LEGACY == 0, "the null stream is the legacy one");

api! {
    fn cuMemcpyHtoD_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize) {
        plain(DEFAULT, host_from(srcHost, ByteCount)?, End::Device(dstDevice), ByteCount, false)
    }

    fn cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) {
        plain(hStream, host_from(srcHost, ByteCount)?, End::Device(dstDevice), ByteCount, true)
    }

    fn cuMemcpyDtoH_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize) {
        plain(DEFAULT, End::Device(srcDevice), host_to(dstHost, ByteCount)?, ByteCount, false)
    }

    fn cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        plain(hStream, End::Device(srcDevice), host_to(dstHost, ByteCount)?, ByteCount, true)
    }

    fn cuMemcpyDtoD_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize) {
        plain(DEFAULT, End::Device(srcDevice), End::Device(dstDevice), ByteCount, false)
    }

    fn cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        plain(hStream, End::Device(srcDevice), End::Device(dstDevice), ByteCount, true)
    }

    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize) {
        let (from, to) = (End::unified(src, ByteCount, Access::Read), End::unified(dst, ByteCount, Access::Write));
        plain(DEFAULT, from, to, ByteCount, false)
    }

    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        let (from, to) = (End::unified(src, ByteCount, Access::Read), End::unified(dst, ByteCount, Access::Write));
        plain(hStream, from, to, ByteCount, true)
    }

    fn cuMemcpyPeerAsync(
        dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext,
        ByteCount: usize, hStream: CUstream,
    ) {
        peers(dstContext, srcContext)?;
        plain(hStream, End::Device(srcDevice), End::Device(dstDevice), ByteCount, true)
    }

    fn cuMemcpy2D_v2(pCopy: *const CUDA_MEMCPY2D) {
        rectangle(DEFAULT, pCopy, false)
    }

    fn cuMemcpy2DUnaligned_v2(pCopy: *const CUDA_MEMCPY2D) {
        rectangle(DEFAULT, pCopy, false)
    }

    fn cuMemcpy2DAsync_v2(pCopy: *const CUDA_MEMCPY2D, hStream: CUstream) {
        rectangle(hStream, pCopy, true)
    }

    fn cuMemsetD8_v2(dstDevice: CUdeviceptr, uc: c_uchar, N: usize) {
        fill(DEFAULT, dstDevice, [uc], N)
    }

    fn cuMemsetD8Async(dstDevice: CUdeviceptr, uc: c_uchar, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, [uc], N)
    }

    fn cuMemsetD16Async(dstDevice: CUdeviceptr, us: c_ushort, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, us.to_ne_bytes(), N)
    }

    fn cuMemsetD32_v2(dstDevice: CUdeviceptr, ui: c_uint, N: usize) {
        fill(DEFAULT, dstDevice, ui.to_ne_bytes(), N)
    }

    fn cuMemsetD32Async(dstDevice: CUdeviceptr, ui: c_uint, N: usize, hStream: CUstream) {
        fill(hStream, dstDevice, ui.to_ne_bytes(), N)
    }

    fn cuMemsetD2D8_v2(dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize) {
        fill_rows(DEFAULT, dstDevice, dstPitch, [uc], Width, Height)
    }

    fn cuMemsetD2D8Async(
        dstDevice: CUdeviceptr, dstPitch: usize, uc: c_uchar, Width: usize, Height: usize, hStream: CUstream,
    ) {
        fill_rows(hStream, dstDevice, dstPitch, [uc], Width, Height)
    }

    fn cuMemsetD2D16_v2(dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize) {
        fill_rows(DEFAULT, dstDevice, dstPitch, us.to_ne_bytes(), Width, Height)
    }

    fn cuMemsetD2D16Async(
        dstDevice: CUdeviceptr, dstPitch: usize, us: c_ushort, Width: usize, Height: usize, hStream: CUstream,
    ) {
        fill_rows(hStream, dstDevice, dstPitch, us.to_ne_bytes(), Width, Height)
    }

    fn cuMemsetD2D32_v2(dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize) {
        fill_rows(DEFAULT, dstDevice, dstPitch, ui.to_ne_bytes(), Width, Height)
    }

    fn cuMemsetD2D32Async(
        dstDevice: CUdeviceptr, dstPitch: usize, ui: c_uint, Width: usize, Height: usize, hStream: CUstream,
    ) {
        fill_rows(hStream, dstDevice, dstPitch, ui.to_ne_bytes(), Width, Height)
    }
}
