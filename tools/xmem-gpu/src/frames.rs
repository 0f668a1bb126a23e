// SPDX-License-Identifier: MPL-2.0

//! A C interface to a consumer, for Python programs that have PyTorch but not the Python module. They use it by ctypes.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use xmem_core::cuda::{CudaFrame, Stream};
use xmem_core::{Consumer, StartFrom};

/// Connects to the pool with this name. Returns null on an error, and prints it on stderr.
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

/// Waits for the next frame, lets `stream` wait for it, and stores its address, size and number. Returns null if no frame arrives
/// within 10 s, or the frame cannot be used.
///
/// # Safety
///
/// `consumer` is from [`xmem_gpu_connect`] and used by no other thread. The pointers for the results are valid. `stream` is a
/// stream of this process.
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

/// Releases a frame when the stream reaches this point. Returns whether this succeeded.
///
/// # Safety
///
/// `frame` is from [`xmem_gpu_take`], and is not used after this call. `stream` is a stream of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xmem_gpu_release(frame: *mut CudaFrame, stream: u64) -> bool {
    // SAFETY: as the caller promises.
    let (frame, stream) = unsafe { (Box::from_raw(frame), Stream::from_raw(stream)) };
    frame
        .release_on(stream)
        .map_err(|failure| eprintln!("{}", failure.release_after(stream)))
        .is_ok()
}
