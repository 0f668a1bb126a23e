// SPDX-License-Identifier: MPL-2.0

//! The functions of libnvcuvid.so.1, the video decoder library. GStreamer's plugin `nvcodec` requires them before it registers any
//! element, including cudaupload and cudadownload. All of them fail, so no decoder is registered.

use std::ffi::{c_int, c_void};

use cudarc::driver::sys::CUresult;

macro_rules! absent {
    ($($name:ident)*) => { $(
        /// Fails. The calling convention does not depend on the arguments.
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
