// SPDX-License-Identifier: MPL-2.0

//! Functions that GStreamer's CUDA library requires to load the driver. All of them fail, except for the older names of
//! cuStreamDestroy and cuIpcOpenMemHandle.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray, CUdevice, CUdeviceptr,
    CUgraphicsResource, CUipcMemHandle, CUlimit, CUresult, CUstream, CUtexObject,
};

const NO: crate::entry::Outcome = Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);

api! {
    fn cuGraphicsMapResources(_count: c_uint, _resources: *mut CUgraphicsResource, _stream: CUstream) { NO }

    fn cuGraphicsUnmapResources(_count: c_uint, _resources: *mut CUgraphicsResource, _stream: CUstream) { NO }

    fn cuGraphicsResourceSetMapFlags_v2(_resource: CUgraphicsResource, _flags: c_uint) { NO }

    fn cuGraphicsSubResourceGetMappedArray(
        _array: *mut CUarray, _resource: CUgraphicsResource, _index: c_uint, _level: c_uint,
    ) { NO }

    fn cuGraphicsResourceGetMappedPointer_v2(
        _pointer: *mut CUdeviceptr, _size: *mut usize, _resource: CUgraphicsResource,
    ) { NO }

    fn cuGraphicsUnregisterResource(_resource: CUgraphicsResource) { NO }

    fn cuTexObjectCreate(
        _object: *mut CUtexObject, _resource: *const CUDA_RESOURCE_DESC, _texture: *const CUDA_TEXTURE_DESC,
        _view: *const CUDA_RESOURCE_VIEW_DESC,
    ) { NO }

    fn cuTexObjectDestroy(_object: CUtexObject) { NO }

    fn cuCtxGetLimit(_value: *mut usize, _limit: CUlimit) { NO }

    fn cuCtxSetLimit(_limit: CUlimit, _value: usize) { NO }
}

/// Functions that are not in cudarc's bindings, so that the compiler cannot compare the signatures.
macro_rules! unchecked {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::missing_safety_doc)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            static COUNT: crate::trace::Count = crate::trace::Count::new(stringify!($name));
            crate::entry::call(&COUNT, || $body)
        }
    )* };
}

unchecked! {
    fn cuStreamDestroy(stream: CUstream) {
        crate::stream::destroy(stream)
    }

    fn cuIpcOpenMemHandle(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) {
        crate::ipc::open_memory(pointer, &handle, flags)
    }

    fn cuGraphicsGLRegisterImage(_resource: *mut CUgraphicsResource, _image: c_uint, _target: c_uint, _flags: c_uint) {
        NO
    }

    fn cuGraphicsGLRegisterBuffer(_resource: *mut CUgraphicsResource, _buffer: c_uint, _flags: c_uint) { NO }

    fn cuGLGetDevices_v2(_found: *mut c_uint, _devices: *mut CUdevice, _room: c_uint, _list: c_int) { NO }
}
