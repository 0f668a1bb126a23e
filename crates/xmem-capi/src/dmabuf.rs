// SPDX-License-Identifier: MPL-2.0

//! Frames in DMA buffers, which devices import.
#![allow(unsafe_code)] // functions and pointers of C

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use xmem_core::VideoFormat;

use crate::border::{Sized0, call, null};
use crate::error::Failure;
use crate::frame::{FRAMES, Frame};
use crate::planes::MAX_PLANES;

/// `xmem_dmabuf_plane` of xmem.h.
#[derive(Clone, Copy)]
#[repr(C)]
struct Plane {
    fd: c_int,
    stride: u32,
    offset: u64,
}

/// `xmem_dmabuf` of xmem.h. The rows are linear, so that the modifier is 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Dmabuf {
    struct_size: usize,
    fourcc: u32,
    n_planes: u32,
    modifier: u64,
    planes: [Plane; MAX_PLANES],
}

// SAFETY: numbers.
unsafe impl Sized0 for Dmabuf {}

fn describe(frame: &Frame) -> Result<impl FnOnce(&mut Dmabuf), Failure> {
    let planes = frame.dmabuf_planes()?;
    let video = frame.meta().layout.video.as_ref();
    let format = video.and_then(VideoFormat::of);
    Ok(move |out: &mut Dmabuf| {
        out.fourcc = format.and_then(VideoFormat::drm_fourcc).unwrap_or(0);
        out.n_planes = planes.len() as u32;
        for (to, plane) in out.planes.iter_mut().zip(planes) {
            *to = Plane {
                fd: plane.dmabuf.as_fd().as_raw_fd(),
                stride: plane.stride,
                offset: plane.dmabuf.offset() as u64,
            };
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xmem_frame_dmabuf(frame: u64, dmabuf: *mut Dmabuf) -> c_int {
    call(|| {
        if dmabuf.is_null() {
            return Err(null("dmabuf"));
        }
        let frame = FRAMES.get(frame)?;
        let describe = describe(&frame)?;
        // SAFETY: xmem.h asks for a structure that begins with its size.
        unsafe { Dmabuf::fill(dmabuf, "dmabuf", describe) }
    })
}
