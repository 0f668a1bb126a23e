// SPDX-License-Identifier: MPL-2.0

//! The functions of libnvcuvid.so.1, the video decoder's library, that GStreamer's plugin `nvcodec` demands before it
//! registers any element, cudaupload and cudadownload among them. None of them works, so no decoder is registered.

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::CUresult;

macro_rules! absent {
    ($($name:ident)*) => { $(
        /// Refuses. What it is called with does not matter to the calling convention.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name(_first: *mut c_void) -> c_int {
            CUresult::CUDA_ERROR_NOT_SUPPORTED as c_int
        }
    )* };
}

absent! {
    cuvidCtxLockCreate
    cuvidCtxLockDestroy
    cuvidCtxLock
    cuvidCtxUnlock
    cuvidCreateDecoder
    cuvidReconfigureDecoder
    cuvidDestroyDecoder
    cuvidDecodePicture
    cuvidCreateVideoParser
    cuvidParseVideoData
    cuvidDestroyVideoParser
    cuvidMapVideoFrame64
    cuvidUnmapVideoFrame64
    cuvidGetDecoderCaps
}
