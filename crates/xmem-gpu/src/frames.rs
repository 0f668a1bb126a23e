// SPDX-License-Identifier: MPL-2.0

//! Frames for Python programs that have PyTorch and nothing of ours: a C interface to a consumer, for ctypes.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use xmem_core::cuda::{CudaFrame, Stream};
use xmem_core::{Consumer, StartFrom};

/// A consumer of the pool with this name; null if there is none, with the reason on stderr.
///
/// # Safety
///
/// `pool` is a string that ends in 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xmem_gpu_connect(pool: *const c_char) -> *mut Consumer {
    // SAFETY: as the caller promises.
    let pool = unsafe { CStr::from_ptr(pool) }.to_string_lossy();
    match Consumer::builder(&*pool)
        .start_from(StartFrom::Oldest)
        .connect()
    {
        Ok(consumer) => Box::into_raw(Box::new(consumer)),
        Err(error) => {
            eprintln!("{pool}: {error}");
            std::ptr::null_mut()
        }
    }
}

/// The next frame, which `stream` waits for; null if none came within 10 s or it cannot be used. Its address, its size and
/// its number are stored.
///
/// # Safety
///
/// `consumer` is of [`xmem_gpu_connect`] and used by no other thread; there are places for the results; `stream` is one of
/// this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xmem_gpu_take(
    consumer: *mut Consumer,
    stream: u64,
    address: *mut u64,
    size: *mut u64,
    number: *mut u64,
) -> *mut CudaFrame {
    // SAFETY: as the caller promises.
    let (consumer, stream) = unsafe { (&mut *consumer, Stream::from_raw(stream)) };
    let mut taken = || -> Result<CudaFrame, Box<dyn std::error::Error>> {
        let frame = consumer
            .receive(Some(Duration::from_secs(10)))?
            .into_cuda()?;
        frame.wait_on(stream)?;
        Ok(frame)
    };
    match taken() {
        Ok(frame) => {
            // SAFETY: as the caller promises.
            unsafe {
                address.write(frame.ptr());
                size.write(frame.len() as u64);
                number.write(frame.lease().meta().pts.unwrap_or(u64::MAX));
            }
            Box::into_raw(Box::new(frame))
        }
        Err(error) => {
            eprintln!("{error}");
            std::ptr::null_mut()
        }
    }
}

/// Release a frame when the stream gets there; whether that worked.
///
/// # Safety
///
/// `frame` is of [`xmem_gpu_take`], and not used after this; `stream` is one of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xmem_gpu_release(frame: *mut CudaFrame, stream: u64) -> bool {
    // SAFETY: as the caller promises.
    let (frame, stream) = unsafe { (Box::from_raw(frame), Stream::from_raw(stream)) };
    frame
        .release_on(stream)
        .map_err(|failure| eprintln!("{}", failure.release_after(stream)))
        .is_ok()
}
